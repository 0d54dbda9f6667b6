"""One federated round, and the scan over rounds.

``init`` and ``advance`` are the pure steps that ``simulate`` and ``sweep`` share: a run may be
advanced a few rounds at a time, with the same result.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from pause_jax import keys
from pause_jax.bandit import Observation, Selection, empty_stats, update_stats
from pause_jax.config import SimConfig
from pause_jax.engine.branch import when
from pause_jax.engine.horizon import has_ended
from pause_jax.engine.recorder import Quantities, Record, record_round, record_unplayed
from pause_jax.engine.state import Round, State
from pause_jax.engine.world import World, world_of
from pause_jax.learning import Execution, Learner, LearnerState, Release, bandit_only
from pause_jax.learning.learner import update_size
from pause_jax.policies import Answer, Context, Policy, check_selected
from pause_jax.privacy import Mechanism

if TYPE_CHECKING:
    from jaxtyping import Float, Int, Key


class Parts(NamedTuple):
    """What a run is made of; the policy is built from what the server knows of the clients."""

    learner: Learner
    world: World
    mechanism: Mechanism
    context: Callable[[LearnerState], Context]
    policy: Callable[[Context], Policy]


def parts(config: SimConfig, data: Any, execution: Execution | None = None) -> Parts:
    """The parts that a canonical config describes.

    Args:
      config: the config.
      data: what ``Learning.load`` returned; None without learning.
      execution: how cohorts are trained; the library's choice if left out.
    """
    num_clients = config.num_clients
    if config.learning is None:
        learner = bandit_only(num_clients)
    else:
        learner = config.learning.build(data, num_clients, execution)
        if not isinstance(learner, Learner):
            raise TypeError(
                f"{type(config.learning).__name__}.build returned {type(learner).__name__}: must "
                "be Learner(init, train, ask, evaluate)."
            )

    def varying(round: Array) -> Array:
        return config.latency.expected_speed_at(round, num_clients)

    def context(learning: LearnerState) -> Context:
        data_size = learning.partition.size.astype(jnp.float32)
        local_samples = data_size
        if learner.max_samples is not None:
            local_samples = jnp.minimum(data_size, learner.max_samples)
        return Context(
            num_clients=num_clients,
            num_selected=config.cohort_size,
            num_rounds=config.num_rounds,
            update_size=update_size(learning),
            num_features=config.latency.num_features,
            data_size=data_size,
            local_samples=local_samples,
            share=learning.partition.share,
            reward=config.reward,
            privacy=config.privacy,
            min_latency=jnp.asarray(config.latency.min_latency),
            expected_speed=config.latency.expected_speed(num_clients),
            expected_latency=config.latency.expected_latency(num_clients),
            varying=varying if config.latency.varies else None,
        )

    def policy(context: Context) -> Policy:
        built = config.policy.build(context)
        if not isinstance(built, Policy):
            raise TypeError(
                f"{type(config.policy).__name__}.build returned {type(built).__name__}: must be "
                "Policy(init, select, update)."
            )
        return built

    return Parts(learner, world_of(config), config.privacy, context, policy)


def init(config: SimConfig, data: Any, key: Array) -> State:
    """The state before round 1: partition, model, policy."""
    run, streams = parts(config, data), keys.streams(key)
    learning = run.learner.init(streams)
    return State(
        keys=streams,
        learning=learning,
        policy=run.policy(run.context(learning)).init(),
        stats=empty_stats(config.num_clients),
        queried=jnp.zeros(config.num_clients, jnp.int32),
        played=jnp.zeros((), jnp.int32),
        clock=jnp.zeros(()),
    )


def advance(
    config: SimConfig,
    data: Any,
    state: State,
    rounds: Array,
    quantities: Quantities,
    execution: Execution | None = None,
) -> tuple[State, Record]:
    """Play the given rounds, those after the end of ``max_seconds`` excepted.

    Args:
      config: canonical config.
      data: its data set.
      state: after the round before ``rounds[0]``.
      rounds: int [R], consecutive round numbers; the first round is 1.
      quantities: what is recorded.
      execution: how cohorts are trained.

    Returns:
      (state, record with leaves [R, ...]).
    """
    learner, world, mechanism, context_of, policy_of = parts(config, data, execution)
    context = context_of(state.learning)
    policy = policy_of(context)

    def play(before: State, round: Array) -> tuple[State, Record]:
        """A round of PAUSE's Algorithm 1, whoever the policy is."""
        latency = world.latency(before.keys.world, round)
        available = world.present(before.keys.world, round)
        epsilon = mechanism.budget.epsilon(before.stats.counts + 1)
        exhausted = mechanism.budget.exhausted(before.stats.counts + 1)
        if config.when_spent == "exclude":
            available &= ~exhausted

        # The policy chooses, after a question if it has one.
        silent = exhausted & (config.when_spent == "silent")
        heard = _question(policy, learner, world, before, round, latency, available, silent)
        selection, info = check_selected(
            policy.select(heard.choice_key, heard.policy, round, available), context.num_selected
        )
        clients, active = selection.clients, selection.active

        # The chosen clients train and release, the server averages.
        sending = selection
        if config.when_spent == "silent":
            sending = without_silent(selection, silent[clients])
        privacy_key = keys.cohort(before.keys.privacy, round)
        release = release_of(mechanism, privacy_key, sending, epsilon[clients])
        training_key = keys.cohort(before.keys.training, round)
        learning, trained = learner.train(training_key, before.learning, sending, release)

        # The round lasts as long as its slowest client, after the wait for answers.
        seconds = heard.seconds + jnp.max(jnp.where(active, latency[clients], 0.0))

        # The policy and the server learn from what came back.
        speed = context.min_latency / latency[clients]
        unheard = active & ~sending.active
        observation = Observation(
            latency[clients],
            jnp.where(unheard, jnp.nan, trained.loss),
            jnp.where(unheard, jnp.nan, trained.square_loss),
            trained.released,
            sending.active,
        )
        after = State(
            keys=before.keys,
            learning=learning,
            policy=policy.update(heard.policy, selection, observation),
            stats=update_stats(before.stats, clients, speed, active),
            queried=heard.queried,
            played=before.played + 1,
            clock=before.clock + seconds,
        )
        played = Round(
            config, context, learner, round, before, after,
            latency, available, selection, info, trained, seconds, heard.seconds,
        )  # fmt: skip
        return after, record_round(quantities, played)

    def play_until_the_end(before: State, round: Array) -> tuple[State, Record]:
        _, like = jax.eval_shape(play, before, round)
        standing_still = before, record_unplayed(quantities, like)
        goes_on = ~has_ended(config, before.clock)
        return when(goes_on, lambda: play(before, round), standing_still)

    return lax.scan(play if config.max_seconds is None else play_until_the_end, state, rounds)


class _Heard(NamedTuple):
    """What is known after a policy's question, or without one."""

    choice_key: Key[Array, ""]
    policy: Any
    queried: Int[Array, " K"]
    seconds: Float[Array, ""]


def _question(
    policy: Policy,
    learner: Learner,
    world: World,
    before: State,
    round: Array,
    latency: Array,
    available: Array,
    silent: Array,
) -> _Heard:
    """Put the policy's question to the clients, if it has one; it costs the seconds it takes.

    A silent client does not tell its loss, and the server waits for it.
    """
    query, streams = policy.query, before.keys
    if query is None:
        key = keys.choice(streams.policy, round)
        return _Heard(key, before.policy, before.queried, jnp.zeros(()))
    ask_key, choice_key = keys.question_and_choice(streams.policy, round)
    clients, asked = query.ask(ask_key, before.policy, round, available)
    loss, told = jnp.ones(clients.shape), jnp.ones(clients.shape, bool)
    if query.wants == "loss":
        answer_key = keys.answers(streams.training, round)
        told = ~silent[clients]
        loss = learner.ask(answer_key, before.learning, clients, query.batch_size)
        loss = jnp.where(told, loss, jnp.nan)
    answer = Answer(loss, world.features(streams.world, round)[clients], told)
    waited = jnp.where(asked, query.seconds(latency)[clients], 0.0)
    return _Heard(
        choice_key,
        query.hear(before.policy, clients, asked, answer),
        before.queried.at[clients].add((asked & told).astype(jnp.int32)),
        jnp.max(waited),
    )


def release_of(mechanism: Mechanism, key: Array, sending: Selection, epsilon: Array) -> Release:
    """What leaves a cohort: each update by the mechanism, with the client's own key and epsilon.

    Args:
      mechanism: the mechanism.
      key: of this round's noise, folded by client.
      sending: the cohort; nothing is heard from a slot that is not active.
      epsilon: float [m], budget of this participation.
    """
    active = sending.active

    def release(updates: Array) -> Array:
        noise_keys = keys.of_clients(key, sending.clients)
        # Nothing is released of an exhausted budget, at an epsilon of 0: no such slot is active.
        positive = jnp.where(active, epsilon, 1.0).astype(updates.dtype)
        released = jax.vmap(mechanism.privatize)(noise_keys, updates, positive)
        return jnp.where(active[:, None], released, 0.0)

    return release


def without_silent(selection: Selection, silent: Array) -> Selection:
    """The slots that send an update; the server averages what it receives."""
    weights = jnp.where(silent, 0.0, selection.weights)
    total, received = jnp.sum(selection.weights), jnp.sum(weights)
    return selection._replace(weights=weights * total / jnp.where(received > 0, received, 1.0))
