"""Updates that are averaged later than they were trained: stale ones, and those in flight."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.flatten_util import ravel_pytree

from pause_jax.learning.learner import LearnerState, StaleUpdates
from pause_jax.learning.staleness import damping


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
    return StaleUpdates(no_updates(state, num_selected), jnp.zeros(num_selected))
