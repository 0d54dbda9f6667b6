"""Construction of a run's learner, world and policy from a config and data."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from pause_jax.base.struct import ConfigError
from pause_jax.config import SimConfig
from pause_jax.learning import Execution, Learner, LearnerState, bandit_only
from pause_jax.learning.learner import model_bytes, output_layer, update_size
from pause_jax.learning.work import WorkLaw
from pause_jax.policies import Context, Policy, policy_of
from pause_jax.policies.renumbered import renumbered
from pause_jax.rng import keys
from pause_jax.run.rounds.horizon import Length, length_of
from pause_jax.world.latency import Latency, Work

# Function that maps (round keys, round number) to an array.
OfRound = Callable[[keys.RoundKeys, Array], Array]
# Function that maps local work factors ([K], or None if all are 1) to (latency model, work).
OfWork = Callable[[Array | None], tuple[Latency, Work]]


class World(NamedTuple):
    """Simulated world, as pure functions that draw each round's latencies and availability.

    Attributes:
      work: (keys) -> float [K], local work factors, or None if all are 1.
      latency: (keys, round, factors or None) -> float [K], latency of each client in seconds.
      init: (``world`` key stream) -> state of the availability trace before round 1.
      present: (trace state, keys, clock) -> (mask of available clients, bool [K]; new trace state).
      lost: (keys, round) -> bool [K], clients that drop out of the round if they are chosen,
        or None if clients never drop out.
      features: (keys, round) -> float [K, F], features that clients report before the round (see
        ``Latency.features``).
    """

    work: Callable[[keys.RoundKeys], Array] | None
    latency: Callable[[keys.RoundKeys, Array, Array | None], Array]
    init: Callable[[Array], Any]
    present: Callable[[Any, keys.RoundKeys, Array], tuple[Array, Any]]
    lost: OfRound | None
    features: OfRound


class Setup(NamedTuple):
    """Components of a run, built from its config and data."""

    config: SimConfig
    length: Length
    learner: Learner
    work: Work
    world: World
    context: Context
    policy: Policy


def learner_of(config: SimConfig, data: Any, execution: Execution | None = None) -> Learner:
    """Build the learner of a canonical config.

    Raises:
      TypeError: if ``config.learning.build`` does not return a ``Learner``.
      ConfigError: if ``stale_updates`` is ``next`` and the learner has no ``deferred``.
    """
    learning = config.learning
    if learning is None:
        return bandit_only(config.num_clients)
    name = type(learning).__name__
    learner = learning.build(data, config.num_clients, execution)
    if not isinstance(learner, Learner):
        raise TypeError(
            f"{name}.build returned {type(learner).__name__}, but must return Learner(init, "
            "train, ask, evaluate)."
        )
    if config.stale_updates == "next" and learner.deferred is None:
        raise ConfigError(
            f"stale_updates = 'next': the learner of {name} cannot average stale updates. Define "
            "`deferred` in the learner, or set stale_updates = 'lost'."
        )
    return learner


def setup_of(
    config: SimConfig,
    learner: Learner,
    learning: LearnerState,
    world: Array,
    length: Length | None = None,
) -> Setup:
    """Build a run's components from its learner, the learner state and the ``world`` key stream.

    The learner state may be from any round, because only its partition and model shapes are read.
    """
    length = length_of(config) if length is None else length
    data_size = learning.partition.size.astype(jnp.float32)
    size = float(model_bytes(learning))
    latency_of = latency_by_work(config, size, data_size, learner.local_samples)
    context = context_of(
        config,
        latency_of,
        data_size=data_size,
        share=learning.partition.share,
        update_size=update_size(learning),
        num_rounds=length.num_rounds,
    )
    context = context._replace(
        output_layer=functools.partial(output_layer, learning),
        validates=learner.server_loss is not None,
    )
    return Setup(
        config=config,
        length=length,
        learner=learner,
        work=latency_of(None)[1],
        world=world_of(config, latency_of),
        context=context,
        policy=policy_for(config, context, world),
    )


def policy_for(config: SimConfig, context: Context, world: Array) -> Policy:
    """Build a run's policy, with shuffled client numbers if ``shuffle_clients`` is True."""
    if not config.shuffle_clients:
        return policy_of(config.policy, context)
    order = jax.random.permutation(keys.client_order(world), config.num_clients)
    return renumbered(config.policy, context, order)


def latency_by_work(
    config: SimConfig,
    model_bytes: float,
    data_size: Array,
    local_samples: Callable[[Array, Array | None], Array] | None,
) -> OfWork:
    """Return a function that maps local work factors to (latency model, work)."""

    def latency_of(factors: Array | None) -> tuple[Latency, Work]:
        samples = data_size if local_samples is None else local_samples(data_size, factors)
        return config.latency.with_work(Work(model_bytes, model_bytes, samples))

    return latency_of


def work_law(config: SimConfig) -> WorkLaw | None:
    """Return the distribution of the local work factors, or None if all factors are 1."""
    if config.learning is None or config.learning.work.equal:
        return None
    return config.learning.work


def context_of(
    config: SimConfig,
    latency_of: OfWork,
    *,
    data_size: Array,
    share: Array,
    update_size: int,
    num_rounds: Array | int | None = None,
) -> Context:
    """Build a policy's context for a simulation or a deployed server."""
    num_clients = config.num_clients
    law = work_law(config)
    model, work = latency_of(None)

    def expected(of: Callable[[Latency, Work], Any]) -> Any:
        """Return the mean of ``of(latency model, work)`` over the local work levels."""
        if law is None:
            return of(model, work)
        levels = jax.vmap(lambda factors: of(*latency_of(factors)))(law.levels(num_clients))
        return jax.tree.map(lambda x: jnp.mean(x, axis=0), levels)

    def varying(round: Array) -> Array:
        return expected(lambda model, _: model.expected_speed_at(round, num_clients))

    def forecast(clock: Array, ahead: Array) -> Array:
        if config.availability_trace is None:
            return jnp.full(num_clients, 1.0)
        return config.availability_trace.forecast(clock, ahead, num_clients)

    speed, latency, local_samples = expected(
        lambda model, work: (*_expected(model, num_clients), work.samples)
    )
    return Context(
        num_clients=num_clients,
        num_selected=config.cohort_size,
        num_rounds=config.num_rounds if num_rounds is None else num_rounds,
        update_size=update_size,
        num_features=model.num_features,
        data_size=data_size,
        local_samples=local_samples,
        share=share,
        reward=config.reward,
        privacy=config.privacy,
        min_latency=jnp.asarray(model.min_latency),
        expected_speed=speed,
        expected_latency=latency,
        varying=varying if model.varies else None,
        forecast=forecast,
    )


# Jitted because eager calls from a deployed server would compile about fifty small programs.
@functools.partial(jax.jit, static_argnums=1, inline=True)
def _expected(model: Latency, num_clients: int) -> tuple[Array, Array]:
    return model.expected_speed(num_clients), model.expected_latency(num_clients)


def world_of(config: SimConfig, latency_of: OfWork) -> World:
    """Build a config's world (see :func:`latency_by_work` for ``latency_of``)."""
    num_clients = config.num_clients
    trace = config.availability_trace
    law = work_law(config)
    model, _ = latency_of(None)

    def work(round_keys: keys.RoundKeys) -> Array:
        assert law is not None
        return law.factors(keys.local_work(round_keys.latency), num_clients)

    def latency(round_keys: keys.RoundKeys, round: Array, factors: Array | None) -> Array:
        model, _ = latency_of(factors)
        seconds = model.at(round_keys.latency, round, num_clients)
        if jnp.shape(seconds) != (num_clients,):
            raise ConfigError(
                f"latency = {type(model).__name__}: returned latencies of shape "
                f"{jnp.shape(seconds)}, but must return [{num_clients}], one per client."
            )
        return jnp.asarray(seconds, jnp.float32)

    def init(stream: Array) -> Any:
        return () if trace is None else trace.init(keys.first_availability(stream), num_clients)

    def present(state: Any, round_keys: keys.RoundKeys, clock: Array) -> tuple[Array, Any]:
        free = jax.random.bernoulli(round_keys.availability, config.availability, (num_clients,))
        if trace is None:
            return free, state
        connected, state = trace.step(state, round_keys.availability_trace, clock, num_clients)
        return free & connected, state

    def lost(round_keys: keys.RoundKeys, round: Array) -> Array:
        gone = jnp.zeros(num_clients, bool)
        if config.dropout is not None:
            chance = jnp.asarray(config.dropout)
            gone = jax.random.bernoulli(round_keys.dropout, chance, (num_clients,))
        if model.drops:  # same key, because drop-outs are part of the latency draw
            gone |= model.dropped(jax.random.clone(round_keys.latency), round, num_clients)
        return gone

    def features(round_keys: keys.RoundKeys, round: Array) -> Array:
        return model.features(round_keys.latency, num_clients)

    drops = config.dropout is not None or model.drops
    return World(
        work=None if law is None else work,
        latency=latency,
        init=init,
        present=present,
        lost=lost if drops else None,
        features=features,
    )
