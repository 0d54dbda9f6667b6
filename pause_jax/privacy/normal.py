"""The standard normal distribution in log space: exact where float32 probabilities underflow."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array
from jax.scipy.special import log_ndtr

NEWTON_STEPS = 8


def log_density(x: Array) -> Array:
    """Log of the normal density, elementwise."""
    return -0.5 * (x * x + jnp.log(2 * jnp.pi))


def log_complement(log_probability: Array) -> Array:
    """log(1 - p) from log p < 0, elementwise."""
    return jnp.log(-jnp.expm1(log_probability))


def upper_quantile(log_probability: Array) -> Array:
    """The x with log P(N >= x) = ``log_probability``, for any below 0; elementwise."""
    # P(N >= x) and P(N >= -x) add up to 1: search on the side where x >= 0.
    mirrored = log_probability > -jnp.log(2.0)
    tail = jnp.where(mirrored, log_complement(log_probability), log_probability)

    # log P(N >= x) is concave and falls, so Newton's method from the right never overshoots;
    # P(N >= x) <= exp(-x^2 / 2) gives a start on the right.
    def step(_: int, x: Array) -> Array:
        log_tail = log_ndtr(-x)
        return x + (log_tail - tail) * jnp.exp(log_tail - log_density(x))

    x = jax.lax.fori_loop(0, NEWTON_STEPS, step, jnp.sqrt(-2 * tail))
    return jnp.where(mirrored, -x, x)


def above(key: Array, log_probability: Array) -> Array:
    """Draw N given N >= x, where ``log_probability`` = log P(N >= x); exact far in the tail."""
    drawn = log_probability - jax.random.exponential(key, dtype=log_probability.dtype)
    # A probability of exactly 1 has no quantile.
    return upper_quantile(jnp.minimum(drawn, -(2.0**-25)))
