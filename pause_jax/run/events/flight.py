"""Slots of an asynchronous server, which hold the clients under way and the buffer.

A slot is occupied from the start of its client until the server step after the client's answer.
Times are in seconds since the last server step, which keeps them precise in long runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from pause_jax.bandit.protocol import Selection
from pause_jax.config import Asynchronous, SimConfig

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int


class Plan(NamedTuple):
    """Static sizes of a server step, with the letters of ``docs/guides/event_clock.md``.

    Attributes:
      concurrency: C, maximum number of clients under way.
      buffer: B, number of answers that completes a step.
      asked: O, number of clients that the policy chooses at a time.
      groups: ceil(B / O), maximum number of groups per model version once all slots are filled.
    """

    concurrency: int
    buffer: int
    asked: int
    groups: int

    @property
    def slots(self) -> int:
        """Number of slots S: clients under way, and answered clients replaced within a step."""
        return self.concurrency + self.asked * (self.groups - 1)

    @property
    def cohort(self) -> int:
        """Number of clients that train together, normally all that start in a step."""
        return self.asked * self.groups


def clock_of(config: SimConfig) -> Asynchronous:
    """Return the asynchronous clock of a config."""
    assert isinstance(config.clock, Asynchronous)
    return config.clock


def plan_of(config: SimConfig) -> Plan:
    """Return the sizes of a config's server steps."""
    clock = clock_of(config)
    asked = config.cohort_size
    return Plan(clock.concurrency, clock.buffer, asked, -(-clock.buffer // asked))


class Slots(NamedTuple):
    """State of each slot, leaves [S].

    Attributes:
      client: int32, current or last client.
      occupied: bool, whether the client is under way or waits in the buffer.
      answered: bool, whether the client waits in the buffer.
      order: int32, number of the start among all starts. Of simultaneous answers, the client that
        started first comes first.
      version: int32, server step in which the client started, from 1. The client trains the model
        of the previous step.
      weight: float, aggregation weight chosen by the policy.
      peers: int32, size of the group that started together.
      epsilon: float, epsilon of this participation.
      sends: bool, whether the client sends an update.
      latency: float, seconds from start to answer.
      finish: float, time of the answer, in seconds since the last server step.
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
    latency: Float[Array, " S"]
    finish: Float[Array, " S"]

    @property
    def under_way(self) -> Array:
        """Mask of slots whose client has not answered yet, bool [S]."""
        return self.occupied & ~self.answered


class Flight(NamedTuple):
    """State passed from one server step to the next.

    Attributes:
      decisions: int32, number of decisions of the policy.
      loss, square_loss: float [S], see ``Trained``.
      updates: leaves [S, ...], updates as the server receives them, in the form of ``Deferred``.
      last: float [K], latency of each client's last answer in seconds, infinite before the first.
        None if the server keeps no pace.
    """

    slots: Slots
    decisions: Int[Array, ""]
    loss: Float[Array, " S"]
    square_loss: Float[Array, " S"]
    updates: Any
    last: Float[Array, " K"] | None


class Step(NamedTuple):
    """Answers of a server step, for the recorded quantities.

    Attributes:
      decision: int32, number of the first decision of the step.
      finish: float [B], times of the answers, in seconds since the last step.
      under_way: int32, number of clients under way at the server step.
    """

    decision: Int[Array, ""]
    staleness: Int[Array, " B"]
    finish: Float[Array, " B"]
    under_way: Int[Array, ""]


def nobody(config: SimConfig, plan: Plan, updates: Any) -> Flight:
    """Return the flight before the first start."""
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
        latency=zero,
        finish=zero,
    )
    paced = clock_of(config).pace is not None
    last = jnp.full(config.num_clients, jnp.inf) if paced else None
    return Flight(slots, jnp.zeros((), jnp.int32), zero, zero, updates, last)


def started(slots: Slots, active: Array, values: dict[str, Array]) -> Slots:
    """Start the active clients of a group. ``values`` are their slots' entries, [O] or scalars."""
    # The j-th client of the group gets the j-th free slot, which stays free if it does not start.
    free = jnp.argsort(slots.occupied, stable=True)[: active.shape[0]]
    values = {**values, "occupied": jnp.asarray(True), "answered": jnp.asarray(False)}

    def put(name: str, value: Array) -> Array:
        old = getattr(slots, name)
        return old.at[free].set(jnp.where(active, value.astype(old.dtype), old[free]))

    return Slots(**{name: put(name, value) for name, value in values.items()})


def next_answer(slots: Slots) -> tuple[Slots, Array]:
    """Return (slots, time) after the next answer. At least one client must be under way."""
    finish = jnp.where(slots.under_way, slots.finish, jnp.inf)
    now = jnp.min(finish)
    first = slots.under_way & (finish == now)
    last = jnp.iinfo(slots.order.dtype).max
    place = jnp.argmin(jnp.where(first, slots.order, last))
    return slots._replace(answered=slots.answered.at[place].set(True)), now


def paced_step(config: SimConfig, flight: Flight, slots: Slots, now: Array) -> Array:
    """Return when the server steps before its buffer is full, in seconds; infinite if never."""
    pace = clock_of(config).pace
    if flight.last is None or pace is None:  # both or none
        return jnp.asarray(jnp.inf)
    longest = jnp.max(jnp.where(slots.under_way, flight.last[slots.client], 0.0))
    due = jnp.maximum(now, longest / pace)
    next_finish = jnp.min(jnp.where(slots.under_way, slots.finish, jnp.inf))
    return jnp.where(jnp.any(slots.answered) & (due < next_finish), due, jnp.inf)


class Buffer(NamedTuple):
    """Answers since the last server step.

    Attributes:
      places: int32 [B], slots of the answers, ascending. Other slots fill the remaining places.
      slots: state of these slots, leaves [B].
      selection: clients, and their weights before staleness. The policy's weights are shares of the
        group that started together, so they are scaled by group size / number of answers.
      staleness: int32 [B], server steps since the client's start.
      received: bool [B], whether an update arrived.
      averaged: bool [B], whether the server averages the update.
    """

    places: Int[Array, " B"]
    slots: Slots
    selection: Selection
    staleness: Int[Array, " B"]
    received: Bool[Array, " B"]
    averaged: Bool[Array, " B"]


def buffer_of(config: SimConfig, plan: Plan, slots: Slots, number: Array) -> Buffer:
    """Return the buffer in server step ``number``."""
    places = jnp.argsort(~slots.answered, stable=True)[: plan.buffer].astype(jnp.int32)
    answers = jax.tree.map(lambda leaf: leaf[places], slots)
    share = answers.peers / jnp.maximum(jnp.sum(answers.answered), 1)
    weights = jnp.where(answers.answered, answers.weight * share, 0.0)
    staleness = number - answers.version
    received = averaged = answers.answered & answers.sends
    bound = clock_of(config).max_staleness
    if bound is not None:
        averaged = received & (staleness <= bound)
    return Buffer(
        places, answers, Selection(answers.client, weights), staleness, received, averaged
    )


def after_step(flight: Flight, seconds: Array) -> Flight:
    """Return the flight after a server step, which took ``seconds``."""
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
