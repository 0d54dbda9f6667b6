"""Stale updates: those before the first round, how they join an average, and REFL's weights.

Source of the weights: Abdelmoniem et al., "REFL: resource-efficient federated learning", EuroSys
2023.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.flatten_util import ravel_pytree

from pause_jax.learning.learner import LearnerState, StaleUpdates

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


def with_stale(
    updates: Any, weights: Array, is_stale: Array, stale: StaleUpdates, beta: Array | float | None
) -> tuple[Any, Array, StaleUpdates]:
    """Updates and weights to average now, in time and stale [2 m], and the next stale updates.

    The weights to average by are scaled to a sum of one; ``beta`` is that of :func:`damping`.
    """
    now, before = jnp.where(is_stale, 0.0, weights), stale.weights
    if beta is not None:
        fresh, old = updates["params"], stale.updates["params"]
        before = before * damping(beta, fresh, now > 0, old, before > 0)
    both = jnp.concatenate([now, before])
    total = jnp.sum(both)
    joined = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), updates, stale.updates)
    return joined, both / jnp.where(total > 0, total, 1.0), StaleUpdates(updates, weights - now)


def no_updates(state: LearnerState, size: int) -> Any:
    """As many updates of zeros, with flat ``params``."""
    params, _ = ravel_pytree(state.model["params"])
    model = {**state.model, "params": params}
    return jax.tree.map(lambda x: jnp.zeros((size, *x.shape), x.dtype), model)


def no_stale_updates(state: LearnerState, num_selected: int) -> StaleUpdates:
    """The stale updates before round 1: none."""
    weights = jnp.zeros(num_selected, jnp.float32)  # as a selection's, under x64 too
    return StaleUpdates(no_updates(state, num_selected), weights)
