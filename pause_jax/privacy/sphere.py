"""Mechanisms for vectors of bounded Euclidean norm that draw a direction near the true one.

At epsilon 8 and 50,890 parameters PrivUnitG has a tenth of the error of the Gaussian mechanism and
a thirty-thousandth of that of Laplace noise behind an L1 clip that leaves a unit vector whole.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.scipy.special import log_ndtr

from pause_jax.base.struct import number, static
from pause_jax.privacy.gaussian import (
    MAX_EPSILON,
    above,
    clip_l2,
    log_complement,
    log_density,
    norm,
    upper_quantile,
)
from pause_jax.privacy.mechanisms import Budgeted

if TYPE_CHECKING:
    from jaxtyping import Float


def direction(x: Array, fallback: Array) -> Array:
    """``x`` [d] scaled to Euclidean norm 1; +-e_1 with the sign of ``fallback`` where x is 0."""
    largest = jnp.max(jnp.abs(x))
    scaled = jnp.where(largest > 0, x / largest, jnp.zeros_like(x).at[0].set(fallback))
    return scaled / jnp.linalg.norm(scaled)


class Cap(NamedTuple):
    """Parameters of PrivUnitG for one epsilon."""

    log_odds: Float[Array, ""]  # of p, the probability to draw from the cap around the input
    log_share: Float[Array, ""]  # log of q, the cap's probability under the normal law
    edge: Float[Array, ""]  # gamma, the cap is <g, x> >= gamma
    scale: Float[Array, ""]  # sigma, makes the release unbiased


def best_cap(epsilon: Array) -> Cap:
    """The cap with the least sigma; pure epsilon-LDP: (p / q) / ((1 - p) / (1 - q)) = e^epsilon.

    The best p is 1/2 for small epsilon and about 1 - 1 / (2 epsilon) for large, so a grid over its
    log odds from 0 to 12 serves every epsilon up to ``MAX_EPSILON``.
    """
    epsilon = jnp.minimum(epsilon, MAX_EPSILON)
    log_odds = jnp.linspace(0.0, 12.0, 121)
    log_share = jax.nn.log_sigmoid(log_odds - epsilon)
    edge = upper_quantile(log_share)
    # The mean along x is phi(gamma) (p/q - (1-p)/(1-q)); the bracket is p (1 - e^-epsilon) / q.
    hazard = jnp.exp(log_density(edge) - log_ndtr(-edge))
    scale = 1 / (hazard * jax.nn.sigmoid(log_odds) * -jnp.expm1(-epsilon))
    best = jnp.argmin(scale)
    return Cap(log_odds[best], log_share[best], edge[best], scale[best])


def priv_unit_g(key: Array, unit: Array, epsilon: Array) -> Array:
    """Unbiased release, float [d], of a unit vector.

    Asi, Feldman and Talwar 2022 (arXiv 2201.10407). The guarantee rests on ``unit`` having
    Euclidean norm 1. ``epsilon`` is a scalar > 0.
    """
    along_key, inside_key, around_key = jax.random.split(key, 3)
    cap = best_cap(epsilon)
    inside = jax.random.uniform(inside_key) < jax.nn.sigmoid(cap.log_odds)
    share = jnp.where(inside, cap.log_share, log_complement(cap.log_share))
    along = jnp.where(inside, 1.0, -1.0) * above(along_key, share)
    around = jax.random.normal(around_key, unit.shape, unit.dtype)
    released = cap.scale * (around + (along - around @ unit) * unit)
    return released.astype(unit.dtype)


class PrivUnitG(Budgeted):
    """Draw a normal vector whose part along the update falls more often in a cap around it.

    Formal guarantees:
      Unit: the whole update of one release; pure eps_i-LDP, replace-one. It protects any two unit
      vectors, so no sensitivity enters; ``norm`` says how an update becomes one. Asi, Feldman and
      Talwar 2022 (arXiv 2201.10407).

    Of the clipped update the release is unbiased with ``lift``, whose clip is the only loss. With
    ``fixed`` the length is lost: every release is an unbiased estimate of the direction times C.
    ``private`` spends the share s of eps_i on the length: the norm clipped to [0, C] is released
    with Laplace(C / (s eps_i)) and cut to [0, C] again, which biases it (strongly for s eps_i below
    5), and the direction has the rest, (1 - s) eps_i. An update of 0 has a random direction +-e_1.

    Attributes:
      clip_norm: C, bound on the L2 norm of an update.
      norm: how the update becomes a unit vector: ``lift`` clips it and completes it to length C by
        one more coordinate, ``fixed`` and ``private`` take its direction.
      norm_share: share s of epsilon for the length; only with ``private``.
    """

    name: ClassVar[str] = "priv_unit_g"
    summary: ClassVar[str] = "clip the update to L2 norm C, PrivUnitG: pure, near the least error"
    unit: ClassVar[str] = "update"

    clip_norm: float = number(default=1.0, above=0)
    norm: str = static(default="lift", choices=("lift", "fixed", "private"))
    norm_share: float = number(default=0.01, above=0, at_most=0.99)

    def privatize(self, key: Array, update: Array, epsilon: Array) -> Array:
        if self.norm == "lift":
            # Clipped after the division, so that no rounding leaves the ball.
            inside = clip_l2(update / self.clip_norm, 1.0)
            last = jnp.sqrt(jnp.maximum(0.0, 1 - inside @ inside))
            unit = jnp.append(inside, last)
            return self.clip_norm * priv_unit_g(key, unit / jnp.linalg.norm(unit), epsilon)[:-1]
        key, sign_key, length_key = jax.random.split(key, 3)
        unit = direction(update, jax.random.rademacher(sign_key, (), update.dtype))
        if self.norm == "fixed":
            return self.clip_norm * priv_unit_g(key, unit, epsilon)
        noise = jax.random.laplace(length_key, (), update.dtype)
        noise *= self.clip_norm / (self.norm_share * epsilon)
        length = jnp.minimum(norm(update), self.clip_norm) + noise
        length = jnp.clip(length, 0.0, self.clip_norm)
        return length * priv_unit_g(key, unit, (1 - self.norm_share) * epsilon)

    def noise_power(self, epsilon: Array, dimension: int) -> Array:
        first, second = jnp.ones_like(epsilon), jnp.ones_like(epsilon)
        if self.norm == "private":
            first, second = _length_moments(self.norm_share * epsilon)
            epsilon = (1 - self.norm_share) * epsilon
        cap = jax.vmap(best_cap)(epsilon)
        # Of a unit vector's release: d - 1 directions of variance sigma^2, and along it E a^2 is
        # 1 + gamma / sigma, in units of sigma^2.
        power = dimension * cap.scale**2 + cap.edge * cap.scale
        return self.clip_norm**2 * (second * power - 2 * first + 1)


def _length_moments(epsilon: Array) -> tuple[Array, Array]:
    """Mean and mean square of clip(1 + Laplace(1 / epsilon), 0, 1): a length of 1 released."""
    # Below 0.01 they are 1/2 to within 0.002, and their differences would round away.
    b = 1 / jnp.maximum(epsilon, 0.01)
    inside = -jnp.expm1(-1 / b)
    return 1 - b * inside / 2, 1 - b + b**2 * inside


def duchi_length(dimension: int, epsilon: Array) -> Array:
    """B of Duchi, Jordan and Wainwright for the unit ball: the length of every release, [] > 0."""
    # On the host: the two terms are large and nearly equal.
    log_ratio = math.lgamma((dimension + 1) / 2) - math.lgamma(dimension / 2)
    return math.sqrt(math.pi) * math.exp(log_ratio) / jnp.tanh(epsilon / 2)


class DuchiL2(Budgeted):
    """Release a point of a large sphere, more often from the half around the update.

    Formal guarantees:
      Unit: the whole update of one release; pure eps_i-LDP, replace-one. It protects any two points
      of the ball of radius C, so no sensitivity enters. Unbiased for the clipped update. Duchi,
      Jordan and Wainwright 2018 (arXiv 1604.02390), section 4.2.3. Its error is of the best order
      for eps_i <= 1 and stays at 1.57 d C^2 however large eps_i is.

    Attributes:
      clip_norm: C, bound on the L2 norm of an update.
    """

    name: ClassVar[str] = "duchi_l2"
    summary: ClassVar[str] = "clip the update to L2 norm C, point of a sphere (Duchi et al.): pure"
    unit: ClassVar[str] = "update"

    clip_norm: float = number(default=1.0, above=0)

    def privatize(self, key: Array, update: Array, epsilon: Array) -> Array:
        end_key, side_key, point_key = jax.random.split(key, 3)
        toward = direction(update, jnp.ones((), update.dtype))
        length = jnp.minimum(norm(update) / self.clip_norm, 1.0)
        end = jnp.where(jax.random.uniform(end_key) < (1 + length) / 2, 1.0, -1.0)
        side = jnp.where(jax.random.uniform(side_key) < jax.nn.sigmoid(epsilon), 1.0, -1.0)
        point = direction(
            jax.random.normal(point_key, update.shape, update.dtype), jnp.ones((), update.dtype)
        )
        flip = jnp.where(point @ toward >= 0, 1.0, -1.0)
        radius = self.clip_norm * duchi_length(update.size, epsilon)
        return radius * end * side * flip * point

    def noise_power(self, epsilon: Array, dimension: int) -> Array:
        return self.clip_norm**2 * (duchi_length(dimension, epsilon) ** 2 - 1)
