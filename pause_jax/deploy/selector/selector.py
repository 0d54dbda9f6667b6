"""The selector: a policy, its state, and the budget that each client has spent."""

from __future__ import annotations

import pathlib
from collections.abc import Collection, Iterable, Mapping
from typing import Any, ClassVar, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import ArrayLike, NDArray

from pause_jax.bandit.protocol import Selection
from pause_jax.base.struct import ConfigError
from pause_jax.config import SimConfig, canonical, config_file, with_budgets
from pause_jax.deploy.selector.reports import (
    Choice,
    Question,
    Reports,
    answer,
    check_among,
    numbers,
    observation,
    served,
    sizes,
)
from pause_jax.deploy.selector.saved import read, with_kept_budgets, write
from pause_jax.learning import Learning
from pause_jax.learning.partition import Partition
from pause_jax.policies import Context, Policy, check_selected, policy_of, readings
from pause_jax.rng import keys
from pause_jax.run.arguments import check_one_key
from pause_jax.run.context import context_of
from pause_jax.run.speeds import warn_if_far, warn_of_speeds
from pause_jax.world.latency import Work

# After so many rounds the reported seconds are compared with tau_min.
_ROUNDS_TO_COMPARE = 10


class _Asked(NamedTuple):
    """An open question, with the policy's own slots [d] and who of them is asked."""

    question: Question
    clients: NDArray[np.int32]
    asked: NDArray[np.bool_]
    present: NDArray[np.bool_]


class Selector:
    """A policy and its state, for any server.

    Attributes:
      config: what it was made from.
      round: rounds that were asked for.
      counts: int [K], rounds in which each client may have released something.
    """

    overlaps: ClassVar[bool] = False

    def __init__(
        self,
        config: SimConfig,
        key: Array,
        *,
        data_size: ArrayLike | None = None,
        update_size: int = 0,
    ):
        """Start before round 1.

        Args:
          config: its policy, reward, mechanism with the budget, sizes, ``when_spent``, and its
            latency model for ``min_latency`` and whatever the policy assumes known.
          key: typed; that of a simulation gives its choices.
          data_size: samples of each client [K]; equal by default.
          update_size: entries of an update, for a policy that reads updates, or a latency model
            that is to take the bytes of a round from it.

        Raises:
          ConfigError: if the config cannot run, or sizes do not fit.
        """
        check_one_key(key, "Selector", "Make one selector for each.")
        config = served(config, overlaps=self.overlaps)
        warn_of_speeds(config)
        self.config, self.round = config, 0
        self._size = jnp.asarray(sizes(data_size, config.num_clients))
        self._update_size = update_size
        streams = keys.streams(key)
        self._canonical = with_budgets(canonical(config), keys.budgets(streams.world))
        self._policy = _compiled(policy_of(self._canonical.policy, self._context()))
        self._key = streams.policy
        self._state = self._policy.init()
        self._pending: Selection | None = None
        self._asked: _Asked | None = None
        self.counts = np.zeros(config.num_clients, np.int32)
        self._fastest = np.inf
        self._epsilon = jax.jit(self._canonical.privacy.budget.epsilon)

    @property
    def epsilon_unit(self) -> str:
        """What an epsilon protects: ``coordinate``, ``update`` or ``none``."""
        return self.config.privacy.unit

    @property
    def reads_losses(self) -> bool:
        """Whether the policy needs the losses or updates of the clients that it chose."""
        return not {"loss", "square_loss"}.isdisjoint(readings(self.config.policy))

    @property
    def spent(self) -> NDArray[np.float32]:
        """Budget that each client has spent, float [K]."""
        return np.asarray(self._canonical.privacy.budget.spent(jnp.asarray(self.counts)))

    def question(self, available: Iterable[int] | None = None) -> Question | None:
        """The policy's question before the next choice; None if it asks no client.

        Args:
          available: as in :meth:`ask`.

        Raises:
          ConfigError: as :meth:`ask`.
        """
        self._check_told()
        query = self._policy.query
        if query is None:
            return None
        key = keys.question_and_choice(keys.choice(self._key, self.round + 1))[0]
        present = jnp.asarray(self._present(available))
        who = query.ask(key, self._state, jnp.int32(self.round + 1), present)
        clients, asked = map(np.asarray, who)
        question = Question(self.round + 1, clients[asked], query.wants, query.batch_size)
        self._asked = _Asked(question, clients, asked, np.asarray(present))
        return question

    def ask(
        self, available: Iterable[int] | None = None, answers: Mapping[int, ArrayLike] | None = None
    ) -> Choice:
        """The clients to train in the next round.

        Args:
          available: numbers of the clients that can be chosen; all by default. Clients whose
            budget is spent are left out in any case.
          answers: to the policy's :meth:`question`, of each asked client: its loss, or its features
            [F]. Of a client without a loss the policy keeps what it knows.

        Raises:
          ConfigError: for numbers that are no clients, before the round before was told, or for
            answers that do not fit the question.
        """
        self._check_told()
        present = self._present(available)
        state, key = self._state, keys.choice(self._key, self.round + 1)
        query = self._policy.query
        if query is not None:
            if self._asked is None or answers is None:
                raise ConfigError(
                    f"policy = {self.config.policy.name}: asks clients before it chooses. Call "
                    "question, then ask with their answers."
                )
            question, clients, asked, who = self._asked
            if not np.array_equal(present, who):
                raise ConfigError(
                    "available: must be that of the question, as the policy chooses among those "
                    "that it asked. Ask the question again for other clients."
                )
            check_among("answers", answers, question.clients.tolist(), "asked")
            features = self.config.latency.num_features
            told = answer(answers, clients, asked, question, features)
            state = query.receive(state, jnp.asarray(clients), jnp.asarray(asked), told)
            key = keys.question_and_choice(keys.choice(self._key, self.round + 1))[1]
        elif answers is not None:
            raise ConfigError(
                f"answers: policy = {self.config.policy.name} asks nobody. Leave them out."
            )
        return self._choose(key, state, present)

    def _choose(self, key: Array, state: Any, present: NDArray[np.bool_]) -> Choice:
        """Let the policy choose among the present, bool [K]; the choice is pending."""
        selected = self._policy.select(key, state, jnp.int32(self.round + 1), jnp.asarray(present))
        self._state, self._asked, self._here = state, None, present
        self.round += 1
        selection, _ = check_selected(selected, self.config.cohort_size)
        self._pending = Selection(*map(np.asarray, selection))  # type: ignore[arg-type]
        active = np.asarray(self._pending.active)
        clients = np.asarray(self._pending.clients)[active]
        epsilon = np.asarray(self._epsilon(self.counts + 1))[clients]
        return Choice(self.round, clients, np.asarray(self._pending.weights)[active], epsilon)

    def tell(
        self,
        seconds: Mapping[int, float],
        *,
        loss: Mapping[int, float] | None = None,
        square_loss: Mapping[int, float] | None = None,
        update: Mapping[int, ArrayLike] | None = None,
        failed: Mapping[int, float] | None = None,
        idle: Iterable[int] = (),
    ) -> None:
        """Report what came back of the round.

        Args:
          seconds: that each client took which answered.
          loss: mean training loss of each, for a policy that reads it.
          square_loss: mean squared loss, likewise.
          update: the released update of each, flat, likewise.
          failed: seconds that the server waited in vain for each that did not answer: the policy
            learns that it is as slow. Of a chosen client that stands neither here nor in
            ``seconds`` it learns nothing, and may choose it again at once.
          idle: chosen clients that certainly released nothing. All other chosen ones count as
            having spent the budget of this round, also those that failed.

        Raises:
          ConfigError: for clients that were not chosen, seconds that are none, or a reading that
            the policy needs and that is missing; the round stays open.
        """
        if self._pending is None:
            raise ConfigError("nothing was asked: call ask first, then tell, once a round.")
        reports = Reports(seconds, loss, square_loss, update, failed)
        clients, weights = map(np.asarray, self._pending)
        slots = {int(clients[i]): int(i) for i in np.flatnonzero(weights > 0)}
        spared = set(numbers("idle", idle, self.config.num_clients))
        self._check_reports(reports, spared, slots, f"chosen in round {self.round}")
        seen, known = observation(reports, slots, self.config, self._update_size)
        weights = np.where(known, weights, 0.0).astype(np.float32)
        answered = Selection(jnp.asarray(clients), jnp.asarray(weights))
        seen = seen._replace(available=jnp.asarray(self._here))
        self._state = self._policy.update(self._state, answered, seen)
        for client in slots:
            self.counts[client] += client not in spared
        self._pending = None
        self._fastest = min([self._fastest, *map(float, seconds.values())])
        if self.round == _ROUNDS_TO_COMPARE and np.isfinite(self._fastest):
            warn_if_far(float(self.config.latency.min_latency), self._fastest)

    def _check_reports(
        self, reports: Reports, idle: Collection[int], known: Collection[int], what: str
    ) -> None:
        for name, values in {**reports._asdict(), "idle": idle}.items():
            check_among(name, values or (), known, what)
        for name, named in (("failed", reports.failed or ()), ("idle", idle)):
            if both := set(named) & set(reports.seconds):
                raise ConfigError(
                    f"{name}: client {min(both)} stands in seconds too, as one that answered; must "
                    "be in one of them."
                )
        no_readings = reports.loss is None and reports.update is None
        if self.reads_losses and reports.seconds and no_readings:
            raise ConfigError(
                f"policy = {self.config.policy.name}: reads "
                f"{', '.join(self.config.policy.releases)}; tell it the loss or the update of each "
                "client too."
            )

    def save(self, path: str | pathlib.Path) -> None:
        """Write the state to a file, between a round's ``tell`` and the next ``ask``.

        Raises:
          ConfigError: while a round is open, or if the file cannot be written.
        """
        if self._pending is not None:
            raise ConfigError(f"round {self.round} is open: tell what came back of it, then save.")
        write(pathlib.Path(path), self._arrays())

    @classmethod
    def load(cls, path: str | pathlib.Path, config: SimConfig | None = None) -> Self:
        """Load a saved selector.

        Args:
          path: of the file.
          config: that of the selector, if at hand: the file can name objects such as a model, but
            not hold them. It is used if it equals the one in the file.

        Raises:
          ConfigError: if it cannot be read; import a custom policy first.
        """
        config, kept = read(path, config)
        own, size = with_kept_budgets(config, kept), int(kept["update_size"])
        made = cls(own, jax.random.key(0), data_size=kept["size"], update_size=size)
        made.config = config
        made._restore(kept)
        return made

    def _arrays(self) -> dict[str, NDArray[Any]]:
        """What a file holds of it."""
        leaves = {f"state_{i}": np.asarray(x) for i, x in enumerate(jax.tree.leaves(self._state))}
        return {
            "config": np.asarray(config_file.dumps(self.config)),
            "key": np.asarray(jax.random.key_data(self._key)),
            "round": np.asarray(self.round),
            "counts": self.counts,
            "size": np.asarray(self._size),
            "update_size": np.asarray(self._update_size),
            "budget": np.asarray(self._canonical.privacy.budget.total()),
            **leaves,
        }

    def _restore(self, kept: Mapping[str, NDArray[Any]]) -> None:
        """Go on from what a file holds."""
        self._key = jax.random.wrap_key_data(jnp.asarray(kept["key"]))
        self.round, self.counts = int(kept["round"]), kept["counts"]
        like, form = jax.tree.flatten(self._state)
        leaves = [jnp.asarray(kept[f"state_{i}"]) for i in range(len(like))]
        self._state = jax.tree.unflatten(form, leaves)

    def _check_told(self) -> None:
        if self._pending is not None:
            raise ConfigError(
                f"round {self.round} is open: tell what came back of it (an empty mapping if "
                "nothing did) before the next ask."
            )

    def _present(self, available: Iterable[int] | None) -> NDArray[np.bool_]:
        """Who can be chosen, bool [K]."""
        present = np.full(self.config.num_clients, available is None)
        if available is not None:
            present[numbers("available", available, self.config.num_clients)] = True
        spent = self._canonical.privacy.budget.exhausted(jnp.asarray(self.counts + 1))
        return present & ~np.asarray(spent)

    def _context(self) -> Context:
        """What the policy would know in a simulation of these clients."""
        config, size = self._canonical, self._size
        local, learning = size, config.learning
        if type(learning) is Learning:
            local = jnp.minimum(size, learning.max_steps * learning.batch_size)
        model_bytes = 4.0 * self._update_size
        model, _ = config.latency.with_work(Work(model_bytes, model_bytes, local))
        nowhere = jnp.zeros(0, jnp.int32)
        return context_of(
            config,
            model,
            data_size=size,
            local_samples=local,
            share=Partition(nowhere, nowhere, size, jnp.ones_like(size)).share,
            update_size=self._update_size,
        )


def _compiled(policy: Policy) -> Policy:
    """The policy with each of its functions as a program."""
    query = policy.query
    if query is not None:
        query = query._replace(ask=jax.jit(query.ask), receive=jax.jit(query.receive))
    init, select, update = jax.jit(policy.init), jax.jit(policy.select), jax.jit(policy.update)
    return policy._replace(init=init, select=select, update=update, query=query)
