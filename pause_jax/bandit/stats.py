"""Client speed statistics and upper confidence bounds.

Source: Peleg et al. 2025 (PAUSE), Eqs. (11)-(13).
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from pause_jax.bandit.protocol import store_active


class ClientStats(NamedTuple):
    """Sufficient statistics of the semi-bandit feedback.

    Attributes:
      counts: int or float [K], T_k, number of rounds in which each client took part.
      mean_speed: float [K], mean of tau_min / tau_k over client k's T_k rounds (0 if T_k is 0).
    """

    counts: Int[Array, " K"] | Float[Array, " K"]
    mean_speed: Float[Array, " K"]


def empty_stats(num_clients: int) -> ClientStats:
    """Return the statistics before round 1."""
    return ClientStats(jnp.zeros(num_clients, jnp.int32), jnp.zeros(num_clients))


def update_stats(
    stats: ClientStats, clients: Array, speed: Array, active: Array | bool = True
) -> ClientStats:
    """Add one observation for each client that took part (PAUSE, Eq. 12).

    Args:
      stats: statistics through round t - 1.
      clients: int [m], distinct client numbers.
      speed: float [m], tau_min / tau of each chosen client, in (0, 1].
      active: bool [m], False for empty slots, which leave the statistics unchanged.

    Returns:
      Statistics through round t.
    """
    took_part = jnp.broadcast_to(jnp.asarray(active), clients.shape)
    counts = stats.counts.at[clients].add(took_part.astype(stats.counts.dtype))
    old = stats.mean_speed[clients]
    # The incremental form of Eq. (12) is exact for one observation and numerically stable.
    step = (speed - old) / jnp.maximum(counts[clients], 1).astype(speed.dtype)
    return ClientStats(counts, store_active(stats.mean_speed, clients, old + step, took_part))


def ucb_index(
    stats: ClientStats,
    round: Array | int,
    num_selected: int,
    *,
    speed_weight: Array | float = 1.0,
) -> Array:
    """Compute upper confidence bounds on the clients' speeds before a round (PAUSE, Eq. 13).

    The bound is ``speed_weight * mean_speed + sqrt((m + 1) ln t / counts)``. As in the authors'
    code and BSFL, t is the upcoming round. (The paper's ln(t - 1) is undefined at t = 1.)

    Args:
      stats: statistics through the previous round.
      round: t, upcoming round, >= 1.
      num_selected: m, cohort size.
      speed_weight: zeta (1 in the paper's formula, 3 in the authors' large network).

    Returns:
      Dimensionless bounds, float [K], +inf for untried clients.
    """
    counts = stats.counts.astype(stats.mean_speed.dtype)
    log_round = jnp.log(jnp.asarray(round, counts.dtype))
    bonus = jnp.sqrt((num_selected + 1) * log_round / jnp.maximum(counts, 1))
    return jnp.where(counts > 0, speed_weight * stats.mean_speed + bonus, jnp.inf)
