"""Gaussian mechanism for whole updates, its noise calibration, and normal tail functions.

Normal probabilities are computed in log space, because small values underflow in float32.
"""

from __future__ import annotations

from typing import ClassVar

import jax
import jax.numpy as jnp
from jax import Array
from jax.scipy.special import log_ndtr

from pause_jax.base.struct import number
from pause_jax.privacy.mechanisms import GaussianLoss, PrivacyLoss, WholeUpdate
from pause_jax.rng import draws

BISECTION_STEPS = 40
NEWTON_STEPS = 8
# Cap on epsilon. A smaller epsilon means more noise, so the guarantee still holds.
MAX_EPSILON = 1e4
# In float32, the multiplier has a relative error below 2e-4 for epsilon >= 0.01 and delta >= 1e-9.
# The margin exceeds this error, because too small a multiplier would void the guarantee.
MARGIN = 1.0005


def clip_l2(x: Array, bound: Array | float) -> Array:
    """Scale ``x`` [d] down to Euclidean norm ``bound`` if its norm is larger."""
    return x * jnp.minimum(1.0, bound / jnp.maximum(norm(x), jnp.finfo(x.dtype).tiny))


def norm(x: Array) -> Array:
    """Compute the Euclidean norm of ``x`` [d] without overflow or underflow."""
    # XLA may rewrite c y / largest as y (c / largest), which is 0 times inf for the smallest float.
    largest = jnp.maximum(jnp.max(jnp.abs(x)), float(jnp.finfo(x.dtype).tiny) ** 0.75)
    return largest * jnp.linalg.norm(x / largest)


def log_density(x: Array) -> Array:
    """Compute the log of the standard normal density, elementwise."""
    return -0.5 * (x * x + jnp.log(2 * jnp.pi))


def log_complement(log_probability: Array) -> Array:
    """Compute log(1 - p) from ``log_probability`` = log p < 0, elementwise."""
    return jnp.log(-jnp.expm1(log_probability))


def upper_quantile(log_probability: Array) -> Array:
    """Solve log P(N >= x) = ``log_probability`` < 0 for x, where N is standard normal."""
    # P(N >= x) and P(N >= -x) sum to 1, so search on the side where x >= 0.
    mirrored = log_probability > -jnp.log(2.0)
    tail = jnp.where(mirrored, log_complement(log_probability), log_probability)

    # log P(N >= x) is concave and decreasing, so Newton steps never cross the root from the right.
    # The bound P(N >= x) <= exp(-x^2 / 2) yields a starting point to the right of the root.
    def step(_: int, x: Array) -> Array:
        log_tail = log_ndtr(-x)
        return x + (log_tail - tail) * jnp.exp(log_tail - log_density(x))

    x = jax.lax.fori_loop(0, NEWTON_STEPS, step, jnp.sqrt(-2 * tail))
    return jnp.where(mirrored, -x, x)


def above(key: Array, log_probability: Array) -> Array:
    """Draw a standard normal N given N >= x, where log P(N >= x) = ``log_probability``."""
    drawn = log_probability - jax.random.exponential(key, dtype=log_probability.dtype)
    # A probability of exactly 1 has no finite quantile.
    return upper_quantile(jnp.minimum(drawn, -(2.0**-25)))


def gaussian_multiplier(epsilon: Array, delta: Array | float) -> Array:
    """Compute the smallest sigma / sensitivity for which Gaussian noise is (epsilon, delta)-DP.

    Balle and Wang 2018 (arXiv 1805.06530), Theorem 8: delta >= Phi(1/(2t) - epsilon t) - e^epsilon
    Phi(-1/(2t) - epsilon t) for the multiplier t. Bisection over log t solves the inequality, and
    ``MARGIN`` enlarges the solution. Epsilon is capped at ``MAX_EPSILON``.
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

    # At the bracket's upper end, even the total variation distance, about 0.4 / t, is below delta.
    # At the bracket's lower end, the noise is too small even for the largest epsilon.
    low = jnp.full_like(epsilon, jnp.log(1e-3))
    high = jnp.zeros_like(epsilon) + jnp.maximum(jnp.log(0.5 / delta), 0.0)
    return MARGIN * jnp.exp(jax.lax.fori_loop(0, BISECTION_STEPS, halve, (low, high))[1])


class GaussianMechanism(WholeUpdate):
    """Mechanism that clips the update to L2 norm C and adds Gaussian noise to every coordinate.

    Formal guarantees:
      Each eps_i covers the whole update. The guarantee is (eps_i, delta)-LDP (replace-one). Two
      clipped updates differ by at most 2C in L2 norm. The analytic calibration of Balle and Wang
      2018 (arXiv 1805.06530) sets sigma for this sensitivity and is valid for every eps_i. By basic
      composition, n releases are (sum of eps_i, n * delta)-LDP.

    Attributes:
      delta: failure probability of a single release.
    """

    name: ClassVar[str] = "gaussian"
    summary: ClassVar[str] = "clip the update to L2 norm C and add (eps, delta)-LDP Gaussian noise"

    delta: float = number(default=1e-5, at_least=1e-9, at_most=0.5)  # type: ignore[misc]

    def privacy_loss(self, epsilon: Array) -> PrivacyLoss:
        return GaussianLoss(gaussian_multiplier(epsilon, self.delta))

    def privatize(self, key: Array, update: Array, epsilon: Array) -> Array:
        noise = draws.normal(key, update.shape, update.dtype)
        return clip_l2(update, self.clip_norm) + noise * self._sigma(epsilon)

    def noise_power(self, epsilon: Array, dimension: int) -> Array:
        return dimension * self._sigma(epsilon) ** 2

    def _sigma(self, epsilon: Array) -> Array:
        return 2 * self.clip_norm * gaussian_multiplier(epsilon, self.delta)
