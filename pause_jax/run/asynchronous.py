"""A server step where rounds overlap: ``SimConfig.clock = Asynchronous()``.

The loop is over server versions, not over events. Within a step clients answer one after another
and others start in their place; all that start train one model, so they train side by side at the
end of the step, and then the server averages. An event queue gives the same results, see
``tests/reference/event_queue.py``. ``docs/guides/event_clock.md`` has the semantics.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from pause_jax.bandit import Info, Observation, Selection, no_info
from pause_jax.base.struct import ConfigError
from pause_jax.learning import LearnerState, Trained
from pause_jax.policies import learns_of_training
from pause_jax.rng import keys
from pause_jax.run.arrival import can_miss_average, only_received
from pause_jax.run.contract import broken, is_checked
from pause_jax.run.flight import (
    Buffer,
    Flight,
    Plan,
    Slots,
    Step,
    after_step,
    buffer_of,
    next_answer,
    nobody,
    plan_of,
    started,
)
from pause_jax.run.horizon import advanced
from pause_jax.run.record.recorder import Quantities, Record, record_round
from pause_jax.run.round import ask, observe_world, release_of, select, sends_nothing
from pause_jax.run.setup import Setup
from pause_jax.run.state import Round, State, examined

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int


def init(setup: Setup, learning: LearnerState) -> Flight:
    """Create the flight before the first step: nobody is under way.

    Raises:
      ConfigError: if the policy or the learner cannot work with overlapping rounds.
    """
    config, clock = setup.config, f"clock = {setup.config.clock.name!r}"
    if setup.policy.query is not None:
        raise ConfigError(
            f"{clock}: {type(config.policy).__name__} asks clients before it chooses, and a server "
            "that waits for nobody has no time to. Choose a policy that asks none."
        )
    if setup.learner.deferred is None:
        raise ConfigError(
            f"{clock}: the learner of {type(config.learning).__name__} cannot average an update "
            "later than it was trained. Give it `deferred`."
        )
    plan = _plan(setup)
    return nobody(plan, setup.learner.deferred.none(learning, plan.slots))


def play(
    setup: Setup, before: State, own: keys.RoundKeys, number: Array, quantities: Quantities
) -> tuple[State, Record]:
    """Play a server step.

    Args:
      setup: the parts of the run.
      before: the state after the step before.
      own: the keys of this step, for training and noise. Those of the world and of the policy go by
        the number of the decision.
      number: s >= 1; clients that start in it train the model after s - 1 steps.
      quantities: what is recorded.

    Returns:
      (state after the step, what it records).
    """
    assert before.flight is not None
    events = play_events(setup, before, number)
    learning, flight = train(setup, before, events, own, number)
    buffer = buffer_of(setup.config, _plan(setup), events.slots, number)
    learning, trained = average(setup, learning, flight, buffer)
    after = update(setup, before, events, flight, buffer, learning, trained, number)
    chosen, nobody = buffer.selection, setup.config.num_clients
    places = jnp.where(chosen.active, chosen.clients, nobody)
    played = Round(
        config=setup.config,
        length=setup.length,
        context=setup.context,
        learner=setup.learner,
        number=number,
        before=before,
        after=after,
        latency=events.latency.at[places].set(buffer.slots.latency, mode="drop"),
        available=events.available,
        selection=chosen,
        info=events.info,
        trained=trained,
        in_time=buffer.averaged,
        work=setup.work,
        downloads=jnp.sum(_new(events.slots, number)),
        uploads=jnp.sum(buffer.received),
        seconds=_seconds(setup, events),
        query_seconds=jnp.zeros(()),
        step=Step(
            decision=before.flight.decisions + 1,
            staleness=buffer.staleness,
            finish=buffer.slots.finish,
            under_way=jnp.sum(events.slots.under_way).astype(jnp.int32),
        ),
    )
    return after, record_round(quantities, played)


class Events(NamedTuple):
    """The events of a server step so far: starts and answers.

    Attributes:
      slots: who is under way, and who has answered.
      decisions: how often the policy was asked in this run.
      groups: how often it was in this step, after the first answer.
      waits: whether no clients start until the next answer.
      answers: in this step.
      now: seconds since the last step.
      reported: bool [S], whose answer the policy has been told of.
      policy: its state.
      counts: int32 [K], starts of each client.
      trace: the state of the availability trace.
      rules: that custom parts broke, see ``pause_jax.run.contract``.
      info: diagnostics of the last decision.
      latency, available: float and bool [K], the world at the last decision.
    """

    slots: Slots
    decisions: Int[Array, ""]
    groups: Int[Array, ""]
    waits: Bool[Array, ""]
    answers: Int[Array, ""]
    now: Float[Array, ""]
    reported: Bool[Array, " S"]
    policy: Any
    counts: Int[Array, " K"]
    trace: Any
    rules: Int[Array, ""]
    info: Info
    latency: Float[Array, " K"]
    available: Bool[Array, " K"]


def play_events(setup: Setup, before: State, number: Array) -> Events:
    """Play the events of a step, up to its B-th answer, or until nobody is under way."""
    assert before.flight is not None
    plan, zero = _plan(setup), jnp.zeros((), jnp.int32)
    everyone = before.counts.shape
    at_once = not learns_of_training(setup.config.policy, setup.context)
    start = Events(
        slots=before.flight.slots,
        decisions=before.flight.decisions,
        groups=zero,
        waits=jnp.asarray(False),
        answers=zero,
        now=jnp.zeros(()),
        reported=jnp.zeros(plan.slots, bool),
        policy=before.policy,
        counts=before.counts,
        trace=before.availability_trace,
        rules=zero,
        info=no_info(),
        latency=jnp.ones(everyone),
        available=jnp.zeros(everyone, bool),
    )

    def may_start(events: Events) -> Array:
        free = plan.concurrency - jnp.sum(events.slots.under_way)
        again = (events.answers == 0) | (events.groups < plan.groups - 1)
        return (free >= plan.asked) & again & ~events.waits

    def goes_on(events: Events) -> Array:
        some = may_start(events) | jnp.any(events.slots.under_way)
        return (events.answers < plan.buffer) & some

    def start_clients(events: Events) -> Events:
        if at_once:
            events = _report(setup, before, events, number)
        return decide(setup, before, events, number)

    def answer(events: Events) -> Events:
        slots, now = next_answer(events.slots)
        return events._replace(
            slots=slots, now=now, answers=events.answers + 1, waits=jnp.asarray(False)
        )

    def one_event(events: Events) -> Events:
        return lax.cond(may_start(events), start_clients, answer, events)

    return lax.while_loop(goes_on, one_event, start)


def decide(setup: Setup, before: State, events: Events, number: Array) -> Events:
    """Ask the policy for a group of clients, and start them.

    Everything is drawn with the keys of a round whose number is that of the decision. A release is
    charged now: the client's count rises at its start.
    """
    plan, slots, decision = _plan(setup), events.slots, events.decisions + 1
    own = keys.of_round(
        before.keys, *(rows[0] for rows in keys.of_rounds(before.keys, decision[None]))
    )
    now = before._replace(
        counts=events.counts,
        policy=events.policy,
        availability_trace=events.trace,
        clock=before.clock + events.now,
    )
    seen = observe_world(setup, now, own, decision)
    num_clients = setup.config.num_clients
    engaged = jnp.where(slots.occupied, slots.client, num_clients)
    seen = seen._replace(available=seen.available.at[engaged].set(False, mode="drop"))
    selection, info = select(setup, ask(setup, now, seen, own, decision), seen, decision)
    clients, active = selection.clients, selection.active
    rules = events.rules
    if is_checked(setup.config):
        found = broken(selection, seen.available, seen.latency, setup.context.min_latency)
        rules = jnp.where(rules > 0, rules, found)
    group = dict(
        client=clients,
        order=events.decisions * plan.asked + jnp.arange(plan.asked),
        version=number,
        weight=selection.weights,
        peers=jnp.sum(active),
        epsilon=seen.epsilon[clients],
        sends=~sends_nothing(setup, seen, own, decision)[clients],
        latency=seen.latency[clients],
        finish=events.now + seen.latency[clients],
    )
    return events._replace(
        slots=started(slots, active, group),
        decisions=decision,
        groups=events.groups + (events.answers > 0),
        waits=(events.answers > 0) | ~jnp.any(active),
        counts=events.counts.at[clients].add(active.astype(jnp.int32)),
        trace=seen.availability_trace,
        rules=rules,
        info=info,
        latency=seen.latency,
        available=seen.available,
    )


def train(
    setup: Setup, before: State, events: Events, own: keys.RoundKeys, number: Array
) -> tuple[LearnerState, Flight]:
    """Train all clients that started in a step, and keep what the server will receive of them.

    Of the learner's state only what clients keep changes.
    """
    assert before.flight is not None and setup.learner.deferred is not None
    plan, slots, learner = _plan(setup), events.slots, setup.learner.deferred
    learning, nobody = before.learning, setup.config.num_clients
    order = jnp.nonzero(_new(slots, number), size=plan.slots, fill_value=plan.slots)[0]

    def train_some(i: Array, so_far: tuple[Any, Flight]) -> tuple[Any, Flight]:
        kept, flight = so_far
        nth = i * plan.cohort + jnp.arange(plan.cohort)
        places = order.at[nth].get(mode="fill", fill_value=plan.slots)
        some = jax.tree.map(lambda leaf: leaf[places], slots)
        trains = (places < plan.slots) & some.sends
        sending = Selection(
            jnp.where(trains, some.client, nobody), jnp.where(trains, some.weight, 0.0)
        )
        release = release_of(setup.config.privacy, own.privacy, sending, some.epsilon)
        state = learning._replace(clients=kept)
        state, trained, updates = learner.train(own.training, state, sending, release)

        def put(table: Array, rows: Array) -> Array:
            return table.at[places].set(rows.astype(table.dtype), mode="drop")

        return state.clients, flight._replace(
            loss=put(flight.loss, trained.loss),
            square_loss=put(flight.square_loss, trained.square_loss),
            updates=jax.tree.map(put, flight.updates, updates),
        )

    flight = before.flight._replace(slots=slots, decisions=events.decisions)
    # More than one at the start alone, and when slots were empty for lack of clients.
    cohorts = -(-jnp.sum(_new(slots, number)) // plan.cohort)
    kept, flight = lax.fori_loop(0, cohorts, train_some, (learning.clients, flight))
    return learning._replace(clients=kept), flight


def average(
    setup: Setup, learning: LearnerState, flight: Flight, buffer: Buffer
) -> tuple[LearnerState, Trained]:
    """Average the buffer: (learner's state after the step, what the buffer showed the server).

    As in a round, what does not come leaves its weight to the others. The factor for staleness is
    no share: it makes the whole step smaller.
    """
    assert setup.learner.deferred is not None
    clock, chosen = setup.config.clock, buffer.selection
    if can_miss_average(setup.config) or clock.max_staleness is not None:
        chosen = only_received(chosen, buffer.averaged)
    factor = clock.staleness.factor(buffer.staleness.astype(jnp.float32))
    loss, square, updates = jax.tree.map(
        lambda leaf: leaf[buffer.places], (flight.loss, flight.square_loss, flight.updates)
    )
    learning = setup.learner.deferred.average(learning, updates, chosen.weights * factor)
    active, trains = chosen.active, setup.config.learning is not None
    mean = jnp.sum(jnp.where(active, chosen.weights * loss, 0.0))
    trained = Trained(
        loss=jnp.where(active, loss, 0.0),
        square_loss=jnp.where(active, square, 0.0),
        released=jnp.where(active[:, None], updates["params"], 0.0),
        mean_loss=jnp.where(trains & jnp.any(active), mean, jnp.nan),
    )
    return learning, trained


def update(
    setup: Setup,
    before: State,
    events: Events,
    flight: Flight,
    buffer: Buffer,
    learning: LearnerState,
    trained: Trained,
    number: Array,
) -> State:
    """Report the step to the policy, and move the clock."""
    seconds = _seconds(setup, events)
    clock, clock_rest = advanced(before.clock, before.clock_rest, seconds)
    return before._replace(
        learning=learning,
        policy=_heard(setup, events, buffer, trained),
        counts=events.counts,
        played=before.played + 1,
        clock=clock,
        clock_rest=clock_rest,
        health=examined(before.health, number, learning.variables, events.rules),
        availability_trace=events.trace,
        flight=flight._replace(slots=after_step(events.slots, seconds)),
    )


def _report(setup: Setup, before: State, events: Events, number: Array) -> Events:
    """Report new answers to a policy that does not read what training shows."""
    plan = _plan(setup)
    nothing = jnp.zeros(plan.buffer)
    updates = jnp.zeros((plan.buffer, setup.context.update_size))
    trained = Trained(nothing, nothing, updates, jnp.asarray(jnp.nan))

    def hear() -> Any:
        buffer = buffer_of(setup.config, plan, events.slots, number)
        return _heard(setup, events, buffer, trained)

    some = jnp.any(events.slots.answered & ~events.reported)
    policy = lax.cond(some, hear, lambda: events.policy)
    return events._replace(policy=policy, reported=events.slots.answered)


def _heard(setup: Setup, events: Events, buffer: Buffer, trained: Trained) -> Any:
    """The policy's state after the answers that it has not been told of."""
    new = buffer.slots.answered & ~events.reported[buffer.places]
    missing = new & ~buffer.averaged
    end = jnp.where(events.now > 0, events.now, 1.0)
    # As dispatched: a policy's own weights. An empty slot names a client that is not in the others.
    clients = _distinct(buffer.slots.client, new, setup.config.num_clients)
    selection = Selection(clients, jnp.where(new, buffer.slots.weight, 0.0))
    observation = Observation(
        latency=jnp.where(new, buffer.slots.latency, end),
        loss=jnp.where(missing, jnp.nan, trained.loss),
        square_loss=jnp.where(missing, jnp.nan, trained.square_loss),
        update=trained.released,
        received=new & buffer.averaged,
    )
    return setup.policy.update(events.policy, selection, observation)


def _distinct(clients: Array, active: Array, num_clients: int) -> Array:
    """The clients of active slots, int [B], and in the other slots some of the other clients."""
    taken = (
        jnp.zeros(num_clients, bool)
        .at[jnp.where(active, clients, num_clients)]
        .set(True, mode="drop")
    )
    others = jnp.nonzero(~taken, size=clients.shape[0], fill_value=0)[0]
    place = jnp.cumsum(~active) - 1
    return jnp.where(active, clients, others[place]).astype(clients.dtype)


def _new(slots: Slots, number: Array) -> Array:
    """Whose client started in this step, bool [S]."""
    return slots.occupied & (slots.version == number)


def _seconds(setup: Setup, events: Events) -> Array:
    """How long a step lasts; without anybody, until the server looks again."""
    trace = setup.config.availability_trace
    if trace is None:
        return events.now
    return jnp.where(events.answers > 0, events.now, trace.recheck)


def _plan(setup: Setup) -> Plan:
    return plan_of(setup.config.clock, setup.context.num_selected)
