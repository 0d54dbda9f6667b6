"""Server step with overlapping rounds (``SimConfig.clock = Asynchronous()``).

A run loops over server steps, not over events. Within a step, clients answer one after another,
and new clients replace them. All clients that start in a step train the same model, so they train
in parallel at the end of the step. The server then averages the buffered updates. Tests check
runs against an event-queue simulation. ``docs/guides/event_clock.md`` describes the semantics.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from pause_jax.bandit.protocol import Selection
from pause_jax.base.struct import ConfigError
from pause_jax.learning import LearnerState, Trained
from pause_jax.rng import keys
from pause_jax.run.events.flight import (
    Buffer,
    Flight,
    Slots,
    Step,
    after_step,
    buffer_of,
    clock_of,
    nobody,
    plan_of,
)
from pause_jax.run.events.queue import Events, heard, play_events, seconds_of
from pause_jax.run.record.result import Quantities, Record, record_round
from pause_jax.run.rounds.horizon import advanced
from pause_jax.run.rounds.round import can_miss_average, only_received, release_of, working
from pause_jax.run.rounds.state import Round, State, examined
from pause_jax.run.setup import Setup


def init(setup: Setup, learning: LearnerState) -> Flight:
    """Create the initial flight state, with no client in flight.

    Raises:
      ConfigError: if the policy queries clients, or if the learner's ``deferred`` is None.
    """
    config = setup.config
    if setup.policy.query is not None:
        raise ConfigError(
            f"clock = {config.clock.name!r}: {type(config.policy).__name__} queries clients "
            "before each choice, but an asynchronous server does not wait for queries. Use a "
            "policy without queries."
        )
    if setup.learner.deferred is None:
        raise ConfigError(
            f"clock = {config.clock.name!r}: the learner of {type(config.learning).__name__} "
            "cannot average stale updates. Define `deferred` in the learner."
        )
    plan = plan_of(setup.config)
    return nobody(setup.config, plan, setup.learner.deferred.none(learning, plan.slots))


def play(
    setup: Setup, before: State, step_keys: keys.RoundKeys, number: Array, quantities: Quantities
) -> tuple[State, Record]:
    """Simulate server step ``number`` >= 1 and return (state, record).

    Clients that start in this step train the model that the previous step produced. Training and
    noise use ``step_keys``. Each decision uses separate keys for its random draws.
    """
    assert before.flight is not None
    events = play_events(setup, before, number)
    learning, flight = train(setup, before, events, step_keys, number)
    buffer = buffer_of(setup.config, plan_of(setup.config), events.slots, number)
    learning, trained = average(setup, learning, flight, buffer)
    seconds = seconds_of(setup, events)
    clock, clock_rest = advanced(before.clock, before.clock_rest, seconds)
    after = before._replace(
        learning=learning,
        policy=heard(setup, before, events, buffer, trained),
        counts=events.counts,
        played=before.played + 1,
        clock=clock,
        clock_rest=clock_rest,
        health=examined(before.health, number, learning.variables, events.rules),
        availability_trace=events.trace,
        flight=after_step(flight, seconds),
    )
    chosen = buffer.selection
    places = jnp.where(chosen.active, chosen.clients, setup.config.num_clients)
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
        seconds=seconds,
        query_seconds=jnp.zeros(()),
        step=Step(
            decision=before.flight.decisions + 1,
            staleness=buffer.staleness,
            finish=buffer.slots.finish,
            under_way=jnp.sum(events.slots.under_way).astype(jnp.int32),
        ),
    )
    return after, record_round(quantities, played)


def train(
    setup: Setup, before: State, events: Events, step_keys: keys.RoundKeys, number: Array
) -> tuple[LearnerState, Flight]:
    """Train new clients that will send an update, and store their updates in the flight state.

    Only the ``clients`` field of the learner state changes.
    """
    assert before.flight is not None
    assert setup.learner.deferred is not None
    plan = plan_of(setup.config)
    slots = events.slots
    learner = setup.learner.deferred
    learning = before.learning
    nobody = setup.config.num_clients
    order = jnp.nonzero(_new(slots, number), size=plan.slots, fill_value=plan.slots)[0]

    def train_cohort(i: Array, carry: tuple[Any, Flight]) -> tuple[Any, Flight]:
        clients, flight = carry
        nth = i * plan.cohort + jnp.arange(plan.cohort)
        places = order.at[nth].get(mode="fill", fill_value=plan.slots)
        cohort = jax.tree.map(lambda leaf: leaf[places], slots)
        trains = (places < plan.slots) & cohort.sends
        weights = jnp.where(trains, cohort.weight, 0.0)
        sending = Selection(jnp.where(trains, cohort.client, nobody), weights)
        release = release_of(setup.config.privacy, step_keys.privacy, sending, cohort.epsilon)
        factors = jnp.ones(nobody).at[cohort.client].set(cohort.work, mode="drop")
        state = working(learning._replace(clients=clients), factors)
        state, trained, updates = learner.train(step_keys.training, state, sending, release)

        def put(table: Array, rows: Array) -> Array:
            return table.at[places].set(rows.astype(table.dtype), mode="drop")

        return state.clients, flight._replace(
            loss=put(flight.loss, trained.loss),
            square_loss=put(flight.square_loss, trained.square_loss),
            updates=jax.tree.map(put, flight.updates, updates),
        )

    flight = before.flight._replace(slots=slots, decisions=events.decisions)
    # Several cohorts start in the first step, and after steps with too few available clients.
    cohorts = -(-jnp.sum(_new(slots, number)) // plan.cohort)
    clients, flight = lax.fori_loop(0, cohorts, train_cohort, (learning.clients, flight))
    return learning._replace(clients=clients), flight


def average(
    setup: Setup, learning: LearnerState, flight: Flight, buffer: Buffer
) -> tuple[LearnerState, Trained]:
    """Average the buffered updates, and return (learner state, buffered losses and updates).

    As in a synchronous round, the weights of missing updates are redistributed among the other
    updates. Staleness factors are not normalised, so stale updates make the step smaller.
    """
    assert setup.learner.deferred is not None
    clock = clock_of(setup.config)
    chosen = buffer.selection
    if can_miss_average(setup.config) or clock.max_staleness is not None:
        chosen = only_received(chosen, buffer.averaged)
    factor = clock.staleness.factor(buffer.staleness.astype(jnp.float32))
    loss, square, updates = jax.tree.map(
        lambda leaf: leaf[buffer.places], (flight.loss, flight.square_loss, flight.updates)
    )
    learning = setup.learner.deferred.average(learning, updates, chosen.weights * factor)
    active = chosen.active
    trains = setup.config.learning is not None
    mean = jnp.sum(jnp.where(active, chosen.weights * loss, 0.0))
    trained = Trained(
        loss=jnp.where(active, loss, 0.0),
        square_loss=jnp.where(active, square, 0.0),
        released=jnp.where(active[:, None], updates["params"], 0.0),
        mean_loss=jnp.where(trains & jnp.any(active), mean, jnp.nan),
    )
    return learning, trained


def _new(slots: Slots, number: Array) -> Array:
    """Return a mask of the slots whose clients started in step ``number``, bool [S]."""
    return slots.occupied & (slots.version == number)
