"""Client responses and policy decisions within a server step, simulated before training."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Bool, Float, Int

from pause_jax.bandit.protocol import Info, Observation, Selection, no_info
from pause_jax.learning import Trained
from pause_jax.policies import learns_of_training
from pause_jax.rng import keys
from pause_jax.run.contract import broken, is_checked
from pause_jax.run.events.flight import (
    Buffer,
    Slots,
    buffer_of,
    next_answer,
    paced_step,
    plan_of,
    started,
)
from pause_jax.run.rounds.horizon import advanced
from pause_jax.run.rounds.round import ask, close_round, observe_world, select
from pause_jax.run.rounds.state import State
from pause_jax.run.setup import Setup


class Events(NamedTuple):
    """State within a server step, after the events processed so far.

    Attributes:
      groups: number of client groups chosen since the first answer in this server step.
      waits: whether the server waits for the next answer before it starts more clients.
      now: seconds since the last server step.
      reported: bool [S], slots whose answer the policy has observed.
      rules: bit mask of the rules broken by the first faulty decision (see ``contract.broken``).
      latency, available: float [K] in seconds and bool [K], drawn for the latest decision.
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
    """Process the events of a server step until the B-th answer, or until no client is in flight.

    If the clock has a ``pace``, the step may end earlier.
    """
    assert before.flight is not None
    flight = before.flight
    plan = plan_of(setup.config)
    zero = jnp.zeros((), jnp.int32)
    everyone = before.counts.shape
    at_once = not learns_of_training(setup.config.policy)
    start = Events(
        slots=flight.slots,
        decisions=flight.decisions,
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

    def due(events: Events) -> Array:
        at = paced_step(setup.config, flight, events.slots, events.now)
        return jnp.where(events.answers < plan.buffer, at, jnp.inf)

    def goes_on(events: Events) -> Array:
        waits = jnp.any(events.slots.under_way) & ~jnp.isfinite(due(events))
        return (events.answers < plan.buffer) & (may_start(events) | waits)

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

    played = lax.while_loop(goes_on, one_event, start)
    at = due(played)
    return played._replace(now=jnp.where(jnp.isfinite(at), at, played.now))


def decide(setup: Setup, before: State, events: Events, number: Array) -> Events:
    """Ask the policy for a group of clients and start them.

    Decision t uses round t's keys. A client's participation count increases when the client
    starts, so the budget is charged before the update is released.
    """
    plan = plan_of(setup.config)
    slots = events.slots
    decision = events.decisions + 1
    round_keys = keys.of_round(before.keys, decision)
    now = before._replace(
        counts=events.counts,
        policy=events.policy,
        availability_trace=events.trace,
        clock=before.clock + events.now,
    )
    conditions = observe_world(setup, now, round_keys, decision)
    engaged = jnp.where(slots.occupied, slots.client, setup.config.num_clients)
    available = conditions.available.at[engaged].set(False, mode="drop")
    conditions = conditions._replace(available=available)
    # `ask` sends no query, because `init` rejects policies with queries.
    answers = ask(setup, now, conditions, round_keys, decision)
    selection, info = select(setup, answers, conditions, decision)
    clients = selection.clients
    active = selection.active
    rules = events.rules
    if is_checked(setup.config):
        new_rules = broken(
            selection, conditions.available, conditions.latency, setup.context.min_latency
        )
        rules = jnp.where(rules > 0, rules, new_rules)
    group = {
        "client": clients,
        "order": events.decisions * plan.asked + jnp.arange(plan.asked),
        "version": number,
        "weight": selection.weights,
        "peers": jnp.sum(active),
        "epsilon": conditions.epsilon[clients],
        "sends": close_round(setup, conditions, answers, selection, round_keys, decision).in_time,
        "work": jnp.ones(()) if conditions.work is None else conditions.work[clients],
        "latency": conditions.latency[clients],
        "finish": events.now + conditions.latency[clients],
    }
    return events._replace(
        slots=started(slots, active, group),
        decisions=decision,
        groups=events.groups + (events.answers > 0),
        waits=(events.answers > 0) | ~jnp.any(active),
        counts=events.counts.at[clients].add(active.astype(jnp.int32)),
        trace=conditions.availability_trace,
        rules=rules,
        info=info,
        latency=conditions.latency,
        available=conditions.available,
    )


def _report(setup: Setup, before: State, events: Events, number: Array) -> Events:
    """Report new answers before training, for policies that read neither losses nor updates."""
    plan = plan_of(setup.config)
    nothing = jnp.zeros(plan.buffer)
    updates = jnp.zeros((plan.buffer, setup.context.update_size))
    trained = Trained(nothing, nothing, updates, jnp.asarray(jnp.nan))

    def hear() -> Any:
        buffer = buffer_of(setup.config, plan, events.slots, number)
        return heard(setup, before, events, buffer, trained)

    has_news = jnp.any(events.slots.answered & ~events.reported)
    policy = lax.cond(has_news, hear, lambda: events.policy)
    return events._replace(policy=policy, reported=events.slots.answered)


def heard(setup: Setup, before: State, events: Events, buffer: Buffer, trained: Trained) -> Any:
    """Report new answers to the policy, and return the policy's new state."""
    server_loss = setup.learner.server_loss
    if server_loss is not None:
        server_loss = functools.partial(server_loss, before.learning, trained.released)
    new = buffer.slots.answered & ~events.reported[buffer.places]
    missing = new & ~buffer.averaged
    end = jnp.where(events.now > 0, events.now, 1.0)
    # The policy observes the weights that it chose. Even empty slots need distinct client numbers.
    clients = distinct(buffer.slots.client, new, setup.config.num_clients)
    selection = Selection(clients, jnp.where(new, buffer.slots.weight, 0.0))
    observation = Observation(
        latency=jnp.where(new, buffer.slots.latency, end),
        loss=jnp.where(missing, jnp.nan, trained.loss),
        square_loss=jnp.where(missing, jnp.nan, trained.square_loss),
        update=trained.released,
        received=new & buffer.averaged,
        available=events.available,
        late=jnp.zeros_like(new),
        clock=advanced(before.clock, before.clock_rest, seconds_of(setup, events))[0],
        server_loss=server_loss,
        staleness=jnp.where(new, buffer.staleness, 0),
    )
    return setup.policy.update(events.policy, selection, observation)


def distinct(clients: Array, active: Array, num_clients: int) -> Array:
    """Return ``clients``, int [B], made distinct by replacing those in inactive slots."""
    engaged = jnp.where(active, clients, num_clients)
    taken = jnp.zeros(num_clients, bool).at[engaged].set(True, mode="drop")
    others = jnp.nonzero(~taken, size=clients.shape[0], fill_value=0)[0]
    place = jnp.cumsum(~active) - 1
    return jnp.where(active, clients, others[place]).astype(clients.dtype)


def seconds_of(setup: Setup, events: Events) -> Array:
    """Return the seconds since the last step, or the trace's ``recheck`` if no client answered."""
    trace = setup.config.availability_trace
    if trace is None:
        return events.now
    return jnp.where(events.answers > 0, events.now, trace.recheck)
