"""The world of a run: what happens to the clients, whatever a policy does."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from pause_jax import keys
from pause_jax.config import SimConfig
from pause_jax.struct import ConfigError

# (stream ``world``, round) -> array.
Shown = Callable[[Array, Array], Array]


class World(NamedTuple):
    """Pure functions of the key stream ``world`` and the round.

    Attributes:
      latency: float [K], seconds that each client takes.
      present: bool [K], who is available.
      features: float [K, F], what clients can report before the round (see ``Latency.features``).
    """

    latency: Shown
    present: Shown
    features: Shown


def world_of(config: SimConfig) -> World:
    """The world that a config describes."""
    num_clients = config.num_clients

    def latency(stream: Array, round: Array) -> Array:
        seconds = config.latency.at(keys.latency(stream, round), round, num_clients)
        if jnp.shape(seconds) != (num_clients,):
            raise ConfigError(
                f"latency = {type(config.latency).__name__}: gave seconds of shape "
                f"{jnp.shape(seconds)}; must be [{num_clients}], one for each client."
            )
        return jnp.asarray(seconds, jnp.float32)

    def present(stream: Array, round: Array) -> Array:
        key = keys.availability(stream, round)
        return jax.random.bernoulli(key, config.availability, (num_clients,))

    def features(stream: Array, round: Array) -> Array:
        return config.latency.features(keys.latency(stream, round), num_clients)

    return World(latency, present, features)
