"""What a policy may know of the network: built here for a simulation and for a server alike."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax import Array

from pause_jax.config import SimConfig
from pause_jax.policies import Context
from pause_jax.world.latency import Latency


def context_of(
    config: SimConfig,
    model: Latency,
    *,
    data_size: Array,
    local_samples: Array,
    share: Array,
    update_size: int,
    num_rounds: Array | int | None = None,
) -> Context:
    """The context that a policy is built from.

    Args:
      config: canonical config.
      model: its latency model, given the work of a round (``Latency.given``).
      data_size: float [K], samples of each client.
      local_samples: float [K], samples that each client trains on in a round.
      share: float [K], quality-weighted share of the data.
      update_size: entries of an update; 0 without learning.
      num_rounds: rounds of the run; those of the config if left out.

    Returns:
      The context.
    """
    num_clients = config.num_clients

    def varying(round: Array) -> Array:
        return model.expected_speed_at(round, num_clients)

    def forecast(clock: Array, ahead: Array) -> Array:
        if config.availability_trace is None:
            return jnp.full(num_clients, 1.0)
        return config.availability_trace.forecast(clock, ahead, num_clients)

    speed, latency = _expected(model, num_clients)
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


# A server asks without a trace: operation by operation it would compile fifty programs.
@functools.partial(jax.jit, static_argnums=1, inline=True)
def _expected(model: Latency, num_clients: int) -> tuple[Array, Array]:
    return model.expected_speed(num_clients), model.expected_latency(num_clients)
