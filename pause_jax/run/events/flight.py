"""Who is under way where rounds overlap: the slots of an asynchronous server.

A slot is occupied from a client's start until the server has averaged its update. Times are seconds
since the last server step, so they keep their precision however long a run is.
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
    """Sizes of a server step, all static. ``docs/guides/event_clock.md`` has the letters.

    Attributes:
      concurrency: C, clients under way at most.
      buffer: B, answers that end a step.
      asked: O, clients that the policy is asked for at a time.
      groups: ceil(B / O), how often clients start from one version once all slots were filled.
    """

    concurrency: int
    buffer: int
    asked: int
    groups: int

    @property
    def slots(self) -> int:
        """S: clients under way, and those that have answered and were replaced within a step."""
        return self.concurrency + self.asked * (self.groups - 1)

    @property
    def cohort(self) -> int:
        """Clients that train side by side: those that start in a step, as a rule."""
        return self.asked * self.groups


def clock_of(config: SimConfig) -> Asynchronous:
    """The clock of a config whose rounds overlap."""
    assert isinstance(config.clock, Asynchronous)
    return config.clock


def plan_of(config: SimConfig) -> Plan:
    """The sizes of a config's server steps."""
    clock = clock_of(config)
    asked = config.cohort_size
    return Plan(clock.concurrency, clock.buffer, asked, -(-clock.buffer // asked))


class Slots(NamedTuple):
    """What is known of each slot, leaves [S].

    Attributes:
      client: int32, who is, or was, in it.
      occupied: bool, whether its client started and the server has not averaged since it answered.
      answered: bool, whether the client has answered since.
      order: int32, the number of the start among all starts; of two answers at the same time the
        one that started first comes first.
      version: int32, the server step that its start belongs to, from 1 on: it trains the model
        that the step before left.
      weight: float, the policy's aggregation weight.
      peers: int32, clients that started with it.
      epsilon: float, budget of this participation.
      sends: bool, whether an update comes.
      latency: float, seconds from start to answer.
      finish: float, when it answers.
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
        """Bool [S], whose client has not answered yet."""
        return self.occupied & ~self.answered


class Flight(NamedTuple):
    """What a server step hands to the next.

    Attributes:
      decisions: int32, how often the policy was asked.
      loss, square_loss: float [S], see ``Trained``.
      updates: leaves [S, ...], what the server receives of each slot, as ``Deferred`` has them.
      last: float [K], seconds that each client's last answer took, infinite before; None if the
        server keeps no pace.
    """

    slots: Slots
    decisions: Int[Array, ""]
    loss: Float[Array, " S"]
    square_loss: Float[Array, " S"]
    updates: Any
    last: Float[Array, " K"] | None


class Step(NamedTuple):
    """The answers of a server step, for what is recorded.

    Attributes:
      decision: int32, the number of the first decision of the step.
      finish: float [B], when they came, in seconds since the last step.
      under_way: int32, clients under way when the server stepped.
    """

    decision: Int[Array, ""]
    staleness: Int[Array, " B"]
    finish: Float[Array, " B"]
    under_way: Int[Array, ""]


def nobody(config: SimConfig, plan: Plan, updates: Any) -> Flight:
    """The flight before anybody started."""
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
    """Start the active clients of a group, with their new entries by field: [O] or scalars."""
    # The j-th free slot is that of the j-th of the group, also if that one does not start.
    free = jnp.argsort(slots.occupied, stable=True)[: active.shape[0]]
    values = {**values, "occupied": jnp.asarray(True), "answered": jnp.asarray(False)}

    def put(name: str, value: Array) -> Array:
        old = getattr(slots, name)
        return old.at[free].set(jnp.where(active, value.astype(old.dtype), old[free]))

    return Slots(**{name: put(name, value) for name, value in values.items()})


def next_answer(slots: Slots) -> tuple[Slots, Array]:
    """(slots, seconds) once the next client under way has answered; there must be one."""
    finish = jnp.where(slots.under_way, slots.finish, jnp.inf)
    now = jnp.min(finish)
    first = slots.under_way & (finish == now)
    last = jnp.iinfo(slots.order.dtype).max
    place = jnp.argmin(jnp.where(first, slots.order, last))
    return slots._replace(answered=slots.answered.at[place].set(True)), now


def paced_step(config: SimConfig, flight: Flight, slots: Slots, now: Array) -> Array:
    """When the server steps before its buffer is full, in seconds; infinite if it does not."""
    pace = clock_of(config).pace
    if flight.last is None or pace is None:  # both or none
        return jnp.asarray(jnp.inf)
    longest = jnp.max(jnp.where(slots.under_way, flight.last[slots.client], 0.0))
    due = jnp.maximum(now, longest / pace)
    next_finish = jnp.min(jnp.where(slots.under_way, slots.finish, jnp.inf))
    return jnp.where(jnp.any(slots.answered) & (due < next_finish), due, jnp.inf)


class Buffer(NamedTuple):
    """The answers since the last server step.

    Attributes:
      places: int32 [B], their slots, ascending; then those of others.
      slots: what is known of them, leaves [B].
      selection: clients, and the weights of a plain average. A policy's weights are shares of the
        group that started together: they count by the size of the group.
      staleness: int32 [B], server steps between the start and now.
      received: bool [B], whether an update came.
      averaged: bool [B], whether the server averages it.
    """

    places: Int[Array, " B"]
    slots: Slots
    selection: Selection
    staleness: Int[Array, " B"]
    received: Bool[Array, " B"]
    averaged: Bool[Array, " B"]


def buffer_of(config: SimConfig, plan: Plan, slots: Slots, number: Array) -> Buffer:
    """The buffer in server step ``number``."""
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
    """The flight once the server has averaged, by the time of the next step."""
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
