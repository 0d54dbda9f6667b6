"""Mechanisms that randomise the direction of updates with a bounded L2 norm.

For epsilon = 8 and 50,890 parameters, the Gaussian mechanism's error is 11 times PrivUnitG's. With
an L1 bound that leaves L2 unit vectors unclipped, Laplace noise has 48,000 times PrivUnitG's error.
"""

from __future__ import annotations

import math
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.scipy.special import log_ndtr
from jaxtyping import Float

from pause_jax.privacy.gaussian import (
    MAX_EPSILON,
    above,
    clip_l2,
    log_complement,
    log_density,
    norm,
    upper_quantile,
)
from pause_jax.privacy.mechanisms import WholeUpdate


def direction(x: Array) -> Array:
    """Scale ``x`` [d] to Euclidean norm 1, or return e_1 if x is 0."""
    largest = jnp.max(jnp.abs(x))
    scaled = jnp.where(largest > 0, x / largest, jnp.zeros_like(x).at[0].set(1.0))
    return scaled / jnp.linalg.norm(scaled)


class Cap(NamedTuple):
    """PrivUnitG parameters for one epsilon."""

    log_odds: Float[Array, ""]  # log odds of p, the probability of drawing from the cap
    log_share: Float[Array, ""]  # log of q, the cap's probability under the normal distribution
    edge: Float[Array, ""]  # gamma; the cap around x contains all g with <g, x> >= gamma
    scale: Float[Array, ""]  # sigma, which makes the release unbiased


def best_cap(epsilon: Array) -> Cap:
    """Find the cap with the smallest sigma for a scalar epsilon.

    Pure epsilon-LDP requires (p / q) / ((1 - p) / (1 - q)) <= e^epsilon, and equality minimises
    sigma. The best p is 1/2 for small epsilon and about 1 - 1 / (2 epsilon) for large epsilon, so a
    grid of log odds from 0 to 12 covers every epsilon up to ``MAX_EPSILON``.
    """
    epsilon = jnp.minimum(epsilon, MAX_EPSILON)
    log_odds = jnp.linspace(0.0, 12.0, 121)
    log_share = jax.nn.log_sigmoid(log_odds - epsilon)
    edge = upper_quantile(log_share)
    # The mean along x is phi(gamma) (p/q - (1-p)/(1-q)) = phi(gamma) p (1 - e^-epsilon) / q.
    hazard = jnp.exp(log_density(edge) - log_ndtr(-edge))
    scale = 1 / (hazard * jax.nn.sigmoid(log_odds) * -jnp.expm1(-epsilon))
    best = jnp.argmin(scale)
    return Cap(log_odds[best], log_share[best], edge[best], scale[best])


def priv_unit_g(key: Array, unit: Array, epsilon: Array) -> Array:
    """Draw an unbiased release of the unit vector ``unit``. Both vectors are float [d].

    The privacy guarantee holds only if ``unit`` has Euclidean norm 1. ``epsilon`` is a scalar > 0.
    """
    along_key, inside_key, around_key = jax.random.split(key, 3)
    cap = best_cap(epsilon)
    inside = jax.random.uniform(inside_key) < jax.nn.sigmoid(cap.log_odds)
    share = jnp.where(inside, cap.log_share, log_complement(cap.log_share))
    along = jnp.where(inside, 1.0, -1.0) * above(along_key, share)
    around = jax.random.normal(around_key, unit.shape, unit.dtype)
    released = cap.scale * (around + (along - around @ unit) * unit)
    return released.astype(unit.dtype)


class PrivUnitG(WholeUpdate):
    """Mechanism that draws a normal vector, oversampling a cap around the update.

    Formal guarantees:
      Each eps_i covers the whole update. The guarantee is pure eps_i-LDP (replace-one).
      It holds for any two unit vectors and does not rely on a sensitivity bound. Source: Asi,
      Feldman and Talwar 2022 (arXiv 2205.02466).

    The clipped update is divided by C and extended by one coordinate to a unit vector. The release
    is an unbiased estimate of the clipped update.
    """

    name: ClassVar[str] = "priv_unit_g"
    summary: ClassVar[str] = (
        "clip the update to L2 norm C and apply PrivUnitG (pure LDP, near-optimal error)"
    )

    def privatize(self, key: Array, update: Array, epsilon: Array) -> Array:
        # Clip after dividing, because rounding in the division could leave the norm above 1.
        inside = clip_l2(update / self.clip_norm, 1.0)
        last = jnp.sqrt(jnp.maximum(0.0, 1 - inside @ inside))
        unit = jnp.append(inside, last)
        return self.clip_norm * priv_unit_g(key, unit / jnp.linalg.norm(unit), epsilon)[:-1]

    def noise_power(self, epsilon: Array, dimension: int) -> Array:
        cap = jax.vmap(best_cap)(epsilon)
        # The release of a unit vector has mean square sigma^2 (1 + gamma / sigma) along the vector
        # and sigma^2 in each of the d - 1 orthogonal directions.
        power = dimension * cap.scale**2 + cap.edge * cap.scale
        return self.clip_norm**2 * (power - 1)


def duchi_length(dimension: int, epsilon: Array) -> Array:
    """Compute B of Duchi, Jordan and Wainwright, the norm of each release for unit-ball inputs."""
    # Use float64 on the host, because the two log-gamma terms are large and nearly equal.
    log_ratio = math.lgamma((dimension + 1) / 2) - math.lgamma(dimension / 2)
    return math.sqrt(math.pi) * math.exp(log_ratio) / jnp.tanh(epsilon / 2)


class DuchiL2(WholeUpdate):
    """Mechanism that draws a point on a large sphere, oversampling the update's hemisphere.

    Formal guarantees:
      Each eps_i covers the whole update. The guarantee is pure eps_i-LDP (replace-one). It holds
      for any two points in the ball of radius C and does not rely on a sensitivity bound. The
      release is an unbiased estimate of the clipped update. The mean squared error is order-optimal
      for eps_i <= 1 but never falls below about 1.57 d C^2. Source: Duchi, Jordan and Wainwright
      2018 (arXiv 1604.02390), section 4.2.3.
    """

    name: ClassVar[str] = "duchi_l2"
    summary: ClassVar[str] = (
        "clip the update to L2 norm C and draw a point on a sphere (pure LDP, Duchi et al.)"
    )

    def privatize(self, key: Array, update: Array, epsilon: Array) -> Array:
        end_key, side_key, point_key = jax.random.split(key, 3)
        toward = direction(update)
        length = jnp.minimum(norm(update) / self.clip_norm, 1.0)
        end = jnp.where(jax.random.uniform(end_key) < (1 + length) / 2, 1.0, -1.0)
        side = jnp.where(jax.random.uniform(side_key) < jax.nn.sigmoid(epsilon), 1.0, -1.0)
        point = direction(jax.random.normal(point_key, update.shape, update.dtype))
        flip = jnp.where(point @ toward >= 0, 1.0, -1.0)
        radius = self.clip_norm * duchi_length(update.size, epsilon)
        return radius * end * side * flip * point

    def noise_power(self, epsilon: Array, dimension: int) -> Array:
        return self.clip_norm**2 * (duchi_length(dimension, epsilon) ** 2 - 1)
