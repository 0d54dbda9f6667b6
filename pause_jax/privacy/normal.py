"""The standard normal distribution in log space: exact where float32 probabilities underflow."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array
from jax.scipy.special import log_ndtr

NEWTON_STEPS = 8
BISECTION_STEPS = 40
# Above it a guarantee says nothing, and exp(-epsilon) is 0 long before. More noise than needed.
MAX_EPSILON = 1e4
# float32 finds the multiplier to 2e-4 for epsilon >= 0.01 and delta >= 1e-9. Never too little.
MARGIN = 1.0005


def log_density(x: Array) -> Array:
    """Log of the normal density."""
    return -0.5 * (x * x + jnp.log(2 * jnp.pi))


def log_complement(log_probability: Array) -> Array:
    """log(1 - p) from log p < 0."""
    return jnp.log(-jnp.expm1(log_probability))


def upper_quantile(log_probability: Array) -> Array:
    """The x with log P(N >= x) = ``log_probability``, for any log probability below 0."""
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


def gaussian_multiplier(epsilon: Array, delta: Array | float) -> Array:
    """Smallest sigma / sensitivity of an (epsilon, delta) Gaussian mechanism.

    Balle and Wang 2018, Theorem 8: delta >= Phi(1/(2t) - epsilon t) -
    e^epsilon Phi(-1/(2t) - epsilon t) for the multiplier t, solved by bisection over log t and
    enlarged by ``MARGIN``.
    """
    epsilon = jnp.minimum(epsilon, MAX_EPSILON)
    target = jnp.log(delta)

    def too_small(multiplier: Array) -> Array:
        log_first = log_ndtr(0.5 / multiplier - epsilon * multiplier)
        log_second = epsilon + log_ndtr(-0.5 / multiplier - epsilon * multiplier)
        ratio = jnp.minimum(log_second - log_first, 0.0)
        return log_first + log_complement(ratio) > target

    def halve(_: int, bracket: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = bracket
        middle = (low + high) / 2
        small = too_small(jnp.exp(middle))
        return jnp.where(small, middle, low), jnp.where(small, high, middle)

    # At the right end the total variation distance alone, about 0.4 / t, is below delta; at the
    # left end two inputs are told apart at the largest epsilon.
    low = jnp.full_like(epsilon, jnp.log(1e-3))
    high = jnp.zeros_like(epsilon) + jnp.maximum(jnp.log(0.5 / delta), 0.0)
    return MARGIN * jnp.exp(jax.lax.fori_loop(0, BISECTION_STEPS, halve, (low, high))[1])
