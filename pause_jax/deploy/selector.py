"""A policy for any server: ask it for clients, tell it what came back.

::

    selector = Selector(config, jax.random.key(0))
    choice = selector.ask(available)          # clients, weights, epsilon of each
    selector.save("selector.npz")             # before any client hears of the round
    ...                                       # the server's round
    selector.tell({client: seconds, ...})     # of those that answered

A client is charged when it is chosen. A server that was killed within a round loads what it saved,
tells what it knows of the open round (an empty mapping if nothing), and asks for the next.

A policy that asks some clients before it chooses gets their answers first::

    question = selector.question(available)   # clients, and what they are asked for
    choice = selector.ask(available, answers={client: loss, ...})

Fed with the latencies of a simulation it chooses what ``simulate`` chooses.
"""

from __future__ import annotations

import pathlib
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import ArrayLike, NDArray

from pause_jax.bandit.protocol import Observation, Selection
from pause_jax.base.archive import load_arrays, save_arrays
from pause_jax.base.checks import float32, float32_number
from pause_jax.base.client_ids import listed
from pause_jax.base.source_file import check_regular, written
from pause_jax.base.spelling import shown
from pause_jax.base.struct import ConfigError
from pause_jax.config import SimConfig, canonical, config_file, loaded, validate, with_budgets
from pause_jax.learning import Dataset, Learning
from pause_jax.learning.learner import update_size as update_size_of
from pause_jax.learning.partition import Partition
from pause_jax.policies import Answer, Context, Policy, check_selected, policy_of, readings
from pause_jax.rng import keys
from pause_jax.run.preflight import check_one_key, client_ids, prepare, warn_if_far
from pause_jax.run.setup import context_of, learner_of
from pause_jax.world.latency import Work

__all__ = ["Choice", "Question", "Selector"]

# After this number of rounds the reported seconds are compared with tau_min.
_ROUNDS_TO_COMPARE = 10
# A loss above it has a square that float32 cannot hold.
MOST_LOSS = 1e19
# Releases that a client may have, by its own ledger too: counts are int32.
MOST_RELEASES = 2**30

# An id of a client, text or int. A mapping's keys are invariant: "int | str" would refuse ints.
Client = Any


class Choice(NamedTuple):
    """The clients to train in a round.

    Attributes:
      round: its number, from 1 on.
      clients: ids [n] of the chosen clients, n <= m.
      weights: float [n], aggregation weights; they sum to one.
      epsilon: float [n], budget of each client's release in this round, in ``epsilon_unit``;
        infinite without privacy.
    """

    round: int
    clients: NDArray[Any]
    weights: NDArray[np.float32]
    epsilon: NDArray[np.float32]


class Question(NamedTuple):
    """A policy's question before it chooses.

    Attributes:
      round: that it is about.
      clients: ids [n] of the asked clients.
      wants: ``loss``, the mean loss of the global model on the client's data, which is not covered
        by the mechanism; or ``features``, what the client knows of its coming round
        (``Latency.features``).
      batch_size: samples of a mini-batch that the loss is computed on; None for all.
    """

    round: int
    clients: NDArray[Any]
    wants: str
    batch_size: int | None


class _Asked(NamedTuple):
    """An open question, with the policy's slots [d] and which of them are asked."""

    question: Question
    clients: NDArray[np.int32]
    asked: NDArray[np.bool_]
    present: NDArray[np.bool_]


class Selector:
    """A policy and its state, for any server. :func:`~pause_jax.analysis.ledger.ledger` reads it.

    Attributes:
      config: the config that it was made from.
      client_ids: ids of clients 0, ..., K - 1, by which it takes and returns clients.
      round: rounds that were asked for.
      counts: int [K], rounds in which each client may have released something, an open one too.
      queried: int [K], questions that each client answered.
      budget: float [K], eps_bar of each client.
      num_parameters: entries of an update; 0 without learning.
    """

    def __init__(
        self,
        config: SimConfig,
        key: Array,
        data: Dataset | None = None,
        *,
        data_size: ArrayLike | None = None,
        quality: ArrayLike | None = None,
        update_size: int | None = None,
        ids: Sequence[Client] | None = None,
    ):
        """Start before round 1.

        Args:
          config: its policy, reward, mechanism with the budget, sizes, ``when_spent``, and its
            latency model for ``min_latency`` and whatever the policy assumes known.
          key: typed; that of a simulation gives its choices.
          data: as in ``simulate``; not read if ``data_size`` is given.
          data_size: samples of each client [K]; by default those of the config's data, or equal
            ones without learning.
          quality: of each client's data [K], > 0 (BSFL's are at most 1); by default that of the
            config's data with the sizes, or 1.
          update_size: entries of an update, for a policy that reads updates, or a latency model
            that is to take the bytes of a round from it; by default the config's, if its data is
            loaded, or 0.
          ids: of the clients [K]; by default those of the config's data and files, or 0 .. K - 1.

        Raises:
          ConfigError: if the config or its data cannot run, or sizes or ids do not fit.
        """
        if isinstance(key, jax.core.Tracer):
            raise ConfigError("key is traced: a Selector has a state. Make it outside of jit.")
        check_one_key(key, "Selector", "Make one selector for each.")
        validate(config)
        if config.overlaps:
            raise ConfigError(
                f"clock = {config.clock.name!r}: a Selector chooses round by round. Set clock = "
                "Synchronous()."
            )
        self.config = config = loaded(config)
        streams = keys.streams(key)
        loaded_data = None
        if data_size is None and config.learning is not None:
            partition, size_of_update, loaded_data = _from_data(config, data, streams)
            data_size, quality = partition.size, partition.quality
            update_size = size_of_update if update_size is None else update_size
        self._size = _of_each("data_size", data_size, config.num_clients)
        self._quality = _of_each("quality", quality, config.num_clients)
        self.num_parameters = update_size or 0
        known = client_ids(config, loaded_data) if ids is None else tuple(ids)
        self.client_ids = _checked_ids(known, config.num_clients)
        self._number = {client: k for k, client in enumerate(self.client_ids)}
        self._canonical = with_budgets(canonical(config), keys.budgets(streams.world))
        context = self._context()
        warn_if_far(context.min_latency, jnp.min(context.expected_latency))
        self._policy = _compiled(policy_of(self._canonical.policy, context))
        self._root = key
        self._key = streams.policy
        self._state = self._policy.init()
        self._pending: Selection | None = None
        self._available = np.ones(config.num_clients, bool)
        self._asked: _Asked | None = None
        self.round = 0
        self.counts = np.zeros(config.num_clients, np.int32)
        self.queried = np.zeros(config.num_clients, np.int32)
        self._fastest = np.inf
        budget = self._canonical.privacy.budget
        self._epsilon = jax.jit(budget.epsilon)
        self.budget = np.broadcast_to(np.asarray(budget.total()), self.counts.shape)

    @property
    def is_open(self) -> bool:
        """Whether a round was asked for and not told yet."""
        return self._pending is not None

    @property
    def unnoised(self) -> tuple[str, ...]:
        """What the policy reads of clients without noise, besides sizes and latencies."""
        return tuple(self.config.policy.releases)

    @property
    def epsilon_unit(self) -> str:
        """What an epsilon protects: ``coordinate``, ``update`` or ``none``."""
        return self.config.privacy.unit

    @property
    def reads(self) -> frozenset[str]:
        """Which of ``loss``, ``square_loss`` and ``update`` the policy needs of who answered.

        Updates without entries, those of a config without learning, need not be told.
        """
        told = {"loss", "square_loss", *["update"] * (self.num_parameters > 0)}
        return frozenset(told & set(readings(self.config.policy)))

    @property
    def spent(self) -> NDArray[np.float32]:
        """Budget that each client has spent, float [K]."""
        return np.asarray(self._canonical.privacy.budget.spent(jnp.asarray(self.counts)))

    def question(self, available: Iterable[Client] | None = None) -> Question | None:
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
        ids = self._ids_of(clients[asked])
        question = Question(self.round + 1, ids, query.wants, query.batch_size)
        self._asked = _Asked(question, clients, asked, np.asarray(present))
        return question

    def ask(
        self,
        available: Iterable[Client] | None = None,
        answers: Mapping[Client, ArrayLike] | None = None,
    ) -> Choice:
        """Choose the clients of the next round, and charge each with a release.

        Save the selector before any of them hears of the round: a server that is killed then never
        counts less than its clients released.

        Args:
          available: ids of the clients that can be chosen; all by default. Clients whose budget is
            spent are left out in any case.
          answers: to the policy's :meth:`question`, of each asked client: its loss, or its features
            [F]. Of a client without a loss the policy keeps what it knows.

        Raises:
          ConfigError: for ids that are no clients, before the round before was told, or for answers
            that do not fit the question.
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
            told = self._by_number("answers", answers, clients[asked].tolist(), "asked")
            answer = self._answer(told, question.wants, clients, asked)
            state = query.receive(state, jnp.asarray(clients), jnp.asarray(asked), answer)
            self.queried[list(told)] += 1
            key = keys.question_and_choice(key)[1]
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
        self.counts[clients] += 1
        epsilon = np.asarray(self._epsilon(self.counts))[clients]
        weights = np.asarray(self._pending.weights)[active]
        return Choice(self.round, self._ids_of(clients), weights, epsilon)

    def tell(
        self,
        seconds: Mapping[Client, float],
        *,
        loss: Mapping[Client, float] | None = None,
        square_loss: Mapping[Client, float] | None = None,
        update: Mapping[Client, ArrayLike] | None = None,
        failed: Mapping[Client, float] | None = None,
        idle: Iterable[Client] = (),
    ) -> None:
        """Report what came back of the round.

        Args:
          seconds: that each client took which answered.
          loss: mean training loss of each, for a policy that reads losses. A loss that is not
            finite, or whose square float32 cannot hold, is no reading; of a client without a
            reading the policy learns the seconds alone.
          square_loss: mean squared loss of each; by default the square of its loss.
          update: the released update of each, [d] with d = ``num_parameters``, for a policy that
            reads updates.
          failed: seconds that the server waited in vain for each that did not answer: the policy
            learns that it is as slow. Of a chosen client that stands neither here nor in
            ``seconds`` it learns nothing, and may choose it again at once.
          idle: chosen clients that certainly released nothing: they get the charge of this round
            back. All other chosen ones count as having released, also those that failed.

        Raises:
          ConfigError: for clients that were not chosen, seconds that are none, an update of another
            shape, or a reading that the policy needs and that is missing; the round stays open.
        """
        if self._pending is None:
            raise ConfigError("nothing was asked: call ask first, then tell, once a round.")
        clients, weights = map(np.asarray, self._pending)
        slots = {int(clients[i]): int(i) for i in np.flatnonzero(weights > 0)}

        def chosen(name: str, values: Any) -> dict[int, Any]:
            return self._by_number(name, values or (), slots, f"chosen in round {self.round}")

        took, waited = chosen("seconds", seconds), chosen("failed", failed)
        released_nothing = chosen("idle", idle)
        given = {"loss": loss, "square_loss": square_loss, "update": update}
        readings = {name: chosen(name, values) for name, values in given.items()}
        if both := (released_nothing.keys() | waited.keys()) & took.keys():
            raise ConfigError(
                f"failed, idle: client {self.client_ids[min(both)]} stands in seconds too, as one "
                "that answered; must be in one of them."
            )
        missing = self.reads - {name for name, values in given.items() if values is not None}
        if took and missing - ({"square_loss"} if loss is not None else set()):
            raise ConfigError(
                f"policy = {self.config.policy.name}: reads "
                f"{', '.join(self.config.policy.releases)}; tell it the "
                f"{'update' if 'update' in missing else 'loss'} of each client too."
            )
        observation, reported = self._observation(slots, took, waited, readings)
        weights = np.where(reported, weights, 0.0).astype(np.float32)
        answered = Selection(jnp.asarray(clients), jnp.asarray(weights))
        self._state = self._policy.update(self._state, answered, observation)
        self.counts[list(released_nothing)] -= 1
        self._pending = None
        self._fastest = min([self._fastest, *map(float, took.values())])
        if self.round == _ROUNDS_TO_COMPARE and np.isfinite(self._fastest):
            warn_if_far(float(self.config.latency.min_latency), self._fastest)

    def _observation(
        self,
        slots: Mapping[int, int],
        took: Mapping[int, float],
        waited: Mapping[int, float],
        readings: Mapping[str, Mapping[int, Any]],
    ) -> tuple[Observation, NDArray[np.bool_]]:
        """Return what the policy observes, and bool [m], of which slots it learns anything.

        ``slots`` is the place in the cohort of each chosen client; the others are as in
        :meth:`tell`, by number.
        """
        m = self.config.num_slots
        latency = np.ones(m, np.float32)
        reported = np.zeros(m, bool)
        received = np.zeros(m, bool)
        values = {
            "loss": np.full(m, np.nan, np.float32),
            "square_loss": np.full(m, np.nan, np.float32),
            "update": np.zeros((m, self.num_parameters), np.float32),
        }
        for name, all_seconds in (("seconds", took), ("failed", waited)):
            for client, each in all_seconds.items():
                value = float32_number(each)
                if not 0 < value < np.inf:
                    raise ConfigError(
                        f"{name}[{self.client_ids[client]!r}] = {shown(each)}: must be finite and "
                        "> 0, in seconds."
                    )
                slot = slots[client]
                latency[slot] = np.maximum(value, self.config.latency.min_latency)
                reported[slot] = True
                received[slot] = name == "seconds"
        for client, slot in slots.items():
            if not reported[slot]:
                continue
            loss = float32_number(readings["loss"].get(client))
            square = float32_number(readings["square_loss"].get(client, loss * loss))
            usable = {
                "loss": abs(loss) <= MOST_LOSS,
                "square_loss": 0 <= square < np.inf,
                "update": client in readings["update"],
            }
            received[slot] &= all(usable[name] for name in self.reads)
            if received[slot]:
                values["loss"][slot] = loss
                values["square_loss"][slot] = square
                if usable["update"]:
                    update = readings["update"][client]
                    values["update"][slot] = self._finite("update", client, update)
        present = jnp.asarray(self._available)
        return Observation(latency, **values, received=received, available=present), reported  # type: ignore[arg-type]

    def save(self, path: str | pathlib.Path) -> None:
        """Write the state to a file, also of an open round; whole, or the file is as before.

        Raises:
          ConfigError: if the file cannot be written.
        """
        leaves = {f"state_{i}": np.asarray(x) for i, x in enumerate(jax.tree.leaves(self._state))}
        arrays: dict[str, Any] = {
            "config": np.asarray(config_file.dumps(self.config)),
            "key": np.asarray(jax.random.key_data(self._root)),
            "key_impl": np.asarray(str(jax.random.key_impl(self._root))),
            "ids": np.asarray(self.client_ids),
            "data_size": self._size,
            "quality": self._quality,
            "update_size": np.asarray(self.num_parameters),
            "round": np.asarray(self.round),
            "counts": self.counts,
            "queried": self.queried,
            "available": self._available,
            **leaves,
        }
        if self._pending is not None:
            arrays["pending_clients"], arrays["pending_weights"] = map(np.asarray, self._pending)
        try:
            with written(pathlib.Path(path)) as file:
                save_arrays(file, arrays)
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
          ConfigError: if it cannot be read, or is damaged; import a custom policy first.
        """
        check_regular("selector", path)
        try:
            arrays = load_arrays(pathlib.Path(path).read_bytes())
            text = str(arrays["config"])
            if config is None or config_file.dumps(config) != text:
                config = config_file.loads(text)
            data, kind = jnp.asarray(arrays["key"]), str(arrays["key_impl"])
            selector = cls(
                config,
                jax.random.wrap_key_data(data, impl=kind),
                data_size=arrays["data_size"],
                quality=arrays["quality"],
                update_size=int(arrays["update_size"]),
                ids=arrays["ids"].tolist(),
            )
            selector._restore(arrays)
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from None
        except (OSError, LookupError, TypeError, ValueError) as error:
            raise ConfigError(f"{path}: is no saved selector ({error!r}).") from None
        return selector

    def _restore(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Take the state from arrays of a file, whose policy may have had another form."""
        self.round = int(arrays["round"])
        self.counts = arrays["counts"]
        self.queried = arrays["queried"]
        self._available = arrays["available"]
        like, form = jax.tree.flatten(self._state)
        leaves = [jnp.asarray(arrays[f"state_{i}"]) for i in range(len(like))]
        kinds = [[(leaf.dtype, leaf.shape) for leaf in each] for each in (leaves, like)]
        if kinds[0] != kinds[1]:
            raise ConfigError("is of another version: the state of its policy has another form.")
        self._state = jax.tree.unflatten(form, leaves)
        if "pending_clients" in arrays:
            clients, weights = arrays["pending_clients"], arrays["pending_weights"]
            self._pending = Selection(jnp.asarray(clients), jnp.asarray(weights))

    def _check_told(self) -> None:
        if self._pending is not None:
            raise ConfigError(
                f"round {self.round} is open: tell what came back of it (an empty mapping if "
                "nothing did) before the next ask."
            )

    def _present(self, available: Iterable[Client] | None) -> NDArray[np.bool_]:
        """Return who can be chosen, bool [K]."""
        present = np.full(self.config.num_clients, available is None)
        if available is not None:
            present[[self._number_of("available", client) for client in available]] = True
        spent = self._canonical.privacy.budget.exhausted(jnp.asarray(self.counts + 1))
        return present & ~np.asarray(spent)

    def _ids_of(self, clients: NDArray[np.int32]) -> NDArray[Any]:
        return np.asarray(self.client_ids)[clients]

    def _number_of(self, name: str, client: Any) -> int:
        """Return the number of a client. Raises ConfigError for what is no client's id."""
        is_id = isinstance(client, Hashable) and not isinstance(client, bool | np.bool_)
        if not is_id or client not in self._number:
            those = f"{self.client_ids[0]!r} to {self.client_ids[-1]!r}"
            if isinstance(self.client_ids[0], str):
                those = listed(self.client_ids)
            raise ConfigError(
                f"{name}: {shown(client)} is no client; their ids are {those}. Of a mask "
                "numpy.flatnonzero makes numbers."
            )
        return self._number[client]

    def _by_number(self, name: str, values: Any, known: Collection[int], what: str) -> Any:
        """Return the values by the client's number, of clients among those that ``what`` names."""
        by_number = {}
        for client in values:
            number = self._number_of(name, client)
            if number not in known:
                those = ", ".join(str(self.client_ids[k]) for k in known) or "nobody"
                raise ConfigError(f"{name}: client {client} was not {what}, but {those}.")
            by_number[number] = values[client] if isinstance(values, Mapping) else None
        return by_number

    def _answer(
        self,
        told: Mapping[int, ArrayLike],
        wants: str,
        clients: NDArray[np.int32],
        asked: NDArray[np.bool_],
    ) -> Answer:
        """Return what the policy receives from the asked of its slots ``clients`` [d]."""
        loss = np.ones(len(clients), np.float32)
        features = np.ones((len(clients), self.config.latency.num_features), np.float32)
        reported = np.ones(len(clients), bool)
        for place in np.flatnonzero(asked):
            client = int(clients[place])
            if client not in told:
                if wants == "features":
                    raise ConfigError(
                        f"answers: client {self.client_ids[client]} is missing, and the policy "
                        "asked for its features. Leave it out of `available` if it does not answer."
                    )
                loss[place], reported[place] = np.nan, False
            elif wants == "loss":
                loss[place] = self._finite("answers", client, told[client], ())
            else:
                shape = features.shape[1:]
                features[place] = self._finite("answers", client, told[client], shape)
        return Answer(loss, features, reported)  # type: ignore[arg-type]

    def _finite(
        self, name: str, client: int, given: ArrayLike, shape: tuple[int, ...] | None = None
    ) -> NDArray[np.float32]:
        """Return finite float32 numbers of a shape, by default that of an update."""
        values = float32(given)
        shape = (self.num_parameters,) if shape is None else shape
        if values.shape != shape or not np.isfinite(values).all():
            raise ConfigError(
                f"{name}[{self.client_ids[client]!r}] = {shown(given)}: must be finite float32, of "
                f"shape {shape}."
            )
        return values

    def _context(self) -> Context:
        """Return what the policy would know in a simulation of these clients."""
        config, size = self._canonical, jnp.asarray(self._size)
        local, learning = size, config.learning
        if type(learning) is Learning:
            local = jnp.minimum(size, learning.max_steps * learning.batch_size)
        model_bytes = 4.0 * self.num_parameters
        model, _ = config.latency.with_work(Work(model_bytes, model_bytes, local))
        nowhere = jnp.zeros(0, jnp.int32)
        return context_of(
            config,
            model,
            data_size=size,
            local_samples=local,
            share=Partition(nowhere, nowhere, size, jnp.asarray(self._quality)).share,
            update_size=self.num_parameters,
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


def _from_data(
    config: SimConfig, data: Dataset | None, streams: keys.Streams
) -> tuple[Partition, int, Any]:
    """Return the partition of the data, entries of an update, and the loaded data."""
    try:
        config, loaded_data = prepare(config, data)
    except ConfigError as error:
        raise ConfigError(f"{error} Or give data_size, the samples of each client.") from None
    learner = learner_of(config, loaded_data)
    partition = jax.jit(lambda streams: learner.init(streams).partition)(streams)
    return partition, update_size_of(jax.eval_shape(learner.init, streams)), loaded_data


def _checked_ids(ids: Sequence[Client], num_clients: int) -> tuple[Client, ...]:
    """Return the ids [K], by default 0 .. K - 1. Raises ConfigError if they do not fit."""
    ids = tuple(ids) or tuple(range(num_clients))
    kinds = {type(client) for client in ids}
    named = kinds == {int} or (kinds == {str} and "".join(ids).isprintable())
    if len(set(ids)) != num_clients or len(ids) != num_clients or not named:
        raise ConfigError(
            f"ids = {listed(tuple(map(str, ids)))}: must be {num_clients} different printable "
            "texts, or different whole numbers."
        )
    return ids


def _of_each(name: str, values: ArrayLike | None, num_clients: int) -> NDArray[np.float32]:
    """Return a number > 0 of each client, float [K], by default 1."""
    each = np.ones(num_clients, np.float32) if values is None else float32(values)
    if each.shape != (num_clients,) or not (np.isfinite(each) & (each > 0)).all():
        raise ConfigError(
            f"{name} = {np.array2string(each, threshold=8)}: must be [{num_clients}], a number > 0 "
            "of each client."
        )
    return each
