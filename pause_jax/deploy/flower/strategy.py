"""Flower strategy that chooses clients with a policy, and averages their models."""

from __future__ import annotations

import os
import pathlib
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, NamedTuple

import jax
import msgspec
import numpy as np
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from numpy.typing import ArrayLike, NDArray

from pause_jax.base.checks import float32
from pause_jax.base.source_file import os_errors_as
from pause_jax.base.spelling import shown
from pause_jax.base.struct import ConfigError
from pause_jax.config import SimConfig, config_file
from pause_jax.deploy.flower.nodes import Roster, TimedGrid, check_seconds
from pause_jax.deploy.flower.protocol import (
    BATCH,
    EPSILON,
    LOG,
    NAMES,
    OURS,
    PARTICIPATION,
    RELEASED_NOTHING,
    ROUND,
    SPENT,
    TOOK,
    flat_update,
    is_float,
    only,
)
from pause_jax.deploy.selector import MOST_LOSS, MOST_RELEASES, Choice, Question, Selector

_FLOAT32 = np.finfo(np.float32)


class _Metrics(
    msgspec.Struct,
    kw_only=True,
    rename={"seconds": TOOK, "participation": PARTICIPATION, "epsilon": EPSILON},
):
    """Schema of the metrics in a client's reply."""

    seconds: Annotated[
        float, msgspec.Meta(ge=float(_FLOAT32.smallest_subnormal), le=float(_FLOAT32.max))
    ]
    participation: Annotated[int, msgspec.Meta(ge=1, le=MOST_RELEASES)] = 1
    # Epsilon of the release, infinite if the budget is unlimited.
    epsilon: Annotated[float, msgspec.Meta(gt=0)] = 1.0


class _MetricsWithLoss(_Metrics):
    loss: Annotated[float, msgspec.Meta(ge=-MOST_LOSS, le=MOST_LOSS)]


class Played(NamedTuple):
    """Outcome of a round.

    Attributes:
      seconds: latency of each client that answered, in seconds.
      failed: latency assumed for each failed client, in seconds (equal to the timeout).
      idle: chosen clients known to have released nothing.
    """

    choice: Choice
    seconds: dict[int, float]
    failed: dict[int, float]
    idle: tuple[int, ...]


class Answer(NamedTuple):
    """Valid client reply, with the trained model, metrics and latency in seconds."""

    arrays: dict[str, NDArray[Any]]
    metrics: Mapping[str, Any]
    seconds: float


class PauseStrategy(Strategy):
    """Flower strategy that supports any policy and takes the same config as a simulation.

    In each round, the connected nodes are the available clients. The new model is the average of
    the returned models, weighted by the policy. A client fails if it answers with an error, with
    invalid arrays or metrics, or too late. A client that reports a spent budget is not chosen
    again. If the policy queries clients, call :func:`answer` on each client app. A policy that
    reads losses needs the ``loss`` metric, and can use ``square-loss`` (default: the square of
    ``loss``). ``config.learning`` is used only to derive data sizes, data quality, local work and
    the update size. The fields ``availability``, ``availability_trace``, ``max_seconds``,
    ``deadline``, ``wait_for``, ``dropout``, ``stale_updates`` and ``when_spent`` are ignored.

    The strategy has no federated evaluation, because the clients' metrics would be sent without
    noise. Evaluate on the server, using the ``evaluate_fn`` argument of ``start``.

    Attributes:
      selector: policy and its state.
      roster: registry of the nodes' client numbers.
      history: outcome of each round that this object has run.
    """

    def __init__(
        self,
        config: SimConfig,
        key: jax.Array,
        *,
        state: str | os.PathLike[str] | None = None,
        data_size: ArrayLike | None = None,
        update_size: int | None = None,
        seconds: str = "stamped",
        timeout_seconds: float = 3600.0,
        poll_seconds: float = 0.1,
        min_available: int | None = None,
        wait_seconds: float = 3600.0,
    ):
        """Initialize the strategy for round 1, or resume from a saved state.

        Args:
          config: config for the :class:`~pause_jax.deploy.selector.Selector`.
          key: typed PRNG key, as for a simulation. Ignored when resuming from a saved state.
          state: folder for the saved state, created if missing (default: nothing is saved).
            ``selector.npz`` contains the policy's state, saved before and after each round's
            training. ``fleet.csv`` contains the latency of each valid reply, for ``pause-jax fit``
            and ``Traces``.
          data_size: number of samples per client [K], as in ``Selector``.
          update_size: d, number of entries in an update, for a policy that reads updates.
          seconds: ``stamped`` to measure latencies on the server (:class:`TimedGrid`), or
            ``reported`` to use each reply's ``pause-seconds`` metric, added by
            :class:`PrivateRelease`.
          timeout_seconds: maximum wait for a round's replies, > 0 and finite. The policy treats the
            timeout as the latency of a client that fails.
          poll_seconds: time between polls for replies, > 0 and finite.
          min_available: number of connected clients that a round waits for (default: cohort size).
          wait_seconds: maximum wait for ``min_available`` clients, >= 0. After this time, the round
            starts with fewer clients.

        Raises:
          ConfigError: if the config is invalid for a ``Selector``, an argument is out of range, or
            the state was saved with a different config.
        """
        # Nodes report client numbers, even if the config's data has ids.
        numbers = range(config.num_clients)
        self.selector = Selector(
            config, key, data_size=data_size, update_size=update_size, ids=numbers
        )
        self._least = config.cohort_size if min_available is None else min_available
        self._seconds = seconds
        self._timeout = check_seconds("timeout_seconds", timeout_seconds)
        self._poll = check_seconds("poll_seconds", poll_seconds)
        self._wait = wait_seconds
        if seconds not in ("stamped", "reported"):
            raise ConfigError(f"seconds = {shown(seconds)}: must be 'stamped' or 'reported'.")
        if not wait_seconds >= 0:
            raise ConfigError(f"wait_seconds = {wait_seconds}: must be >= 0.")
        if not 0 <= self._least <= config.num_clients:
            raise ConfigError(
                f"min_available = {self._least}: must be between 0 and num_clients = "
                f"{config.num_clients}."
            )
        self._folder = None if state is None else pathlib.Path(state)
        if self._folder is not None:
            with os_errors_as(f"state = {state}: cannot create the folder"):
                self._folder.mkdir(parents=True, exist_ok=True)
            self.selector = _resumed(self._folder / "selector.npz", self.selector)
        self.roster = Roster(config.num_clients)
        self.history: list[Played] = []
        self._open: tuple[Choice, dict[int, int], ArrayRecord, TimedGrid] | None = None

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
        """Run Flower's rounds on a grid that measures latencies.

        Args:
          grid: Flower's grid.
          initial_arrays: initial model.
          num_rounds: number of rounds to run, not counting rounds completed before a restart.
          timeout: new value of ``timeout_seconds``; None keeps the old value.
          train_config: client config, extended with ``server-round`` and ``pause-epsilon``.
          evaluate_config: ignored.
          evaluate_fn: function (round, model) -> metrics, called on the server. Rounds are counted
            from this call to ``start``. In round 0, the model is ``initial_arrays``.

        Raises:
          ConfigError: if ``timeout`` is out of range, no connected client has a client
            number, ``update_size`` does not match the model (for a policy that reads updates), or
            the state cannot be saved.
        """
        if timeout is not None:
            self._timeout = check_seconds("timeout", timeout)
        timed, configs = TimedGrid(grid, self._poll), (train_config, evaluate_config)
        return super().start(
            timed, initial_arrays, num_rounds, self._timeout, *configs, evaluate_fn
        )

    def summary(self) -> None:
        """Log the policy, the next round and the state folder."""
        policy = self.selector.config.policy.name
        next_round = self.selector.round + 1
        LOG.info("policy %s, next round %d, state folder %s", policy, next_round, self._folder)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        assert isinstance(grid, TimedGrid)
        before = {name: array.numpy() for name, array in arrays.items()}
        size = flat_update(before, before).size
        expected = self.selector.num_parameters
        if "update" in self.selector.reads and size != expected:
            raise ConfigError(
                f"update_size = {expected}: must be the number of floats in the model. Set "
                f"update_size = {size}."
            )
        present = self._present(grid)
        free = {client: present[client] for client in present.keys() - self.roster.spent}
        available, answers = self._answers(free, arrays, grid)
        choice = self.selector.ask(available, answers)
        nodes = {int(client): present[int(client)] for client in choice.clients}
        self._open = choice, nodes, arrays, grid
        # Save before contacting any client, so that budget charges survive a crash.
        self._save()
        LOG.info("round %d: chose %s of %d clients", choice.round, list(nodes), len(present))
        # Let messages expire to keep late clients from training a stale model.
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
        assert self._open is not None
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
            needs_loss = not self.selector.reads.isdisjoint({"loss", "square_loss"})
            try:
                answers[client] = _read(reply.content, arrays, stamped, needs_loss=needs_loss)
            except ConfigError as error:
                LOG.warning("client %d failed: %s", client, error)
        for client in sorted(missing):
            LOG.warning("client %d did not answer within %g s", client, self._timeout)

        seconds = {client: answer.seconds for client, answer in answers.items()}
        failed = dict.fromkeys(sorted(nodes.keys() - answers.keys() - spent), self._timeout)
        self.selector.tell(seconds, failed=failed, idle=idle, **self._readings(answers, arrays))
        self._compare(choice, answers)
        self.roster.spent |= spent
        played = Played(choice, seconds, failed, tuple(sorted(idle)))
        self.history.append(played)
        self._open = None
        self._save()
        if self._folder is not None:
            _append_seconds(self._folder / "fleet.csv", played)
        weights = {int(c): float(w) for c, w in zip(choice.clients, choice.weights, strict=True)}
        total = sum(weights[client] for client in answers)
        weights = {client: weights[client] / total for client in answers}
        waited = max([*seconds.values(), *failed.values()], default=0.0)
        metrics = {"num-answered": len(answers), "num-failed": len(failed), "seconds": waited}
        return average(answers, weights), MetricRecord(metrics)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        return []

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        return None

    def _save(self) -> None:
        if self._folder is not None:
            self.selector.save(self._folder / "selector.npz")

    def _present(self, grid: TimedGrid) -> dict[int, int]:
        """Wait for enough clients, and return their nodes keyed by client number."""
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
                f"no node with a valid client number is connected after {self._wait:g} s: must "
                "have at least one. Start SuperNodes, and call introduce(app) in their client app."
            )
        LOG.warning("starting with %d clients instead of %d", len(present), self._least)
        return present

    def _answers(
        self, present: dict[int, int], arrays: ArrayRecord, grid: TimedGrid
    ) -> tuple[set[int], dict[int, Any] | None]:
        """Return the available clients and their answers (None if the policy sends no query).

        If a client sends no loss, the policy learns nothing about it. A client that sends no
        features is unavailable in this round. ``present`` maps clients to their nodes.
        """
        available, answers, asked = set(present), dict[int, Any](), set[int]()
        while (question := self.selector.question(available)) is not None:
            who = set(question.clients.tolist())
            new = {present[client]: client for client in sorted(who - asked)}
            answers |= self._ask(question, new, arrays, grid)
            asked |= who
            missing = who - answers.keys()
            if not missing or question.wants == "loss":
                return available, {client: answers[client] for client in who & answers.keys()}
            available -= missing
        return available, None

    def _ask(
        self, question: Question, client_of: dict[int, int], arrays: ArrayRecord, grid: TimedGrid
    ) -> dict[int, Any]:
        """Query the nodes in ``client_of``, and return the valid answers keyed by client number."""
        name = NAMES[question.wants]
        config = ConfigRecord({ROUND: question.round, BATCH: question.batch_size or 0})
        content = RecordDict({"config": config})
        shape: tuple[int, ...] = (self.selector.config.latency.num_features,)
        if question.wants == "loss":
            content["arrays"] = arrays
            shape = ()
        group = str(question.round)
        messages = [Message(content, node, f"query.{name}", group_id=group) for node in client_of]
        answers = {}
        for reply in grid.send_and_receive(messages, timeout=self._timeout):
            client = client_of[grid.nodes[reply.metadata.reply_to_message_id]]
            if reply.has_error():
                LOG.warning(
                    "client %d did not answer (%s). Call answer(app, %s=...) in its client app",
                    client, reply.error.reason, question.wants,
                )  # fmt: skip
                continue
            records = list(reply.content.metric_records.values())
            value = records[0].get(name) if records else None
            if float32(value).shape != shape or not np.isfinite(float32(value)).all():
                LOG.warning(
                    "client %d answered %s = %s: must be finite with shape %s", client, name,
                    shown(value), shape,
                )  # fmt: skip
                continue
            answers[client] = value
        return answers

    def _readings(self, answers: dict[int, Answer], sent: ArrayRecord) -> dict[str, dict[int, Any]]:
        """Return the losses, squared losses and updates, keyed by name and then by client."""
        losses, squares = (
            {k: answer.metrics[name] for k, answer in answers.items() if name in answer.metrics}
            for name in ("loss", "square-loss")
        )
        readings = {"loss": losses, "square_loss": squares} if losses else {}
        if "update" in self.selector.reads:
            before = {name: array.numpy() for name, array in sent.items()}
            readings["update"] = {k: flat_update(a.arrays, before) for k, a in answers.items()}
        return readings

    def _compare(self, choice: Choice, answers: dict[int, Answer]) -> None:
        """Increase release counts to match the clients' ledgers, but never decrease them."""
        epsilons = dict(zip(choice.clients.tolist(), choice.epsilon, strict=True))
        for client, answer in answers.items():
            number = answer.metrics.get(PARTICIPATION)
            spent = float(answer.metrics.get(EPSILON, np.nan))
            counted = int(self.selector.counts[client])
            if number is None:
                if self.selector.epsilon_unit != "none":
                    LOG.warning(
                        "client %d did not report a release number. Without the "
                        "PrivateRelease mod in its app, its updates are not private", client,
                    )  # fmt: skip
            elif number != counted or not np.isclose(spent, epsilons[client], rtol=1e-4):
                LOG.warning(
                    "client %d: its ledger has %d releases (last epsilon %g), but the server "
                    "counted %d (last epsilon %g). The server now uses the larger count", client,
                    number, spent, counted, epsilons[client],
                )  # fmt: skip
                self.selector.counts[client] = max(int(number), counted)


def _resumed(path: pathlib.Path, fresh: Selector) -> Selector:
    """Load ``path`` and close any open round, or return ``fresh`` if the file does not exist."""
    if not path.is_file():
        return fresh
    saved = Selector.load(path, fresh.config)
    old = config_file.dumps(saved.config).splitlines()
    new = config_file.dumps(fresh.config).splitlines()
    if old != new:
        different = [line for line in new if line not in old] or sorted(set(old) - set(new))
        raise ConfigError(
            f"{path}: was created with a different config (changed: {'; '.join(different[:3])}). "
            "Use the old config, or set a new state folder to restart from round 1."
        )
    if saved.is_open:
        LOG.warning(
            "round %d was open when the server stopped. All clients in this round are charged for "
            "a release, and the policy learns nothing about them", saved.round,
        )  # fmt: skip
        saved.tell({})
    return saved


def _append_seconds(path: pathlib.Path, played: Played) -> None:
    lines = [] if path.exists() else ["client,seconds,round"]
    lines += [f"{k},{s!r},{played.choice.round}" for k, s in sorted(played.seconds.items())]
    with path.open("a", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in lines)


def _read(
    content: RecordDict, sent: ArrayRecord, stamped: float | None, *, needs_loss: bool
) -> Answer:
    """Convert a client's reply to an ``Answer``, or raise ConfigError if the reply is invalid.

    The reply must contain arrays with the same names and shapes as ``sent``. The latency is
    ``stamped`` or, if None, the ``pause-seconds`` metric. The ``loss`` metric is required if
    ``needs_loss`` is True.
    """
    _, record = only(content.array_records, "its reply", "ArrayRecord")
    _, metrics = only(content.metric_records, "its reply", "MetricRecord")
    if set(record) != set(sent):
        raise ConfigError(f"its arrays are {shown(list(record))}: must be {list(sent)}.")
    arrays = {}
    for name, array in sent.items():
        try:
            arrays[name] = record[name].numpy().astype(array.dtype, casting="same_kind")
        except Exception as error:  # invalid bytes from a client must not stop the server
            short = str(error).partition("\n")[0]
            raise ConfigError(f"its array {name!r} cannot be read ({short}).") from None
        if arrays[name].shape != tuple(array.shape):
            raise ConfigError(
                f"its array {name!r} has shape {arrays[name].shape}: must be {tuple(array.shape)}."
            )
        if not np.isfinite(arrays[name]).all():
            raise ConfigError(f"its array {name!r} is not finite.")
    said = {**metrics, **({} if stamped is None else {TOOK: stamped})}
    try:
        seconds = msgspec.convert(said, _MetricsWithLoss if needs_loss else _Metrics).seconds
    except msgspec.ValidationError as error:
        raise ConfigError(
            f"its metrics are {shown(said)}: {error}. PrivateRelease adds {', '.join(OURS)}. To "
            "send other metrics, such as a loss, without noise, use PrivateRelease(clear=NAMES)."
        ) from None
    return Answer(arrays, metrics, seconds)


def average(answers: Mapping[int, Answer], weights: Mapping[int, float]) -> ArrayRecord | None:
    """Return the weighted mean of the models, or None if no client answered. Weights sum to one."""
    if not answers:
        return None
    mean = {}
    for name, like in next(iter(answers.values())).arrays.items():
        parts = [
            np.asarray(answer.arrays[name], np.float64) * weights[client]
            for client, answer in answers.items()
        ]
        # Round the mean of integers, because a cast would truncate 2.999... to 2.
        whole = np.asarray(sum(parts) if is_float(like) else np.rint(sum(parts)), like.dtype)
        mean[name] = Array(whole)
    return ArrayRecord(mean)
