"""Bounds on one client's update, a vector [d], before its noise."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array


def clip_l1(x: Array, bound: Array | float) -> Array:
    """``x`` [d] scaled to L1 norm at most ``bound``; 0 stays 0."""
    return x * jnp.minimum(1.0, bound / jnp.maximum(jnp.sum(jnp.abs(x)), 1e-30))


def clip_l2(x: Array, bound: Array | float) -> Array:
    """``x`` [d] scaled to Euclidean norm at most ``bound``; 0 stays 0."""
    return x * jnp.minimum(1.0, bound / jnp.maximum(norm(x), jnp.finfo(x.dtype).tiny))


def norm(x: Array) -> Array:
    """Euclidean norm of ``x`` [d] that neither overflows nor underflows."""
    largest = jnp.maximum(jnp.max(jnp.abs(x)), jnp.finfo(x.dtype).tiny)
    return largest * jnp.linalg.norm(x / largest)


def direction(x: Array, fallback: Array) -> Array:
    """``x`` [d] scaled to Euclidean norm 1; +-e_1 with the sign of ``fallback`` where x is 0."""
    largest = jnp.max(jnp.abs(x))
    scaled = jnp.where(largest > 0, x / largest, jnp.zeros_like(x).at[0].set(fallback))
    return scaled / jnp.linalg.norm(scaled)
