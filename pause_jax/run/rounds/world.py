"""The world of a run: what happens to the clients, whatever a policy does by that time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from pause_jax.base.struct import ConfigError
from pause_jax.config import SimConfig
from pause_jax.rng import keys
from pause_jax.world.latency import Latency

# (keys of a round, round) -> array.
OfRound = Callable[[keys.RoundKeys, Array], Array]


class World(NamedTuple):
    """Pure functions of the keys of a round and its number.

    Attributes:
      latency: float [K], seconds that each client takes.
      init: (stream ``world``) -> the state of the availability trace before round 1.
      present: (state, keys, clock) -> (bool [K], who is available, state).
      lost: bool [K], who would be lost within the round; None for nobody.
      features: float [K, F], what clients can report before the round (see ``Latency.features``).
    """

    latency: OfRound
    init: Callable[[Array], Any]
    present: Callable[[Any, keys.RoundKeys, Array], tuple[Array, Any]]
    lost: OfRound | None
    features: OfRound


def world_of(config: SimConfig, model: Latency) -> World:
    """The world that a config describes, with its latency model fitted to the run's work."""
    num_clients, trace = config.num_clients, config.availability_trace

    def latency(round_keys: keys.RoundKeys, round: Array) -> Array:
        seconds = model.at(round_keys.latency, round, num_clients)
        if jnp.shape(seconds) != (num_clients,):
            raise ConfigError(
                f"latency = {type(model).__name__}: gave seconds of shape "
                f"{jnp.shape(seconds)}; must be [{num_clients}], one for each client."
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
        if model.drops:  # by the draw of its seconds, hence the same key
            gone |= model.dropped(jax.random.clone(round_keys.latency), round, num_clients)
        return gone

    def features(round_keys: keys.RoundKeys, round: Array) -> Array:
        return model.features(round_keys.latency, num_clients)

    drops = config.dropout is not None or model.drops
    return World(latency, init, present, lost if drops else None, features)
