"""Synchronous round (Algorithm 1 of PAUSE, for any policy), split into six functions."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int, Key

from pause_jax.bandit.protocol import Info, Observation, Selection
from pause_jax.config import SimConfig
from pause_jax.learning import LearnerState, Release, StaleUpdates, Trained
from pause_jax.learning.server import with_stale
from pause_jax.policies import Answer, check_selected
from pause_jax.privacy import Mechanism
from pause_jax.rng import keys
from pause_jax.run.contract import broken, is_checked
from pause_jax.run.record.result import Quantities, Record, record_round
from pause_jax.run.rounds.horizon import advanced
from pause_jax.run.rounds.state import Round, State, examined
from pause_jax.run.setup import Setup


def play(
    setup: Setup, before: State, round_keys: keys.RoundKeys, round: Array, quantities: Quantities
) -> tuple[State, Record]:
    """Simulate a round, and return (state, record)."""
    conditions = observe_world(setup, before, round_keys, round)
    answers = ask(setup, before, conditions, round_keys, round)
    selection, info = select(setup, answers, conditions, round)
    arrival = close_round(setup, conditions, answers, selection, round_keys, round)
    learned = train(setup, before, conditions, selection, arrival, round_keys)
    after = update(setup, before, conditions, answers, selection, arrival, learned, round)
    newly_reached = selection.active & ~answers.reached[selection.clients]
    played = Round(
        config=setup.config,
        length=setup.length,
        context=setup.context,
        learner=setup.learner,
        number=round,
        before=before,
        after=after,
        latency=conditions.latency,
        available=conditions.available,
        selection=selection,
        info=info,
        trained=learned.trained,
        in_time=arrival.in_time,
        work=setup.work,
        downloads=jnp.sum(answers.reached) + jnp.sum(newly_reached),
        uploads=jnp.sum(arrival.in_time | arrival.stale),
        seconds=arrival.seconds,
        query_seconds=answers.seconds,
    )
    return after, record_round(quantities, played)


class Conditions(NamedTuple):
    """Latency (in seconds), availability and epsilon of each client in a round.

    ``work`` holds the local work factors, or is None if all are 1. ``dropped`` marks clients that
    send nothing if chosen, because ``when_spent`` is ``drop`` and their budget is spent.
    """

    work: Float[Array, " K"] | None
    latency: Float[Array, " K"]
    available: Bool[Array, " K"]
    availability_trace: Any
    epsilon: Float[Array, " K"]
    dropped: Bool[Array, " K"]


def observe_world(
    setup: Setup, before: State, round_keys: keys.RoundKeys, round: Array
) -> Conditions:
    """Draw latencies and availability, and look up the epsilon of each client's next release."""
    budget = setup.config.privacy.budget
    work = None if setup.world.work is None else setup.world.work(round_keys)
    latency = setup.world.latency(round_keys, round, work)
    available, trace = setup.world.present(before.availability_trace, round_keys, before.clock)
    epsilon = budget.epsilon(before.counts + 1)
    exhausted = budget.exhausted(before.counts + 1)
    if setup.config.when_spent == "exclude":
        available &= ~exhausted
    dropped = exhausted & (setup.config.when_spent == "drop")
    return Conditions(work, latency, available, trace, epsilon, dropped)


class Answers(NamedTuple):
    """Policy state and query counts after the policy's query, and the key for choosing a cohort.

    ``seconds`` is the duration of the query. ``reached`` marks clients that received the model.
    """

    choice_key: Key[Array, ""]
    policy: Any
    queried: Int[Array, " K"]
    seconds: Float[Array, ""]
    reached: Bool[Array, " K"]


def ask(
    setup: Setup, before: State, conditions: Conditions, round_keys: keys.RoundKeys, round: Array
) -> Answers:
    """Send the policy's query, if any, to the clients that ``query.ask`` marks.

    The server waits for the slowest queried client, even if this client is ``dropped`` and
    therefore does not report its loss.
    """
    query = setup.policy.query
    nobody = jnp.zeros(before.queried.shape, bool)
    if query is None:
        return Answers(round_keys.policy, before.policy, before.queried, jnp.zeros(()), nobody)
    ask_key, choice_key = keys.question_and_choice(round_keys.policy)
    clients, is_asked = query.ask(ask_key, before.policy, round, conditions.available)
    loss = jnp.ones(clients.shape)
    reported = jnp.ones(clients.shape, bool)
    reached = nobody
    if query.wants == "loss":
        reported = ~conditions.dropped[clients]
        reached = reached.at[clients].max(is_asked)
        loss = setup.learner.ask(round_keys.answers, before.learning, clients, query.batch_size)
        loss = jnp.where(reported, loss, jnp.nan)
    answer = Answer(loss, setup.world.features(round_keys, round)[clients], reported)
    waited = jnp.where(is_asked, query.seconds(conditions.latency)[clients], 0.0)
    return Answers(
        choice_key=choice_key,
        policy=query.receive(before.policy, clients, is_asked, answer),
        queried=before.queried.at[clients].add((is_asked & reported).astype(jnp.int32)),
        seconds=jnp.max(waited),
        reached=reached,
    )


def select(
    setup: Setup, answers: Answers, conditions: Conditions, round: Array
) -> tuple[Selection, Info]:
    """Let the policy select a cohort, and validate the types and shapes of the selection."""
    choice = setup.policy.select(answers.choice_key, answers.policy, round, conditions.available)
    return check_selected(choice, setup.context.num_selected)


class Arrival(NamedTuple):
    """Duration of a round, and the updates that arrived by its end.

    Attributes:
      seconds: scalar, duration of the round in seconds.
      in_time: bool [m], slots whose update arrived by the end of the round.
      stale: bool [m], slots whose update was still in transit at the end of the round.
      observed: float [m], observed latency in seconds, capped at the time that the server waited
        for updates. Empty slots contain the server's waiting time, or 1 if the server did not wait.
    """

    seconds: Float[Array, ""]
    in_time: Bool[Array, " m"]
    stale: Bool[Array, " m"]
    observed: Float[Array, " m"]


def close_round(
    setup: Setup,
    conditions: Conditions,
    answers: Answers,
    selection: Selection,
    round_keys: keys.RoundKeys,
    round: Array,
) -> Arrival:
    """Determine a round's duration (including the query) and the updates that arrive by its end."""
    clients = selection.clients
    active = selection.active
    sends_nothing = conditions.dropped[clients]
    if setup.world.lost is not None:
        sends_nothing |= setup.world.lost(round_keys, round)[clients]
    arrival = arrival_of(setup.config, conditions.latency[clients], active, active & ~sends_nothing)
    seconds = answers.seconds + arrival.seconds
    trace = setup.config.availability_trace
    if trace is not None:
        seconds = jnp.where(jnp.any(active), seconds, answers.seconds + trace.recheck)
    return arrival._replace(seconds=seconds)


def arrival_of(config: SimConfig, latency: Array, active: Array, answering: Array) -> Arrival:
    """Apply the config's ``wait_for`` and ``deadline`` to the latencies of a cohort.

    If both are None, the round ends when the slowest client has finished, as in Eq. (3) of PAUSE.
    The server also waits for clients that will send nothing, because it cannot identify them in
    advance. ``answering`` marks the active clients that send an update, on time or late.
    """
    end = jnp.max(jnp.where(active, latency, 0.0))
    if config.wait_for is not None:
        arriving = jnp.sort(jnp.where(answering, latency, jnp.inf))
        end = jnp.minimum(end, arriving[config.wait_for - 1])
    if config.deadline is not None:
        end = jnp.minimum(end, config.deadline)
    by_then = latency <= end
    # Empty slots need a finite latency, because policies may multiply it by 0 (0 * inf is NaN).
    observed = jnp.where(active, jnp.minimum(latency, end), jnp.where(end > 0, end, 1.0))
    return Arrival(end, answering & by_then, answering & ~by_then, observed)


def can_miss_average(config: SimConfig) -> bool:
    """Return whether a chosen client's update may be missing from its round's average."""
    rules = (config.dropout, config.deadline, config.wait_for)
    has_rule = any(rule is not None for rule in rules)
    return has_rule or config.when_spent == "drop" or config.latency.drops


def only_received(selection: Selection, received: Array) -> Selection:
    """Redistribute the weights of missing updates among the received updates."""
    weights = jnp.where(received, selection.weights, 0.0)
    arrived = jnp.sum(weights)
    total = jnp.sum(selection.weights)
    return selection._replace(weights=weights * total / jnp.where(arrived > 0, arrived, 1.0))


class Learned(NamedTuple):
    """Training outcome of a round. ``stale`` is None if late updates are lost."""

    learning: LearnerState
    trained: Trained
    stale: StaleUpdates | None


def train(
    setup: Setup,
    before: State,
    conditions: Conditions,
    selection: Selection,
    arrival: Arrival,
    round_keys: keys.RoundKeys,
) -> Learned:
    """Train the cohort, release its updates, and average the updates that arrived."""
    learner = setup.learner
    stale = before.stale
    sending = selection
    if can_miss_average(setup.config):
        averaged = arrival.in_time if stale is None else arrival.in_time | arrival.stale
        sending = only_received(selection, averaged)
    epsilon = conditions.epsilon[selection.clients]
    release = release_of(setup.config.privacy, round_keys.privacy, sending, epsilon)
    learning = working(before.learning, conditions.work)
    if stale is None:
        return Learned(*learner.train(round_keys.training, learning, sending, release), None)
    assert learner.deferred is not None, "learner_of checks this"
    learning, trained, updates = learner.deferred.train(
        round_keys.training, learning, sending, release
    )
    updates, weights, stale = with_stale(
        updates, sending.weights, arrival.stale, stale, learner.stale_damping
    )
    learning = learner.deferred.average(learning, updates, weights)
    released = jnp.where(_missing(selection, arrival)[:, None], 0.0, trained.released)
    return Learned(learning, trained._replace(released=released), stale)


def working(learning: LearnerState, factors: Array | None) -> LearnerState:
    """Set the local work factors in the learner state, if the learner uses them."""
    if learning.work is None or factors is None:
        return learning
    return learning._replace(work=factors)


def release_of(mechanism: Mechanism, key: Array, sending: Selection, epsilon: Array) -> Release:
    """Build the function that releases a cohort's updates with each client's key and epsilon."""
    active = sending.active

    def release(updates: Array) -> Array:
        noise_keys = keys.of_clients(key, sending.clients)
        # Epsilon is 0 once the budget is spent. The slot is then inactive, so any value > 0 works.
        positive = jnp.where(active, epsilon, 1.0).astype(updates.dtype)
        released = jax.vmap(mechanism.privatize)(noise_keys, updates, positive)
        return jnp.where(active[:, None], released, 0.0)

    return release


def update(
    setup: Setup,
    before: State,
    conditions: Conditions,
    answers: Answers,
    selection: Selection,
    arrival: Arrival,
    learned: Learned,
    round: Array,
) -> State:
    """Report the round to the policy, update the counts and the clock, and return the new state."""
    missing = _missing(selection, arrival)
    trained = learned.trained
    clock, clock_rest = advanced(before.clock, before.clock_rest, arrival.seconds)
    server_loss = setup.learner.server_loss
    if server_loss is not None:
        server_loss = functools.partial(server_loss, before.learning, trained.released)
    observation = Observation(
        latency=arrival.observed,
        loss=jnp.where(missing, jnp.nan, trained.loss),
        square_loss=jnp.where(missing, jnp.nan, trained.square_loss),
        update=trained.released,
        received=arrival.in_time,
        available=conditions.available,
        late=arrival.stale & (setup.config.stale_updates == "next"),
        clock=clock,
        server_loss=server_loss,
    )
    rules = jnp.zeros((), jnp.int32)
    if is_checked(setup.config):
        rules = broken(
            selection, conditions.available, conditions.latency, setup.context.min_latency
        )
    return before._replace(
        learning=learned.learning,
        policy=setup.policy.update(answers.policy, selection, observation),
        counts=before.counts.at[selection.clients].add(selection.active.astype(jnp.int32)),
        queried=answers.queried,
        played=before.played + 1,
        clock=clock,
        clock_rest=clock_rest,
        health=examined(before.health, round, learned.learning.variables, rules),
        availability_trace=conditions.availability_trace,
        stale=learned.stale,
    )


def _missing(selection: Selection, arrival: Arrival) -> Array:
    """Return a mask of the active slots whose update did not arrive in time, bool [m]."""
    return selection.active & ~arrival.in_time
