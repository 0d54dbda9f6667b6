"""A policy for any server: ask it for clients, tell it what came back.

::

    selector = Selector(config, jax.random.key(0), data_size=sizes)
    choice = selector.ask(available)          # clients, weights, epsilon of each
    ...                                       # the server's round
    selector.tell({client: seconds, ...})     # of those that answered
    selector.save("selector.npz")

A policy that asks some clients before it chooses gets their answers first::

    question = selector.question(available)   # clients, and what they are asked for
    choice = selector.ask(available, answers={client: loss, ...})

Fed with the latencies of a simulation it chooses what ``simulate`` chooses.
"""

from __future__ import annotations

import pathlib
import zipfile
from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import ArrayLike, NDArray

from pause_jax.bandit.protocol import Observation, Selection
from pause_jax.base.source_file import written
from pause_jax.base.struct import ConfigError
from pause_jax.config import SimConfig, canonical, config_file, loaded, validate, with_budgets
from pause_jax.learning import Learning
from pause_jax.learning.partition import Partition
from pause_jax.policies import Answer, Context, Policy, check_selected, policy_of, readings
from pause_jax.rng import keys
from pause_jax.run.preflight import check_one_key, warn_if_far
from pause_jax.run.setup import context_of
from pause_jax.world.latency import Work

__all__ = ["Choice", "Question", "Selector"]

# After this number of rounds the reported seconds are compared with tau_min.
_ROUNDS_TO_COMPARE = 10


class Choice(NamedTuple):
    """The clients to train in a round.

    Attributes:
      round: its number, from 1 on.
      clients: int [n], n <= m.
      weights: float [n], aggregation weights; they sum to one.
      epsilon: float [n], budget of each client's release in this round, in ``epsilon_unit``;
        infinite without privacy.
    """

    round: int
    clients: NDArray[np.int32]
    weights: NDArray[np.float32]
    epsilon: NDArray[np.float32]


class Question(NamedTuple):
    """A policy's question before it chooses.

    Attributes:
      round: that it is about.
      clients: int [n], the asked clients.
      wants: ``loss``, the mean loss of the global model on the client's data, which is not covered
        by the mechanism; or ``features``, what the client knows of its coming round
        (``Latency.features``).
      batch_size: samples of a mini-batch that the loss is computed on; None for all.
    """

    round: int
    clients: NDArray[np.int32]
    wants: str
    batch_size: int | None


class _Asked(NamedTuple):
    """An open question, with the policy's slots [d] and which of them are asked."""

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
        validate(config)
        if config.overlaps:
            raise ConfigError(
                f"clock = {config.clock.name!r}: a Selector chooses round by round. Set clock = "
                "Synchronous()."
            )
        config = loaded(config)
        self.config = config
        self.round = 0
        self._size = jnp.asarray(_sizes(data_size, config.num_clients))
        self._update_size = update_size
        streams = keys.streams(key)
        self._canonical = with_budgets(canonical(config), keys.budgets(streams.world))
        context = self._context()
        warn_if_far(context.min_latency, jnp.min(context.expected_latency))
        self._policy = _compiled(policy_of(self._canonical.policy, context))
        self._root = key
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
        """Return the policy's question before the next choice; None if it asks no client.

        ``available`` and errors are those of :meth:`ask`.
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
            _check_among("answers", answers, question.clients.tolist(), "asked")
            features = self.config.latency.num_features
            told = _answer(answers, clients, asked, question, features)
            state = query.receive(state, jnp.asarray(clients), jnp.asarray(asked), told)
            key = keys.question_and_choice(keys.choice(self._key, self.round + 1))[1]
        elif answers is not None:
            raise ConfigError(
                f"answers: policy = {self.config.policy.name} asks nobody. Leave them out."
            )
        selected = self._policy.select(key, state, jnp.int32(self.round + 1), jnp.asarray(present))
        self._state = state
        self._asked = None
        self._available = present
        self.round += 1
        self._pending, _ = check_selected(selected, self.config.cohort_size)
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
        clients, weights = map(np.asarray, self._pending)
        slots = {int(clients[i]): int(i) for i in np.flatnonzero(weights > 0)}
        failed = failed or {}
        released_nothing = set(_numbers("idle", idle, self.config.num_clients))
        readings = {"loss": loss, "square_loss": square_loss, "update": update}
        reports = {"seconds": seconds, **readings, "failed": failed, "idle": released_nothing}
        for name, values in reports.items():
            _check_among(name, values or (), slots, f"chosen in round {self.round}")
        if both := (released_nothing | set(failed)) & set(seconds):
            raise ConfigError(
                f"failed, idle: client {min(both)} stands in seconds too, as one that answered; "
                "must be in one of them."
            )
        if self.reads_losses and seconds and loss is None and update is None:
            raise ConfigError(
                f"policy = {self.config.policy.name}: reads "
                f"{', '.join(self.config.policy.releases)}; tell it the loss or the update of each "
                "client too."
            )
        observation, reported = self._observation(slots, seconds, failed, readings)
        weights = np.where(reported, weights, 0.0).astype(np.float32)
        answered = Selection(jnp.asarray(clients), jnp.asarray(weights))
        self._state = self._policy.update(self._state, answered, observation)
        for client in slots:
            self.counts[client] += client not in released_nothing
        self._pending = None
        self._fastest = min([self._fastest, *map(float, seconds.values())])
        if self.round == _ROUNDS_TO_COMPARE and np.isfinite(self._fastest):
            warn_if_far(float(self.config.latency.min_latency), self._fastest)

    def _observation(
        self,
        slots: Mapping[int, int],
        seconds: Mapping[int, float],
        failed: Mapping[int, float],
        readings: Mapping[str, Mapping[int, Any] | None],
    ) -> tuple[Observation, NDArray[np.bool_]]:
        """Return what the policy observes, and bool [m], of which slots it learns anything.

        ``slots`` is the place in the cohort of each chosen client; the others are as in
        :meth:`tell`.
        """
        m = self.config.num_slots
        latency = np.ones(m, np.float32)
        reported = np.zeros(m, bool)
        received = np.zeros(m, bool)
        values = {
            "loss": np.ones(m, np.float32),
            "square_loss": np.ones(m, np.float32),
            "update": np.zeros((m, self._update_size), np.float32),
        }
        for client, took in {**seconds, **failed}.items():
            slot = slots[client]
            if not (isinstance(took, int | float | np.number) and np.isfinite(took) and took > 0):
                raise ConfigError(f"seconds[{client}] = {took}: must be finite and > 0.")
            latency[slot] = max(took, float(self.config.latency.min_latency))
            reported[slot] = True
            received[slot] = client in seconds
            for name in ("loss", "square_loss"):
                if not received[slot]:
                    values[name][slot] = np.nan
                elif (losses := readings[name]) is not None:
                    values[name][slot] = losses.get(client, np.nan)
            updates = readings["update"]
            if received[slot] and updates is not None and client in updates:
                values["update"][slot] = np.asarray(updates[client], np.float32)
        present = jnp.asarray(self._available)
        return Observation(latency, **values, received=received, available=present), reported  # type: ignore[arg-type]

    def save(self, path: str | pathlib.Path) -> None:
        """Write the state to a file, between a round's ``tell`` and the next ``ask``.

        Raises:
          ConfigError: while a round is open, or if the file cannot be written.
        """
        if self._pending is not None:
            raise ConfigError(f"round {self.round} is open: tell what came back of it, then save.")
        leaves = {f"state_{i}": np.asarray(x) for i, x in enumerate(jax.tree.leaves(self._state))}
        arrays: dict[str, Any] = {
            "config": np.asarray(config_file.dumps(self.config)),
            "key": np.asarray(jax.random.key_data(self._root)),
            "round": np.asarray(self.round),
            "counts": self.counts,
            "size": np.asarray(self._size),
            "update_size": np.asarray(self._update_size),
            **leaves,
        }
        try:
            with written(pathlib.Path(path)) as file:
                np.savez(file, **arrays)
        except OSError as error:
            raise ConfigError(f"{path}: cannot be written ({error.strerror}).") from None

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
        try:
            with open(path, "rb") as file, np.load(file, allow_pickle=False) as archive:
                arrays = dict(archive)
            text = str(arrays["config"])
            if config is None or config_file.dumps(config) != text:
                config = config_file.loads(text)
        except (OSError, KeyError, ValueError, EOFError, zipfile.BadZipFile) as error:
            raise ConfigError(f"{path}: is no saved selector ({error}).") from None
        selector = cls(
            config,
            jax.random.wrap_key_data(jnp.asarray(arrays["key"])),
            data_size=arrays["size"],
            update_size=int(arrays["update_size"]),
        )
        selector.round = int(arrays["round"])
        selector.counts = arrays["counts"]
        like, form = jax.tree.flatten(selector._state)
        leaves = [jnp.asarray(arrays[f"state_{i}"]) for i in range(len(like))]
        selector._state = jax.tree.unflatten(form, leaves)
        return selector

    def _check_told(self) -> None:
        if self._pending is not None:
            raise ConfigError(
                f"round {self.round} is open: tell what came back of it (an empty mapping if "
                "nothing did) before the next ask."
            )

    def _present(self, available: Iterable[int] | None) -> NDArray[np.bool_]:
        """Return who can be chosen, bool [K]."""
        present = np.full(self.config.num_clients, available is None)
        if available is not None:
            present[_numbers("available", available, self.config.num_clients)] = True
        spent = self._canonical.privacy.budget.exhausted(jnp.asarray(self.counts + 1))
        return present & ~np.asarray(spent)

    def _context(self) -> Context:
        """Return what the policy would know in a simulation of these clients."""
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
    """Return the policy with each of its functions compiled."""
    query = policy.query
    if query is not None:
        query = query._replace(ask=jax.jit(query.ask), receive=jax.jit(query.receive))
    return policy._replace(
        init=jax.jit(policy.init),
        select=jax.jit(policy.select),
        update=jax.jit(policy.update),
        query=query,
    )


def _numbers(name: str, clients: Iterable[int], num_clients: int) -> list[int]:
    """Return client numbers. Raises ConfigError for one that is no client."""
    each = list(clients)
    if each and not all(isinstance(k, int | np.integer) and not isinstance(k, bool) for k in each):
        raise ConfigError(
            f"{name}: must be numbers of clients, int; numpy.flatnonzero makes them of a mask."
        )
    for client in each:
        if not 0 <= client < num_clients:
            raise ConfigError(f"{name}: {client} is no client; they are 0 to {num_clients - 1}.")
    return [int(client) for client in each]


def _check_among(name: str, clients: Iterable[int], known: Collection[int], what: str) -> None:
    """Raise ConfigError for a client that is not among those that ``what`` names."""
    for client in clients:
        if int(client) not in known:
            those = ", ".join(map(str, known)) or "nobody"
            raise ConfigError(f"{name}: client {client} was not {what}, but {those}.")


def _answer(
    answers: Mapping[int, ArrayLike],
    clients: NDArray[np.int32],
    asked: NDArray[np.bool_],
    question: Question,
    num_features: int,
) -> Answer:
    """Return what the policy receives from the asked of its slots ``clients`` [d]."""
    loss = np.ones(len(clients), np.float32)
    features = np.ones((len(clients), num_features), np.float32)
    reported = np.ones(len(clients), bool)
    wanted = loss if question.wants == "loss" else features
    for place in np.flatnonzero(asked):
        client = int(clients[place])
        if client in answers:
            wanted[place] = _finite(client, answers[client], wanted.shape[1:], question.wants)
        elif question.wants == "loss":
            loss[place], reported[place] = np.nan, False
        else:
            raise ConfigError(
                f"answers: client {client} is missing, and the policy asked for its features. "
                "Leave it out of `available` if it does not answer."
            )
    return Answer(loss, features, reported)  # type: ignore[arg-type]


def _finite(client: int, reply: ArrayLike, shape: tuple[int, ...], wants: str) -> NDArray[Any]:
    try:
        values = np.asarray(reply, np.float32)
    except (TypeError, ValueError):
        values = np.asarray(np.nan)
    if values.shape != shape or not np.isfinite(values).all():
        rule = f"must be finite, of shape {shape} ({wants})."
        raise ConfigError(f"answers[{client}] = {reply!r}: {rule}")
    return values


def _sizes(data_size: ArrayLike | None, num_clients: int) -> NDArray[np.float32]:
    """Return samples of each client, float [K]. Raises ConfigError if not [K] and > 0."""
    if data_size is None:
        return np.ones(num_clients, np.float32)
    size = np.asarray(data_size, np.float32)
    if size.shape != (num_clients,) or not (np.isfinite(size) & (size > 0)).all():
        raise ConfigError(
            f"data_size = {np.array2string(size, threshold=8)}: must be [{num_clients}], samples "
            "> 0 of each client."
        )
    return size
