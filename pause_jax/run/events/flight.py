"""Slots of an asynchronous server, for clients in flight and for buffered answers.

A client is in flight until the server receives its answer. The next step frees the client's slot.
Times are in seconds since the last server step, because float32 is inaccurate for large times.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from pause_jax.bandit.protocol import Selection
from pause_jax.config import Asynchronous, SimConfig


class Plan(NamedTuple):
    """Static sizes of a server step, in the notation of ``docs/guides/event_clock.md``.

    Attributes:
      concurrency: C, maximum number of clients in flight.
      buffer: B, number of answers that triggers a server step.
      asked: O, number of clients that the policy chooses at a time.
      groups: ceil(B / O), maximum number of groups started per step once C clients are in flight.
    """

    concurrency: int
    buffer: int
    asked: int
    groups: int

    @property
    def slots(self) -> int:
        """Number of slots S: C for clients in flight, the rest for answers of replaced clients."""
        return self.concurrency + self.asked * (self.groups - 1)

    @property
    def cohort(self) -> int:
        """Maximum number of clients per training call, usually enough for a step's new clients."""
        return self.asked * self.groups


def clock_of(config: SimConfig) -> Asynchronous:
    """Return a config's asynchronous clock."""
    assert isinstance(config.clock, Asynchronous)
    return config.clock


def plan_of(config: SimConfig) -> Plan:
    """Return the static ``Plan`` for a config's server steps."""
    clock = clock_of(config)
    asked = config.cohort_size
    return Plan(clock.concurrency, clock.buffer, asked, -(-clock.buffer // asked))


class Slots(NamedTuple):
    """State of each slot, as arrays [S].

    Attributes:
      client: int32, current client, or most recent client if the slot is free.
      occupied: bool, whether the client is in flight or its answer is in the buffer.
      answered: bool, whether the client's answer is in the buffer.
      order: int32, sequence number assigned when the client started. If clients finish at the same
        time, the client that started first answers first.
      version: int32, server step in which the client started. The client trains the model that
        the previous step produced.
      peers: int32, number of clients that started together, including this client.
      sends: bool, whether the client sends an update (False for a drop-out or a spent budget).
      latency: float, seconds from the client's start to its answer.
      finish: float, answer time, in seconds since the last server step.
    """

    client: Int[Array, " S"]
    occupied: Bool[Array, " S"]
    answered: Bool[Array, " S"]
    order: Int[Array, " S"]
    version: Int[Array, " S"]
    weight: Float[Array, " S"]
    peers: Int[Array, " S"]
    epsilon: Float[Array, " S"]
    sends: Bool[Array, " S"]
    work: Float[Array, " S"]
    latency: Float[Array, " S"]
    finish: Float[Array, " S"]

    @property
    def under_way(self) -> Array:
        """Mask of occupied slots whose client has not answered yet, bool [S]."""
        return self.occupied & ~self.answered


class Flight(NamedTuple):
    """State passed from one server step to the next.

    Attributes:
      loss, square_loss: float [S], see ``Trained``.
      updates: pytree of arrays [S, ...], released updates in the format of ``Deferred``.
      last: float [K], latency of each client's last answer in seconds, infinite if the client has
        never answered. None if ``Asynchronous.pace`` is None.
    """

    slots: Slots
    decisions: Int[Array, ""]
    loss: Float[Array, " S"]
    square_loss: Float[Array, " S"]
    updates: Any
    last: Float[Array, " K"] | None


class Step(NamedTuple):
    """Details of a server step, used by recorded quantities.

    Attributes:
      decision: int32, run-wide index (from 1) of the step's first policy decision.
      staleness: int32 [B], see ``Buffer``.
      finish: float [B], answer times, in seconds since the last step.
    """

    decision: Int[Array, ""]
    staleness: Int[Array, " B"]
    finish: Float[Array, " B"]
    under_way: Int[Array, ""]


def nobody(config: SimConfig, plan: Plan, updates: Any) -> Flight:
    """Return the flight state before any client starts, with all slots free."""
    none = jnp.zeros(plan.slots, bool)
    zero = jnp.zeros(plan.slots)
    number = jnp.zeros(plan.slots, jnp.int32)
    slots = Slots(
        client=number,
        occupied=none,
        answered=none,
        order=number,
        version=number,
        weight=zero,
        peers=number,
        epsilon=zero,
        sends=none,
        work=zero,
        latency=zero,
        finish=zero,
    )
    paced = clock_of(config).pace is not None
    last = jnp.full(config.num_clients, jnp.inf) if paced else None
    return Flight(slots, jnp.zeros((), jnp.int32), zero, zero, updates, last)


def started(slots: Slots, active: Array, values: dict[str, Array]) -> Slots:
    """Put active clients in free slots, and set the slots' fields to ``values`` ([O] or scalar)."""
    # The j-th client gets the j-th free slot, which stays free if the client is inactive.
    free = jnp.argsort(slots.occupied, stable=True)[: active.shape[0]]
    values = {**values, "occupied": jnp.asarray(True), "answered": jnp.asarray(False)}

    def put(name: str, value: Array) -> Array:
        old = getattr(slots, name)
        return old.at[free].set(jnp.where(active, value.astype(old.dtype), old[free]))

    return Slots(**{name: put(name, value) for name, value in values.items()})


def next_answer(slots: Slots) -> tuple[Slots, Array]:
    """Return (slots after the next answer, answer time). At least one client must be in flight."""
    finish = jnp.where(slots.under_way, slots.finish, jnp.inf)
    now = jnp.min(finish)
    first = slots.under_way & (finish == now)
    last = jnp.iinfo(slots.order.dtype).max
    place = jnp.argmin(jnp.where(first, slots.order, last))
    return slots._replace(answered=slots.answered.at[place].set(True)), now


def paced_step(config: SimConfig, flight: Flight, slots: Slots, now: Array) -> Array:
    """Return the time in seconds at which ``pace`` ends the step (infinity if it does not)."""
    pace = clock_of(config).pace
    if flight.last is None or pace is None:  # either both are None, or neither is
        return jnp.asarray(jnp.inf)
    longest = jnp.max(jnp.where(slots.under_way, flight.last[slots.client], 0.0))
    due = jnp.maximum(now, longest / pace)
    next_finish = jnp.min(jnp.where(slots.under_way, slots.finish, jnp.inf))
    return jnp.where(jnp.any(slots.answered) & (due < next_finish), due, jnp.inf)


class Buffer(NamedTuple):
    """Slots that answered since the last server step, including those without an update.

    Attributes:
      places: int32 [B], answered slots in ascending order, padded with slots that hold no answer.
      selection: answering clients and their weights, excluding staleness factors. Policy weights
        sum to one per group of ``peers``, so we scale them by group size / number of answers.
      staleness: int32 [B], server steps since the client's start.
      averaged: bool [B], whether the update arrived and is at most ``max_staleness`` steps old.
    """

    places: Int[Array, " B"]
    slots: Slots
    selection: Selection
    staleness: Int[Array, " B"]
    received: Bool[Array, " B"]
    averaged: Bool[Array, " B"]


def buffer_of(config: SimConfig, plan: Plan, slots: Slots, number: Array) -> Buffer:
    """Return the buffered answers at server step ``number``."""
    places = jnp.argsort(~slots.answered, stable=True)[: plan.buffer].astype(jnp.int32)
    answers = jax.tree.map(lambda leaf: leaf[places], slots)
    share = answers.peers / jnp.maximum(jnp.sum(answers.answered), 1)
    weights = jnp.where(answers.answered, answers.weight * share, 0.0)
    staleness = number - answers.version
    received = averaged = answers.answered & answers.sends
    bound = clock_of(config).max_staleness
    if bound is not None:
        averaged = received & (staleness <= bound)
    selection = Selection(answers.client, weights)
    return Buffer(places, answers, selection, staleness, received, averaged)


def after_step(flight: Flight, seconds: Array) -> Flight:
    """Free the slots of finished clients, and advance the flight state by ``seconds``."""
    slots = flight.slots
    last = flight.last
    under_way = slots.under_way
    if last is not None:
        answered = jnp.where(slots.answered, slots.client, last.shape[0])
        last = last.at[answered].set(slots.latency, mode="drop")
    slots = slots._replace(
        occupied=under_way,
        answered=jnp.zeros_like(under_way),
        finish=jnp.where(under_way, slots.finish - seconds, 0.0),
    )
    return flight._replace(slots=slots, last=last)
