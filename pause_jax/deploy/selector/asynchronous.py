"""A selector for a server that steps while clients are under way."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import ArrayLike, NDArray

from pause_jax.bandit.protocol import Selection
from pause_jax.base.struct import ConfigError
from pause_jax.config import Asynchronous, SimConfig
from pause_jax.deploy.selector.reports import Choice, Reports, numbers, observation
from pause_jax.deploy.selector.selector import Selector
from pause_jax.policies import learns_of_training
from pause_jax.rng import keys
from pause_jax.run.events.queue import distinct
from pause_jax.run.events.server_step import check_asks_nobody
from pause_jax.run.rounds.arrival import only_received

_NOTHING = Reports({}, None, None, None, None)


class Start(NamedTuple):
    """A client under way.

    Attributes:
      version: server steps that its model has seen.
      weight: its share of the group that started together.
      peers: clients of that group.
    """

    version: int
    weight: float
    peers: int


class Average(NamedTuple):
    """The updates that a server step averages.

    Attributes:
      version: server steps with this one.
      clients: int [n], n <= B.
      weights: float [n], by which the server multiplies each update before it adds all to the
        model; they sum to less than one if updates are stale.
      staleness: int [n], server steps between a client's start and this one.
    """

    version: int
    clients: NDArray[np.int32]
    weights: NDArray[np.float32]
    staleness: NDArray[np.int32]


class AsynchronousSelector(Selector):
    """A policy and its state, for a server whose clock is ``Asynchronous``.

    The server starts clients while ``free`` says that a group has room (:meth:`ask`), reports each
    answer when it comes (:meth:`tell`), and averages when it is due (:meth:`is_due`, :meth:`step`).
    Fed with the events of a simulation it chooses what ``simulate`` chooses.

    Attributes:
      config: what it was made from.
      round: decisions so far.
      counts: int [K], starts of each client: each may have released something.
      version: server steps so far.
    """

    overlaps: ClassVar[bool] = True

    def __init__(
        self,
        config: SimConfig,
        key: Array,
        *,
        data_size: ArrayLike | None = None,
        update_size: int = 0,
    ):
        """Start before the first decision; see :class:`Selector`.

        Raises:
          ConfigError: also if the policy asks clients before it chooses.
        """
        super().__init__(config, key, data_size=data_size, update_size=update_size)
        check_asks_nobody(config, self._policy)
        self._at_once = not learns_of_training(self._canonical.policy)
        self.version = 0
        self._starts: dict[int, Start] = {}  # under way
        self._buffer: dict[int, Start] = {}  # answered since the last step
        self._told, self._unheard = _NOTHING, set[int]()  # what is known of the buffer
        self._last: dict[int, float] = {}  # seconds of each client's last answer
        self._here = np.ones(config.num_clients, bool)

    @property
    def clock(self) -> Asynchronous:
        """The clock of the config."""
        assert isinstance(self.config.clock, Asynchronous)
        return self.config.clock

    @property
    def free(self) -> int:
        """Groups of clients that can start now; 0 while a full buffer waits for :meth:`step`."""
        slots = self.clock.concurrency - len(self._starts)
        full = len(self._buffer) >= self.clock.buffer
        return 0 if full else slots // self.config.cohort_size

    def is_due(self, elapsed: float = 0.0) -> bool:
        """Whether the server should step now.

        Args:
          elapsed: seconds since its last step, which a clock with a ``pace`` needs.
        """
        if len(self._buffer) >= self.clock.buffer or not self._starts:
            return bool(self._buffer)
        longest = max(self._last.get(client, np.inf) for client in self._starts)
        pace = self.clock.pace
        return bool(self._buffer) and pace is not None and elapsed >= longest / float(pace)

    def ask(
        self, available: Iterable[int] | None = None, answers: Mapping[int, ArrayLike] | None = None
    ) -> Choice:
        """The clients that start now, from the current model.

        Args:
          available: as in :meth:`Selector.ask`; those under way or in the buffer are left out.
          answers: must be left out.

        Raises:
          ConfigError: while no group has room, or for numbers that are no clients.
        """
        if answers is not None:
            raise ConfigError("answers: an asynchronous server asks nobody. Leave them out.")
        if not self.free:
            what = "the buffer is full: call step" if self.is_due() else "wait for an answer"
            raise ConfigError(f"ask: no group of {self.config.cohort_size} has room; {what}.")
        if self._at_once and self._unheard:
            self._report()
        present = self._present(available)
        present[[*self._starts, *self._buffer]] = False
        choice = self._choose(keys.choice(self._key, self.round + 1), self._state, present)
        self._pending = None
        for client, weight in zip(choice.clients.tolist(), choice.weights, strict=True):
            self._starts[client] = Start(self.version, float(weight), len(choice.clients))
            self.counts[client] += 1
        return choice

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
        """Report answers of clients under way, in the order in which they came.

        Args:
          seconds: that each client took which answered.
          loss: mean training loss of each, for a policy that reads it.
          square_loss: mean squared loss, likewise.
          update: the released update of each, flat, likewise.
          failed: seconds until the server gave up each that did not answer. It counts as an answer
            without an update.
          idle: clients that certainly released nothing. They are no longer under way, and their
            starts are not charged.

        Raises:
          ConfigError: for clients that are not under way, more answers than the buffer has room
            for, or readings as in :meth:`Selector.tell`; nothing is reported then.
        """
        reports = Reports(seconds, loss, square_loss, update, failed)
        spared = set(numbers("idle", idle, self.config.num_clients))
        self._check_reports(reports, spared, self._starts, "under way")
        took = {**seconds, **(failed or {})}
        room = self.clock.buffer - len(self._buffer)
        if len(took) > room:
            raise ConfigError(
                f"seconds: {len(took)} answers, and the buffer has room for {room}. Call step "
                "first."
            )
        places = {client: place for place, client in enumerate(took)}
        observation(reports, places, self.config, self._update_size)  # refuses bad numbers
        for client in spared:
            self.counts[client] -= 1
            del self._starts[client]
        for client in took:
            self._buffer[client] = self._starts.pop(client)
            self._unheard.add(client)
        self._told = _merged(self._told, reports)

    def step(self) -> Average:
        """Average the buffer: the server adds the weighted updates to its model.

        Clients that start after it start from the new model.
        """
        received = self._report()
        starts = list(self._buffer.values())
        shares = [start.weight * start.peers / len(starts) for start in starts]
        clients = np.asarray([*self._buffer], np.int32)
        staleness = np.asarray([self.version - start.version for start in starts], np.int32)
        weighed = Selection(jnp.asarray(clients), jnp.asarray(shares, jnp.float32))
        factor = self.clock.staleness.factor(jnp.asarray(staleness, jnp.float32))
        weights = np.asarray(only_received(weighed, jnp.asarray(received)).weights * factor)
        self._last |= {**self._told.seconds, **(self._told.failed or {})}
        self.version += 1
        self._buffer, self._told = {}, _NOTHING
        return Average(self.version, clients[received], weights[received], staleness[received])

    def _report(self) -> NDArray[np.bool_]:
        """Report new answers to the policy; return bool [n], whose update is averaged."""
        size, slots = self.config.num_slots, {k: i for i, k in enumerate(self._buffer)}
        seen, _ = observation(self._told, slots, self.config, self._update_size)
        clients, weights = np.zeros(size, np.int32), np.zeros(size, np.float32)
        staleness, new = np.zeros(size, np.int32), np.zeros(size, bool)
        for client, slot in slots.items():
            start = self._buffer[client]
            clients[slot], weights[slot] = client, start.weight
            staleness[slot], new[slot] = self.version - start.version, client in self._unheard
        averaged, bound = np.asarray(seen.received), self.clock.max_staleness
        if bound is not None:
            averaged = averaged & (staleness <= float(bound))
        every = distinct(jnp.asarray(clients), jnp.asarray(new), self.config.num_clients)
        missing = new & ~averaged
        self._state = self._policy.update(
            self._state,
            Selection(every, jnp.asarray(np.where(new, weights, 0.0))),
            seen._replace(
                loss=jnp.where(missing, jnp.nan, seen.loss),
                square_loss=jnp.where(missing, jnp.nan, seen.square_loss),
                received=jnp.asarray(new & averaged),
                available=jnp.asarray(self._here),
                staleness=jnp.asarray(np.where(new, staleness, 0)),
            ),
        )
        self._unheard = set()
        return averaged[: len(slots)]

    def _arrays(self) -> dict[str, NDArray[Any]]:
        arrays = super()._arrays() | {
            "version": np.asarray(self.version),
            "here": self._here,
            "unheard": np.asarray(sorted(self._unheard), np.int32),
        }
        for name, starts in (("starts", self._starts), ("buffer", self._buffer)):
            arrays[name] = np.asarray([(k, *start) for k, start in starts.items()], np.float64)
        for name, values in {**self._told._asdict(), "last": self._last}.items():
            if values is not None:
                arrays[f"{name}_of"] = np.asarray([*values], np.int32)
                arrays[f"{name}_is"] = np.asarray([*values.values()])
        return arrays

    def _restore(self, kept: Mapping[str, NDArray[Any]]) -> None:
        super()._restore(kept)

        def table(name: str) -> dict[int, Any] | None:
            if f"{name}_of" not in kept:
                return None
            return dict(zip(kept[f"{name}_of"].tolist(), kept[f"{name}_is"], strict=True))

        self.version, self._here = int(kept["version"]), kept["here"]
        self._unheard = set(kept["unheard"].tolist())
        self._starts, self._buffer = (
            {int(k): Start(int(v), w, int(n)) for k, v, w, n in kept[name].reshape(-1, 4).tolist()}
            for name in ("starts", "buffer")
        )
        self._told = Reports(*(table(name) for name in Reports._fields))  # type: ignore[arg-type]
        self._last = table("last") or {}


def _merged(one: Reports, other: Reports) -> Reports:
    """The reports of both."""
    pairs: Any = zip(one, other, strict=True)
    return Reports(*(b if a is None else {**a, **(b or {})} for a, b in pairs))
