"""Selection policy that makes the same choices on a real server as in ``simulate``.

Example of a server round (``question`` is needed only for a policy that queries clients)::

    question = selector.question(available)   # None if the policy sends no query
    choice = selector.ask(available, answers={client: loss, ...})
    selector.save("selector.npz")             # before contacting any client
    selector.tell({client: seconds, ...})     # latencies of the clients that answered

After a crash during a round, load the saved selector and pass the known results to ``tell``.
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
from pause_jax.base.source_file import check_regular, os_errors_as, written
from pause_jax.base.spelling import listed, shown
from pause_jax.base.struct import ConfigError
from pause_jax.config import SimConfig, canonical, config_file, loaded, validate, with_budgets
from pause_jax.learning import Dataset, Learning
from pause_jax.learning.learner import update_size as update_size_of
from pause_jax.learning.partition import Partition
from pause_jax.policies import Answer, Context, Query, check_selected, readings
from pause_jax.rng import keys
from pause_jax.run.preflight import check_one_key, client_ids, prepare, warn_if_far
from pause_jax.run.setup import context_of, latency_by_work, learner_of, policy_for

__all__ = ["Choice", "Question", "Selector"]

# Maximum absolute value of a loss. The square of a loss must not overflow float32.
MOST_LOSS = 1e19
# Maximum number of releases that a client may report. Larger counts could overflow int32.
MOST_RELEASES = 2**30

# Client id, typed as Any because a Mapping[int, float] is not a Mapping[int | str, float].
Client = Any


class Choice(NamedTuple):
    """Clients chosen to train in a round.

    Attributes:
      round: round number, starting at 1.
      clients: ids [n] of the chosen clients, n <= m.
      weights: float [n], aggregation weights, which sum to one.
      epsilon: float [n], epsilon of each client's release in this round, for the privacy unit
        ``epsilon_unit``; infinite if the budget is unlimited.
    """

    round: int
    clients: NDArray[Any]
    weights: NDArray[np.float32]
    epsilon: NDArray[np.float32]


class Question(NamedTuple):
    """Query that a policy sends to clients before it chooses a cohort.

    Attributes:
      round: number of the round whose cohort the policy will choose.
      clients: ids [n] of the clients to query.
      wants: ``loss`` (the global model's mean loss on the client's data, sent without noise) or
        ``features`` (the latency model's features for the client's next round).
      batch_size: mini-batch size for the loss; None for all samples.
    """

    round: int
    clients: NDArray[Any]
    wants: str
    batch_size: int | None


class Selector:
    """Policy and its state, for use by a real server.

    :func:`~pause_jax.analysis.ledger.ledger` returns the privacy ledger of a selector.

    Attributes:
      config: simulation config, with its files loaded.
      client_ids: ids of clients 0, ..., K - 1. Methods identify clients by these ids.
      round: number of rounds started with :meth:`ask`, including any open round.
      counts: int [K], number of releases charged to each client, including any open round.
      queried: int [K], number of queries that each client has answered.
      budget: float [K], total epsilon (eps_bar) of each client; infinite if unlimited.
      num_parameters: number of entries in an update; 0 if unknown.
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
        """Initialize the policy for round 1.

        Args:
          config: config with the policy, reward, mechanism, budget, sizes and latency model. The
            latency model provides ``min_latency`` and any latencies or speeds that the policy
            assumes to be known. ``when_spent`` is ignored (see ``available`` in :meth:`ask`).
          key: typed PRNG key. A simulation with the same key and feedback makes the same choices.
          data: data set, as in ``simulate``. If ``data_size`` is set, no data or model is read.
          data_size: number of samples per client [K] (default: from the config's data, or 1
            if ``config.learning`` is None).
          quality: data quality per client [K], > 0 and, in BSFL, at most 1 (default: 1).
            Ignored if the sizes come from the config's data.
          update_size: number of entries in an update, for a policy that reads updates or a latency
            model that depends on the model's size (default: from the config's model, or 0).
          ids: client ids [K] (default: the ids in the config's data and files, or 0 .. K - 1).

        Raises:
          ConfigError: if an argument is invalid, or sizes or ids do not match the config.
        """
        if isinstance(key, jax.core.Tracer):
            raise ConfigError("key is traced: must be concrete. Create the Selector outside jit.")
        check_one_key(key, "Selector", "Create one Selector per key.")
        validate(config)
        if config.overlaps:
            raise ConfigError(
                f"clock = {config.clock.name!r}: a Selector needs rounds that do not overlap. Set "
                "clock = Synchronous()."
            )
        self.config = config = loaded(config)
        streams = keys.streams(key)
        loaded_data = None
        if data_size is None and config.learning is not None:
            partition, size_of_update, loaded_data = _from_data(config, data, streams)
            data_size, quality = partition.size, partition.quality
            update_size = size_of_update if update_size is None else update_size
        self._size = _per_client("data_size", data_size, config.num_clients)
        self._quality = _per_client("quality", quality, config.num_clients)
        self.num_parameters = update_size or 0
        known = client_ids(config, loaded_data) if ids is None else tuple(ids)
        self.client_ids = _checked_ids(known, config.num_clients)
        self._number = {client: k for k, client in enumerate(self.client_ids)}
        self._canonical = with_budgets(canonical(config), keys.budgets(streams.world))
        context = self._context()
        warn_if_far(context.min_latency, jnp.min(context.expected_latency))
        policy = policy_for(self._canonical, context, streams.world)
        self._policy = jax.tree.map(
            lambda part: jax.jit(part) if callable(part) else part, policy, is_leaf=callable
        )
        self._root = key
        self._key = streams.policy
        self._state = self._policy.init()
        self._pending: Selection | None = None
        self._available = np.ones(config.num_clients, bool)
        self.round = 0
        self.counts = np.zeros(config.num_clients, np.int32)
        self.queried = np.zeros(config.num_clients, np.int32)
        budget = self._canonical.privacy.budget
        self._epsilon = jax.jit(budget.epsilon)
        self.budget = np.broadcast_to(np.asarray(budget.total()), self.counts.shape)

    @property
    def is_open(self) -> bool:
        """Whether a round is open (:meth:`ask` was called, but :meth:`tell` was not)."""
        return self._pending is not None

    @property
    def unnoised(self) -> tuple[str, ...]:
        """Client data, other than sizes and latencies, that the policy receives without noise."""
        return tuple(self.config.policy.releases)

    @property
    def epsilon_unit(self) -> str:
        """Privacy unit of epsilon (``coordinate``, ``update`` or ``none``)."""
        return self.config.privacy.unit

    @property
    def reads(self) -> frozenset[str]:
        """Arguments of ``tell`` that the policy uses (``loss``, ``square_loss``, ``update``)."""
        told = {"loss", "square_loss", *["update"] * (self.num_parameters > 0)}
        return frozenset(told & set(readings(self.config.policy)))

    @property
    def spent(self) -> NDArray[np.float32]:
        """Epsilon that each client has spent, float [K], for the privacy unit ``epsilon_unit``."""
        return np.asarray(self._canonical.privacy.budget.spent(jnp.asarray(self.counts)))

    def question(self, available: Iterable[Client] | None = None) -> Question | None:
        """Return the policy's query for the next round, or None if the policy sends none.

        ``available`` and the errors are as in :meth:`ask`.
        """
        self._check_told()
        query = self._policy.query
        if query is None:
            return None
        clients, asked = self._asked(query, self._present(available))
        ids = self._ids_of(clients[asked])
        return Question(self.round + 1, ids, query.wants, query.batch_size)

    def _asked(
        self, query: Query, present: NDArray[np.bool_]
    ) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
        """Return each slot's client, int [d], and a mask of the slots to query, bool [d]."""
        key = keys.question_and_choice(keys.choice(self._key, self.round + 1))[0]
        next_round = jnp.int32(self.round + 1)
        clients, asked = query.ask(key, self._state, next_round, jnp.asarray(present))
        return np.asarray(clients), np.asarray(asked)

    def ask(
        self,
        available: Iterable[Client] | None = None,
        answers: Mapping[Client, ArrayLike] | None = None,
    ) -> Choice:
        """Choose the clients for the next round, and charge each for one release.

        Save the selector before contacting any client. Even if the server is then killed, the
        saved selector never counts fewer releases than the clients have made.

        Args:
          available: ids of the clients that can be chosen (default: all). Clients with a spent
            budget are always excluded.
          answers: each queried client's answer to :meth:`question` (a loss, or features [F]). If a
            loss is missing, the policy learns nothing about the client. Features are required.

        Raises:
          ConfigError: if an id is unknown, the previous round is open, or ``answers`` is invalid.
        """
        self._check_told()
        present = self._present(available)
        state, key = self._state, keys.choice(self._key, self.round + 1)
        query = self._policy.query
        if query is not None:
            if answers is None:
                raise ConfigError(
                    f"policy = {self.config.policy.name}: queries clients before it chooses a "
                    "cohort. Call question(), then pass the clients' answers to ask()."
                )
            clients, asked = self._asked(query, present)
            told = self._by_number("answers", answers, clients[asked].tolist(), "asked")
            answer = self._answer(told, query.wants, clients, asked)
            state = query.receive(state, jnp.asarray(clients), jnp.asarray(asked), answer)
            self.queried[list(told)] += 1
            key = keys.question_and_choice(key)[1]
        elif answers is not None:
            raise ConfigError(
                f"answers: policy = {self.config.policy.name} queries no clients. Remove answers."
            )
        selected = self._policy.select(key, state, jnp.int32(self.round + 1), jnp.asarray(present))
        self._state = state
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
        """Report the results of the open round.

        Args:
          seconds: latency of each client that answered, in seconds.
          loss: mean training loss of each client, for a policy that reads losses. If a loss is
            missing, not finite, or so large that its square may overflow, the policy learns only
            the client's latency.
          square_loss: mean squared loss of each client (default: the square of its loss).
          update: each client's released update [num_parameters], for a policy that reads updates.
          failed: seconds that the server waited for each client that did not answer. The policy
            treats these times as latencies. The policy learns nothing about a chosen client that
            is in neither ``seconds`` nor ``failed``.
          idle: chosen clients known to have released nothing, whose charge for this round is
            refunded. All other chosen clients remain charged, including those that failed.

        Raises:
          ConfigError: if no round is open, a client was not chosen, a client in ``seconds`` is also
            in ``failed`` or ``idle``, a latency is not finite and positive, an update is not finite
            or has the wrong shape, or a required argument is None. The round then stays open.
        """
        if self._pending is None:
            raise ConfigError("no round is open: call ask before tell in each round.")
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
                f"failed, idle: client {self.client_ids[min(both)]} is also in seconds. If the "
                "client answered, remove it from failed and idle."
            )
        missing = self.reads - {name for name, values in given.items() if values is not None}
        if took and missing - ({"square_loss"} if loss is not None else set()):
            raise ConfigError(
                f"policy = {self.config.policy.name}: reads "
                f"{', '.join(self.config.policy.releases)}. Pass the "
                f"{'update' if 'update' in missing else 'loss'} of each client to tell()."
            )
        observation, reported = self._observation(slots, took, waited, readings)
        weights = np.where(reported, weights, 0.0).astype(np.float32)
        answered = Selection(jnp.asarray(clients), jnp.asarray(weights))
        self._state = self._policy.update(self._state, answered, observation)
        self.counts[list(released_nothing)] -= 1
        self._pending = None

    def _observation(
        self,
        slots: Mapping[int, int],
        took: dict[int, float],
        waited: dict[int, float],
        readings: Mapping[str, Mapping[int, Any]],
    ) -> tuple[Observation, NDArray[np.bool_]]:
        """Return the policy's observation, and a mask of slots with a known latency, bool [m].

        ``slots`` maps each chosen client to its slot. The other arguments are those of
        :meth:`tell`, keyed by client number.
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
        for client, each in (waited | took).items():
            name = "seconds" if client in took else "failed"
            value = float32_number(each)
            if not 0 < value < np.inf:
                raise ConfigError(
                    f"{name}[{self.client_ids[client]!r}] = {shown(each)}: must be finite and > 0, "
                    "in seconds."
                )
            slot = slots[client]
            latency[slot] = np.maximum(value, self.config.latency.min_latency)
            reported[slot] = True
            loss = float32_number(readings["loss"].get(client))
            square = float32_number(readings["square_loss"].get(client, loss * loss))
            usable = {
                "loss": abs(loss) <= MOST_LOSS,
                "square_loss": 0 <= square < np.inf,
                "update": client in readings["update"],
            }
            received[slot] = name == "seconds" and all(usable[reading] for reading in self.reads)
            if received[slot]:
                values["loss"][slot] = loss
                values["square_loss"][slot] = square
                if usable["update"]:
                    update = readings["update"][client]
                    shape = (self.num_parameters,)
                    values["update"][slot] = self._finite("update", client, update, shape)
        present = jnp.asarray(self._available)
        return Observation(latency, **values, received=received, available=present), reported  # type: ignore[arg-type]

    def save(self, path: str | pathlib.Path) -> None:
        """Atomically save the state and any open round, or raise ConfigError if writing fails."""
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
        message = f"{path}: cannot be written"
        with os_errors_as(message), written(pathlib.Path(path)) as file:
            save_arrays(file, arrays)

    @classmethod
    def load(cls, path: str | pathlib.Path, config: SimConfig | None = None) -> Self:
        """Load a saved selector.

        Args:
          path: file written by :meth:`save`.
          config: the selector's config, required if it contains objects that a file cannot
            describe, such as a model. A config that differs from the saved one is ignored.

        Raises:
          ConfigError: if the file is unreadable or outdated, or if its custom policy is not loaded.
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
            raise ConfigError(f"{path}: is not a saved selector ({error!r}).") from None
        return selector

    def _restore(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Restore saved arrays. Raise ConfigError if the policy state's structure has changed."""
        self.round = int(arrays["round"])
        self.counts = arrays["counts"]
        self.queried = arrays["queried"]
        self._available = arrays["available"]
        like, form = jax.tree.flatten(self._state)
        leaves = [jnp.asarray(arrays[f"state_{i}"]) for i in range(len(like))]
        kinds = [[(leaf.dtype, leaf.shape) for leaf in each] for each in (leaves, like)]
        if kinds[0] != kinds[1]:
            raise ConfigError(
                "is from a different version: its policy state has a different structure. Load the "
                "file with the version that saved it."
            )
        self._state = jax.tree.unflatten(form, leaves)
        if "pending_clients" in arrays:
            clients, weights = arrays["pending_clients"], arrays["pending_weights"]
            self._pending = Selection(jnp.asarray(clients), jnp.asarray(weights))

    def _check_told(self) -> None:
        if self._pending is not None:
            raise ConfigError(
                f"round {self.round} is open: must be closed before the next round. Call tell with "
                "its results ({} if no client answered)."
            )

    def _present(self, available: Iterable[Client] | None) -> NDArray[np.bool_]:
        """Return a mask of the clients that can be chosen, bool [K]."""
        present = np.full(self.config.num_clients, available is None)
        if available is not None:
            present[[self._number_of("available", client) for client in available]] = True
        spent = self._canonical.privacy.budget.exhausted(jnp.asarray(self.counts + 1))
        return present & ~np.asarray(spent)

    def _ids_of(self, clients: NDArray[np.int32]) -> NDArray[Any]:
        return np.asarray(self.client_ids)[clients]

    def _number_of(self, name: str, client: Any) -> int:
        """Return a client's number. Raise ConfigError for an unknown id."""
        is_id = isinstance(client, Hashable) and not isinstance(client, bool | np.bool_)
        if not is_id or client not in self._number:
            those = f"{self.client_ids[0]!r} to {self.client_ids[-1]!r}"
            if isinstance(self.client_ids[0], str):
                those = listed(map(repr, self.client_ids))
            raise ConfigError(
                f"{name}: {shown(client)} is not a client. Client ids are {those}. Convert a mask "
                "with numpy.flatnonzero."
            )
        return self._number[client]

    def _by_number(self, name: str, values: Any, known: Collection[int], what: str) -> Any:
        """Key ``values`` by client number. Raise ConfigError for a client outside ``known``."""
        by_number = {}
        for client in values:
            number = self._number_of(name, client)
            if number not in known:
                those = ", ".join(str(self.client_ids[k]) for k in known) or "none"
                raise ConfigError(f"{name}: client {client} was not {what}. Allowed: {those}.")
            by_number[number] = values[client] if isinstance(values, Mapping) else None
        return by_number

    def _answer(
        self,
        told: Mapping[int, ArrayLike],
        wants: str,
        clients: NDArray[np.int32],
        asked: NDArray[np.bool_],
    ) -> Answer:
        """Convert the answers in ``told`` to arrays in the order of ``clients`` [d]."""
        loss = np.ones(len(clients), np.float32)
        features = np.ones((len(clients), self.config.latency.num_features), np.float32)
        reported = np.ones(len(clients), bool)
        for place in np.flatnonzero(asked):
            client = int(clients[place])
            if client in told:
                values, shape = (loss, ()) if wants == "loss" else (features, features.shape[1:])
                values[place] = self._finite("answers", client, told[client], shape)
            elif wants == "loss":
                loss[place], reported[place] = np.nan, False
            else:
                raise ConfigError(
                    f"answers: client {self.client_ids[client]} is missing, and the policy needs "
                    "its features. If it does not answer, call question() again without it."
                )
        return Answer(loss, features, reported)  # type: ignore[arg-type]

    def _finite(
        self, name: str, client: int, given: ArrayLike, shape: tuple[int, ...]
    ) -> NDArray[np.float32]:
        """Return ``given`` as a finite float32 array of shape ``shape``, or raise ConfigError."""
        values = float32(given)
        if values.shape != shape or not np.isfinite(values).all():
            raise ConfigError(
                f"{name}[{self.client_ids[client]!r}] = {shown(given)}: must be a finite "
                f"float32 array of shape {shape}."
            )
        return values

    def _context(self) -> Context:
        """Return the context that the policy would have in a simulation of these clients."""
        config, size = self._canonical, jnp.asarray(self._size)
        learning = config.learning
        samples = learning.local_samples if type(learning) is Learning else None
        nowhere = jnp.zeros(0, jnp.int32)
        return context_of(
            config,
            latency_by_work(config, 4.0 * self.num_parameters, size, samples),
            data_size=size,
            share=Partition(nowhere, nowhere, size, jnp.asarray(self._quality)).share,
            update_size=self.num_parameters,
        )


def _from_data(
    config: SimConfig, data: Dataset | None, streams: keys.Streams
) -> tuple[Partition, int, Any]:
    """Return the data partition, the number of entries in an update, and the loaded data."""
    try:
        config, loaded_data = prepare(config, data)
    except ConfigError as error:
        raise ConfigError(f"{error} Or pass data_size, each client's number of samples.") from None
    learner = learner_of(config, loaded_data)
    partition = jax.jit(lambda streams: learner.init(streams).partition)(streams)
    return partition, update_size_of(jax.eval_shape(learner.init, streams)), loaded_data


def _checked_ids(ids: Sequence[Client], num_clients: int) -> tuple[Client, ...]:
    """Return the ids [K] (default: 0 .. K - 1), or raise ConfigError if ``ids`` is invalid."""
    ids = tuple(ids) or tuple(range(num_clients))
    kinds = {type(client) for client in ids}
    named = kinds == {int} or (kinds == {str} and "".join(ids).isprintable())
    if len(set(ids)) != num_clients or len(ids) != num_clients or not named:
        raise ConfigError(
            f"ids = {listed(map(repr, ids))}: must be {num_clients} distinct printable strings or "
            "distinct integers."
        )
    return ids


def _per_client(name: str, values: ArrayLike | None, num_clients: int) -> NDArray[np.float32]:
    """Return ``values`` as float32 [K] (default: 1). Raise ConfigError unless all are > 0."""
    each = np.ones(num_clients, np.float32) if values is None else float32(values)
    if each.shape != (num_clients,) or not (np.isfinite(each) & (each > 0)).all():
        raise ConfigError(
            f"{name} = {np.array2string(each, threshold=8)}: must be {num_clients} numbers > 0, "
            "one per client."
        )
    return each
