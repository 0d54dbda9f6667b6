"""Weights of stale updates, as REFL gives them.

Source: Abdelmoniem et al., "REFL: resource-efficient federated learning", EuroSys 2023.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array

# Rounds by which an update of ``stale_updates="next"`` is late.
_AGE = 1


def damping(beta: Array | float, fresh: Array, in_time: Array, stale: Array, due: Array) -> Array:
    """Factors of the weights of stale updates, beside fresh ones, which have 1; float [m].

    (1 - beta) / (age + 1) + beta (1 - exp(-L / max L)). L = |u - (s + n u) / (n + 1)|^2 / |u|^2
    says how far the stale update s moves the mean u of the n fresh ones; L = 0 without any. The
    exponential is not divided by ten, as it is in the program.

    Args:
      beta: weight of the second term.
      fresh: float [m, d], updates of this round.
      in_time: bool [m], which of them are averaged now.
      stale: float [m, d], updates of the round before.
      due: bool [m], which of them are averaged now.
    """
    number = jnp.sum(in_time).astype(fresh.dtype)
    mean = jnp.sum(jnp.where(in_time[:, None], fresh, 0.0), axis=0) / jnp.maximum(number, 1)
    # The moved mean differs from u by (u - s) / (n + 1).
    apart = jnp.sum(jnp.square(mean[None, :] - jnp.where(due[:, None], stale, 0.0)), axis=1)
    scale = jnp.sum(jnp.square(mean)) * (number + 1) ** 2
    moves = jnp.where(due & (scale > 0), apart / jnp.where(scale > 0, scale, 1.0), 0.0)
    most = jnp.max(moves)
    boost = 1 - jnp.exp(-moves / jnp.where(most > 0, most, 1.0))
    return (1 - beta) / (_AGE + 1) + beta * boost
