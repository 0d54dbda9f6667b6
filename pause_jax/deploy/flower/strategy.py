"""A policy as the strategy of a Flower server: it chooses, averages, learns, keeps its state."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from typing import Any

import jax
import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from numpy.typing import ArrayLike

from pause_jax.base.struct import ConfigError
from pause_jax.config import SimConfig
from pause_jax.deploy.flower.protocol import (
    EPSILON,
    LOG,
    OURS,
    PARTICIPATION,
    RELEASED_NOTHING,
    ROUND,
    SPENT,
    question_round,
)
from pause_jax.deploy.flower.replies import (
    Answer,
    average,
    flat_update,
    is_float,
    mean_metrics,
    read,
)
from pause_jax.deploy.flower.roster import Roster
from pause_jax.deploy.flower.state import Played, StateFolder
from pause_jax.deploy.flower.timing import TimedGrid
from pause_jax.deploy.selector import Choice, Selector

SECONDS = ("stamped", "reported")


class PauseStrategy(Strategy):
    """Any policy, with the config that it was simulated with.

    ``PauseStrategy(config, key, state="state").start(grid, arrays, num_rounds=100)``. Each round
    the connected nodes are the available clients; the chosen ones train, and the new model is their
    average by the policy's weights, over those that answered. The policy learns the seconds of
    each. A client that answers with an error, with other arrays than it was sent, or late has
    failed, and counts as having taken ``timeout_seconds``. A client that reports a spent budget is
    not chosen again. A policy that asks clients before it chooses sends query messages, which
    clients answer by :func:`answer`. A policy that reads losses gets the metrics ``loss`` and
    ``square-loss`` (the square of the first, if left out). The config's learning,
    availability, round ends (``max_seconds``, ``deadline``, ``wait_for``, ``dropout``,
    ``stale_updates``) and ``when_spent`` (it is ``exclude``) are not used: a real fleet has its
    own.

    There is no federated evaluation: what clients said of their data would leave without noise.
    Evaluate at the server, by ``evaluate_fn`` of ``start``.

    Attributes:
      selector: the policy at work.
      roster: which node is which client.
      history: the rounds run by this object.
    """

    # Eleven arguments: Flower's strategies take all their settings here, by keywords.
    def __init__(
        self,
        config: SimConfig,
        key: jax.Array,
        *,
        state: str | os.PathLike[str] | None = None,
        data_size: ArrayLike | None = None,
        update_size: int = 0,
        numbering: str = "reported",
        seconds: str = "stamped",
        timeout_seconds: float = 3600.0,
        poll_seconds: float = 0.1,
        min_available: int | None = None,
        wait_seconds: float = 3600.0,
    ):
        """Start before round 1, or go on where the state ends.

        Args:
          config: as for a :class:`~pause_jax.deploy.selector.Selector`.
          key: typed; that of a simulation gives its choices. An existing state keeps its own key.
          state: a folder, made if needed, that is written after each round: ``selector.npz``, all
            that the policy knows; ``clients.json``, the roster; ``fleet.csv``, the seconds of all
            that answered, for ``pause-jax fit`` and ``Traces``. Nothing is kept if left out.
          data_size: samples of each client [K]; equal by default.
          update_size: d, entries of an update, for a policy that reads updates.
          numbering: how nodes get their client numbers (:class:`Roster`).
          seconds: ``stamped`` by this server (:class:`TimedGrid`), or ``reported`` by each client
            as its metric ``pause-seconds``, as :class:`PrivateRelease` does.
          timeout_seconds: to wait for a round's replies, > 0.
          poll_seconds: between two looks for replies, > 0.
          min_available: a round waits until as many clients are connected; by default as many as
            the policy chooses.
          wait_seconds: at most so long, >= 0; then it starts with those that are connected.

        Raises:
          ConfigError: if the config cannot run here, an argument is out of its range, or the state
            is of another config.
        """
        self.selector = Selector(config, key, data_size=data_size, update_size=update_size)
        self._least = config.cohort_size if min_available is None else min_available
        self._seconds, self._timeout, self._poll = seconds, timeout_seconds, poll_seconds
        self._wait = wait_seconds
        self._check_arguments(config.num_clients)
        self._update_size = update_size
        self._folder = None if state is None else StateFolder(state)
        if self._folder is not None:
            self.selector = self._folder.resumed(self.selector)
        clients = None if self._folder is None else self._folder.clients
        self.roster = Roster(config.num_clients, numbering, clients)
        self.history: list[Played] = []
        self._open: tuple[Choice, dict[int, int], ArrayRecord, TimedGrid] | None = None

    def _check_arguments(self, num_clients: int) -> None:
        if self._seconds not in SECONDS:
            raise ConfigError(
                f"seconds = {self._seconds!r}: must be one of {', '.join(SECONDS)}, by whose clock "
                "the policy learns."
            )
        if not (self._timeout > 0 and self._wait >= 0):
            raise ConfigError(
                f"timeout_seconds = {self._timeout}, wait_seconds = {self._wait}: must be > 0 and "
                ">= 0, the patience with replies and with nodes that are to connect."
            )
        if not 0 <= self._least <= num_clients:
            raise ConfigError(
                f"min_available = {self._least}: must be 0 to num_clients = {num_clients}."
            )

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float | None = None,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Run Flower's rounds, with the grid timed.

        Args:
          grid: Flower's.
          initial_arrays: the model.
          num_rounds: rounds to run now, after those of the state.
          timeout: in place of ``timeout_seconds``.
          train_config: for the clients; ``server-round`` and ``pause-epsilon`` are added.
          evaluate_config: not used.
          evaluate_fn: of the round, from 1 on in each start, and the model: metrics of the server.

        Raises:
          ConfigError: if no client can be numbered, or the policy needs losses and none came.
        """
        self._timeout = self._timeout if timeout is None else timeout
        timed, configs = TimedGrid(grid, self._poll), (train_config, evaluate_config)
        return super().start(
            timed, initial_arrays, num_rounds, self._timeout, *configs, evaluate_fn
        )

    def summary(self) -> None:
        """Log what is run, and from which round on."""
        config = self.selector.config
        LOG.info(
            "policy %s chooses %d of %d clients, from round %d on; privacy %s, epsilon per %s; "
            "seconds %s, state in %s", config.policy.name, config.cohort_size, config.num_clients,
            self.selector.round + 1, type(config.privacy).__name__, self.selector.epsilon_unit,
            self._seconds, "no folder" if self._folder is None else self._folder.path,
        )  # fmt: skip

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        if not isinstance(grid, TimedGrid):
            raise ConfigError(
                f"grid = {type(grid).__name__}: must be a TimedGrid, which says when replies came. "
                "Call start, which wraps it, or give TimedGrid(grid)."
            )
        size = sum(a.size for a in (array.numpy() for array in arrays.values()) if is_float(a))
        if self._update_size not in (0, size):
            raise ConfigError(
                f"update_size = {self._update_size}: the model has {size} floats. Give that number."
            )
        present = self._present(grid)
        free = {client: present[client] for client in present.keys() - self.roster.spent}
        available, answers = question_round(self.selector, free, arrays, grid, self._timeout)
        choice = self.selector.ask(available, answers)
        nodes = {int(client): present[int(client)] for client in choice.clients}
        self._open = choice, nodes, arrays, grid
        LOG.info("round %d: clients %s of %d connected", choice.round, list(nodes), len(present))
        # No client trains a stale model: what is not fetched in time expires.
        messages, ttl = [], self._timeout + self._poll
        group = str(choice.round)
        for node, epsilon in zip(nodes.values(), choice.epsilon, strict=True):
            said = ConfigRecord({**config, ROUND: choice.round, EPSILON: float(epsilon)})
            content = RecordDict({"arrays": arrays, "config": said})
            messages.append(Message(content, node, MessageType.TRAIN, ttl=ttl, group_id=group))
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        if self._open is None:
            raise ConfigError("no round is open: call configure_train first, then aggregate_train.")
        choice, nodes, arrays, grid = self._open
        client_of = {node: client for client, node in nodes.items()}
        answers, missing = dict[int, Answer](), set(nodes)
        idle, spent = set[int](), set[int]()
        for reply in replies:
            message = reply.metadata.reply_to_message_id
            client = client_of[grid.nodes[message]]
            missing.discard(client)
            if reply.has_error():
                if reply.error.code == SPENT:
                    spent.add(client)
                if reply.error.code in RELEASED_NOTHING:
                    idle.add(client)
                LOG.warning("client %d: %s", client, reply.error.reason)
                continue
            stamped = grid.seconds[message] if self._seconds == "stamped" else None
            needs_loss = self.selector.reads_losses and not self._update_size
            try:
                answers[client] = read(reply.content, arrays, stamped, needs_loss=needs_loss)
            except ConfigError as error:
                LOG.warning("client %d counts as failed: %s", client, error)
        for client in sorted(missing):
            LOG.warning("client %d did not answer in %g s", client, grid.waited)

        seconds = {client: answer.seconds for client, answer in answers.items()}
        failed = dict.fromkeys(sorted(nodes.keys() - answers.keys() - spent), self._timeout)
        readings = _readings(answers, arrays, self._update_size)
        self.selector.tell(seconds, failed=failed, idle=idle, **readings)
        self._compare(choice, answers)
        self.roster.retire(spent)
        played = Played(choice, seconds, failed, tuple(sorted(idle)))
        self.history.append(played)
        self._open = None
        if self._folder is not None:
            self._folder.save(self.selector, played)
        weights = {int(c): float(w) for c, w in zip(choice.clients, choice.weights, strict=True)}
        metrics = mean_metrics(answers, weights, leave_out=OURS)
        metrics |= {"num-answered": len(answers), "num-failed": len(failed)}
        metrics["seconds"] = max([*seconds.values(), *failed.values()], default=0.0)
        return average(answers, weights), MetricRecord(metrics)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        return []

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        return None

    def _present(self, grid: TimedGrid) -> dict[int, int]:
        """The nodes by client number, as soon as there are enough of them."""
        start = time.monotonic()
        while True:
            left = self._wait - (time.monotonic() - start)
            present = self.roster.present(grid, max(left, self._poll))
            if len(present) >= self._least:
                return present
            if left <= 0:
                break
            time.sleep(min(self._poll, left))
        if not present:
            raise ConfigError(
                f"no client is connected and numbered after {self._wait:g} s (numbering = "
                f"{self.roster.numbering!r}): start SuperNodes, and put introduce(app) into their "
                "client app."
            )
        LOG.warning("%d clients are connected, fewer than %d", len(present), self._least)
        return present

    def _compare(self, choice: Choice, answers: dict[int, Answer]) -> None:
        """Take over the client's ledger, which alone knows what the client has released."""
        private = self.selector.epsilon_unit != "none"
        for client, epsilon in zip(choice.clients.tolist(), choice.epsilon, strict=True):
            if client not in answers:
                continue
            metrics = answers[client].metrics
            number = metrics.get(PARTICIPATION)
            if number is None:
                if private:
                    LOG.warning(
                        "client %d did not say which release this was: its app may lack the mod "
                        "PrivateRelease, and then nothing is private", client,
                    )  # fmt: skip
                continue
            spent = float(metrics.get(EPSILON, np.nan))
            counted = int(self.selector.counts[client])
            if number != counted or not np.isclose(spent, epsilon, rtol=1e-4):
                LOG.warning(
                    "client %d: its ledger has %d releases, the last of epsilon %g; here it had %d "
                    "and %g. The ledger's number counts from now on", client, number, spent,
                    counted, epsilon,
                )  # fmt: skip
                self.selector.counts[client] = int(number)


def _readings(
    answers: dict[int, Answer], arrays: ArrayRecord, update_size: int
) -> dict[str, dict[int, Any]]:
    """What policies may read beside seconds, as far as the clients gave it."""
    losses, squares = dict[int, float](), dict[int, float]()
    for client, answer in answers.items():
        loss, square = (answer.metrics.get(name) for name in ("loss", "square-loss"))
        if isinstance(loss, int | float):
            losses[client] = float(loss)
            squares[client] = float(square if isinstance(square, int | float) else loss**2)
    readings: dict[str, dict[int, Any]] = {}
    if losses:
        readings |= {"loss": losses, "square_loss": squares}
    if update_size:
        before = {name: array.numpy() for name, array in arrays.items()}
        readings["update"] = {k: flat_update(a.arrays, before) for k, a in answers.items()}
    return readings
