"""One federated round, and the scan over rounds.

``init`` and ``advance`` are the pure steps that ``simulate`` and ``sweep`` share: a run may be
advanced a few rounds at a time, with the same result.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from pause_jax.bandit import Observation, Selection, empty_stats, update_stats
from pause_jax.base.struct import ConfigError
from pause_jax.config import SimConfig
from pause_jax.learning import Execution, Learner, LearnerState, Release, bandit_only
from pause_jax.learning.learner import model_bytes, update_size
from pause_jax.policies import Answer, Context, Policy, check_selected, policy_of
from pause_jax.privacy import Mechanism
from pause_jax.rng import keys
from pause_jax.run.arrival import arrival, can_be_unheard, without_unheard
from pause_jax.run.branch import when
from pause_jax.run.context import context_of
from pause_jax.run.horizon import Length, advanced, has_ended, length_of
from pause_jax.run.record.recorder import Quantities, Record, record_round, record_unplayed
from pause_jax.run.state import Round, State
from pause_jax.run.world import World, world_of
from pause_jax.world.latency import Latency, Work

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int, Key


class Parts(NamedTuple):
    """What a run is made of; the policy is built from what the server knows of the clients."""

    learner: Learner
    mechanism: Mechanism
    work: Callable[[LearnerState], tuple[Latency, Work]]
    context: Callable[[LearnerState], Context]
    policy: Callable[[Context], Policy]


def parts(
    config: SimConfig,
    data: Any,
    execution: Execution | None = None,
    num_rounds: Array | int | None = None,
) -> Parts:
    """The parts that a canonical config describes.

    Args:
      config: the config.
      data: what ``Learning.load`` returned; None without learning.
      execution: how cohorts are trained; the library's choice if left out.
      num_rounds: of a run that is not as long as the config says.
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
        if config.late == "next" and learner.late is None:
            raise ConfigError(
                f"late = 'next': the learner of {type(config.learning).__name__} cannot average "
                "late updates. Give it `late`, or set late = 'lost'."
            )

    def samples(learning: LearnerState) -> tuple[Array, Array]:
        data_size = learning.partition.size.astype(jnp.float32)
        if learner.max_samples is None:
            return data_size, data_size
        return data_size, jnp.minimum(data_size, learner.max_samples)

    def work(learning: LearnerState) -> tuple[Latency, Work]:
        size = float(model_bytes(learning))
        return config.latency.given(Work(size, size, samples(learning)[1]))

    def context(learning: LearnerState) -> Context:
        data_size, local_samples = samples(learning)
        return context_of(
            config,
            work(learning)[0],
            data_size=data_size,
            local_samples=local_samples,
            share=learning.partition.share,
            update_size=update_size(learning),
            num_rounds=num_rounds,
        )

    def policy(context: Context) -> Policy:
        return policy_of(config.policy, context)

    return Parts(learner, config.privacy, work, context, policy)


def init(config: SimConfig, data: Any, key: Array) -> State:
    """The state before round 1: partition, model, policy."""
    run, streams = parts(config, data), keys.streams(key)
    learning = run.learner.init(streams)
    world, held = world_of(config, run.work(learning)[0]), None
    if config.late == "next" and run.learner.late is not None:
        held = run.learner.late.begin(learning, config.cohort_size)
    return State(
        keys=streams,
        learning=learning,
        policy=run.policy(run.context(learning)).init(),
        stats=empty_stats(config.num_clients),
        queried=jnp.zeros(config.num_clients, jnp.int32),
        played=jnp.zeros((), jnp.int32),
        clock=jnp.zeros(()),
        clock_rest=jnp.zeros(()),
        presence=world.begin(streams.world),
        held=held,
    )


def advance(
    config: SimConfig,
    data: Any,
    state: State,
    rounds: Array,
    quantities: Quantities,
    execution: Execution | None = None,
    length: Length | None = None,
    count: Array | int | None = None,
) -> tuple[State, Record]:
    """Play the given rounds, those after the end of ``max_seconds`` excepted.

    Args:
      config: canonical config.
      data: its data set.
      state: after the round before ``rounds[0]``.
      rounds: int [R], consecutive round numbers; the first round is 1.
      quantities: what is recorded.
      execution: how cohorts are trained.
      length: of the run, if that is not in the config.
      count: rounds to play, the first of those given; all of them if left out.

    Returns:
      (state, record with leaves [R, ...], of which those of rounds not played mean nothing).
    """
    length = length_of(config) if length is None else length
    learner, mechanism, work_of, context_of, policy_of = parts(
        config, data, execution, length.num_rounds
    )
    model, work = work_of(state.learning)
    world, context = world_of(config, model), context_of(state.learning)
    policy, num_clients = policy_of(context), config.num_clients

    def play(before: State, own: keys.RoundKeys, round: Array) -> tuple[State, Record]:
        """A round of PAUSE's Algorithm 1, whoever the policy is."""
        latency = world.latency(own, round)
        available, presence = world.present(before.presence, own, before.clock)
        epsilon = mechanism.budget.epsilon(before.stats.counts + 1)
        exhausted = mechanism.budget.exhausted(before.stats.counts + 1)
        if config.when_spent == "exclude":
            available &= ~exhausted

        # The policy chooses, after a question if it has one.
        silent = exhausted & (config.when_spent == "silent")
        heard = _question(policy, learner, world, before, own, round, latency, available, silent)
        selection, info = check_selected(
            policy.select(heard.choice_key, heard.policy, round, available), context.num_selected
        )
        clients, active = selection.clients, selection.active

        # The round lasts as long as its slowest client, or ends by its rule; who is late is lost,
        # or heard in the next.
        mute = silent[clients]
        if world.lost is not None:
            mute |= world.lost(own, round)[clients]
        ending = arrival(config, latency[clients], active, active & ~mute)
        seconds = heard.seconds + ending.seconds
        if config.presence is not None:
            seconds = jnp.where(jnp.any(active), seconds, heard.seconds + config.presence.recheck)

        # The chosen clients train and release, the server averages.
        sending, held = selection, before.held
        if can_be_unheard(config):
            averaged = ending.in_time if held is None else ending.in_time | ending.late
            sending = without_unheard(selection, averaged)
        release = release_of(mechanism, own.privacy, sending, epsilon[clients])
        training = own.training, before.learning, sending, release
        if held is None or learner.late is None:
            learning, trained = learner.train(*training)
        else:
            learning, trained, held = learner.late.train(*training, ending.late, held)

        # The policy and the server learn from what came back.
        speed = context.min_latency / ending.observed
        unheard, released = active & ~ending.in_time, trained.released
        if held is not None:
            released = jnp.where(unheard[:, None], 0.0, released)
        observation = Observation(
            ending.observed,
            jnp.where(unheard, jnp.nan, trained.loss),
            jnp.where(unheard, jnp.nan, trained.square_loss),
            released,
            ending.in_time,
        )
        clock, clock_rest = advanced(before.clock, before.clock_rest, seconds)
        after = State(
            keys=before.keys,
            learning=learning,
            policy=policy.update(heard.policy, selection, observation),
            stats=update_stats(before.stats, clients, speed, active),
            queried=heard.queried,
            played=before.played + 1,
            clock=clock,
            clock_rest=clock_rest,
            presence=presence,
            held=held,
        )
        reached = heard.reached.at[jnp.where(active, clients, num_clients)].set(True, mode="drop")
        played = Round(
            config, length, context, learner, round, before, after,
            latency, available, selection, info, trained, ending.in_time, work,
            jnp.sum(reached), jnp.sum(ending.in_time | ending.late), seconds, heard.seconds,
        )  # fmt: skip
        return after, record_round(quantities, played)

    given = *keys.of_rounds(state.keys, rounds), rounds
    first = keys.of_round(state.keys, *(x[0] for x in given[:2]))
    _, like = jax.eval_shape(play, state, first, rounds[0])

    def play_until_the_end(before: State, *of_round: Any) -> tuple[State, Record]:
        standing_still = before, record_unplayed(quantities, like)
        goes_on = ~has_ended(config, before.clock)
        return when(goes_on, lambda: play(before, *of_round), standing_still)

    step = play if config.max_seconds is None else play_until_the_end

    def play_and_record(i: Array, so_far: tuple[State, Record]) -> tuple[State, Record]:
        state, record = so_far
        *own, round = (lax.dynamic_index_in_dim(x, i, keepdims=False) for x in given)
        state, new = step(state, keys.of_round(state.keys, *own), round)
        put = functools.partial(lax.dynamic_update_index_in_dim, index=i, axis=0)
        return state, jax.tree.map(put, record, new)

    empty = jax.tree.map(lambda x: jnp.zeros((len(rounds), *x.shape), x.dtype), like)
    count = len(rounds) if count is None else count
    return lax.fori_loop(0, count, play_and_record, (state, empty))


class _Heard(NamedTuple):
    """What is known after a policy's question, or without one."""

    choice_key: Key[Array, ""]
    policy: Any
    queried: Int[Array, " K"]
    seconds: Float[Array, ""]
    reached: Bool[Array, " K"]  # who was sent the model for it


def _question(
    policy: Policy,
    learner: Learner,
    world: World,
    before: State,
    own: keys.RoundKeys,
    round: Array,
    latency: Array,
    available: Array,
    silent: Array,
) -> _Heard:
    """Put the policy's question to the clients, if it has one; it costs the seconds it takes.

    A silent client does not tell its loss, and the server waits for it.
    """
    query = policy.query
    if query is None:
        nobody = jnp.zeros(before.queried.shape, bool)
        return _Heard(own.policy, before.policy, before.queried, jnp.zeros(()), nobody)
    ask_key, choice_key = keys.asking_and_choosing(own.policy)
    clients, asked = query.ask(ask_key, before.policy, round, available)
    loss, told = jnp.ones(clients.shape), jnp.ones(clients.shape, bool)
    reached = jnp.zeros(before.queried.shape, bool)
    if query.wants == "loss":
        told = ~silent[clients]
        reached = reached.at[clients].max(asked)
        loss = learner.ask(own.answers, before.learning, clients, query.batch_size)
        loss = jnp.where(told, loss, jnp.nan)
    answer = Answer(loss, world.features(own, round)[clients], told)
    waited = jnp.where(asked, query.seconds(latency)[clients], 0.0)
    return _Heard(
        choice_key,
        query.hear(before.policy, clients, asked, answer),
        before.queried.at[clients].add((asked & told).astype(jnp.int32)),
        jnp.max(waited),
        reached,
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
