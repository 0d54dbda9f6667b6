"""Local differential privacy: what a client does to its update before the update leaves it.

float32 noise is a statistical simulation, not a secure mechanism (Mironov 2012): an adversary who
sees the bits of a release can tell inputs apart. Do not deploy it. XLA may fuse, reorder and round
float32 as it likes, so no option (snapping, discrete noise) can repair it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import jax.numpy as jnp
from jax import Array

from pause_jax.base.struct import Config, ConfigError, Sizes, node, number
from pause_jax.privacy.budget import Budget, Geometric, Schedule, Unlimited
from pause_jax.rng import draws

if TYPE_CHECKING:
    from jaxtyping import Float

# What an epsilon may protect.
UNITS = ("coordinate", "update")


# The law of the privacy loss of n releases of one client, by which they compose: a mechanism names
# its own (``Mechanism.privacy_loss``), and ``analysis.ledger`` adds up.


class LaplaceLoss(NamedTuple):
    """Laplace noise of scale (distance of two inputs) / eps_i.

    Many coordinates with that L1 distance in all are no worse than one.
    """

    epsilon: Float[Array, " n"]  # eps_i > 0


class GaussianLoss(NamedTuple):
    """Normal noise."""

    multiplier: Float[Array, " n"]  # sigma_i over the L2 distance of two inputs, > 0


class WorstLoss(NamedTuple):
    """Any (eps_i, delta)-LDP mechanism: none loses more than randomised response.

    Kairouz, Oh and Viswanath 2015.
    """

    epsilon: Float[Array, " n"]  # eps_i > 0
    delta: Float[Array, ""] | float = 0.0  # of each release; 0 for a pure mechanism


class NoGuarantee(NamedTuple):
    """Nothing is promised: one release may tell all."""


PrivacyLoss = LaplaceLoss | GaussianLoss | WorstLoss | NoGuarantee


class Mechanism(Config):
    """A mechanism; by itself it promises nothing. One that does is a :class:`Budgeted`.

    Attributes:
      unit: what its epsilon protects: ``coordinate``, ``update``, or ``none``.
      delta: of one release, 0 for a pure mechanism; n releases of a client have n times as much by
        basic composition.
      budget: what one client may spend, in that unit.
    """

    unit: ClassVar[str] = "none"
    delta: ClassVar[Any] = 0.0
    budget: ClassVar[Budget] = Unlimited()

    def check(self, path: str, sizes: Sizes) -> None:
        spends = not isinstance(self.budget, Unlimited)
        if self.unit not in (UNITS if spends else ("none",)):
            raise ConfigError(
                f"{path} = {type(self).__name__}(...) with unit = {self.unit!r}: must be one of "
                f"{', '.join(UNITS)}, what its epsilon protects, if it has a schedule. What spends "
                "no budget protects nothing: Subclass Budgeted, or leave the unit out."
            )

    def privacy_loss(self, epsilon: Array) -> PrivacyLoss:
        """How releases of these epsilons, float [n] > 0, compose."""
        return NoGuarantee()

    def with_budget(self, budget: Budget) -> Self:
        """The same mechanism on another budget, if it can draw on it; otherwise as it is."""
        return self

    def privatize(self, key: Array, update: Array, epsilon: Array) -> Array:
        """Release one client's update, float [d].

        Args:
          key: of this client and round, never used twice.
          update: float [d], of any length and direction: the mechanism clips it.
          epsilon: scalar > 0, of this release, in the mechanism's unit.
        """
        raise NotImplementedError(f"{type(self).__name__} has no privatize(key, update, epsilon).")

    def noise_power(self, epsilon: Array, dimension: int) -> Array:
        """E ``|release - clipped update|^2``, [n], of d entries at the clip's bound.

        ``epsilon`` is float [n] > 0, of each release. Raises ConfigError if a class lacks it.
        """
        raise ConfigError(
            f"privacy = {type(self).__name__}: has no noise_power(epsilon, dimension), which the "
            "policy reads. Add it."
        )


class NoPrivacy(Mechanism):
    """The update leaves as it is. No guarantee: the spent budget is reported as infinite."""

    name: ClassVar[str] = "none"
    summary: ClassVar[str] = "no noise, no guarantee"

    def privatize(self, key: Array, update: Array, epsilon: Array) -> Array:
        return update

    def noise_power(self, epsilon: Array, dimension: int) -> Array:
        return jnp.zeros_like(epsilon)


class Budgeted(Mechanism):
    """A private mechanism: each release is (eps_i, ``delta``)-LDP, eps_i from its schedule.

    A subclass says its ``unit``. Its releases compose at worst as randomised response; one that
    knows the law of its noise returns that as its ``privacy_loss``.

    Attributes:
      budget: the schedule of epsilon over a client's participations.
    """

    budget: Schedule = node(factory=Geometric, of=Schedule)  # type: ignore[misc]

    def privacy_loss(self, epsilon: Array) -> PrivacyLoss:
        return WorstLoss(epsilon, self.delta)

    def with_budget(self, budget: Budget) -> Self:
        return self.replace(budget=budget) if isinstance(budget, Schedule) else self


class PerCoordinateLaplace(Budgeted):
    """Clamp each coordinate to +-Delta/2 and add Laplace(Delta / eps) to it: the papers' practice.

    Formal guarantees:
      Unit: ONE coordinate of one release; pure eps_i-LDP, replace-one. Two values of a coordinate
      differ by at most Delta after the clamp. For the whole update of d coordinates the guarantee
      is d * eps_i (basic composition): multiply before you quote it.

    Attributes:
      sensitivity: Delta, width of the clamp (the authors' ``delta_f``).
    """

    name: ClassVar[str] = "per_coordinate"
    summary: ClassVar[str] = "clamp coordinates to +-Delta/2, Laplace(Delta/eps)"
    unit: ClassVar[str] = "coordinate"

    sensitivity: float = number(default=0.003, above=0)

    def privacy_loss(self, epsilon: Array) -> PrivacyLoss:
        return LaplaceLoss(epsilon)

    def privatize(self, key: Array, update: Array, epsilon: Array) -> Array:
        half = self.sensitivity / 2
        noise = draws.laplace(key, update.shape, update.dtype)
        return jnp.clip(update, -half, half) + noise * (self.sensitivity / epsilon)

    def noise_power(self, epsilon: Array, dimension: int) -> Array:
        return 2 * dimension * (self.sensitivity / epsilon) ** 2


def clip_l1(x: Array, bound: Array | float) -> Array:
    """``x`` [d] scaled to L1 norm at most ``bound``; 0 stays 0."""
    return x * jnp.minimum(1.0, bound / jnp.maximum(jnp.sum(jnp.abs(x)), 1e-30))


class L1Laplace(Budgeted):
    """Scale the whole update to L1 norm at most C and add Laplace(2C / eps) to every coordinate.

    Formal guarantees:
      Unit: the whole update of one release; pure eps_i-LDP, replace-one. Two clipped updates differ
      by at most 2C in L1 norm.

    Attributes:
      clip_norm: C, bound on the L1 norm of an update.
    """

    name: ClassVar[str] = "l1_vector"
    summary: ClassVar[str] = "clip the update to L1 norm C, Laplace(2C/eps)"
    unit: ClassVar[str] = "update"

    clip_norm: float = number(default=1.0, above=0)

    def privacy_loss(self, epsilon: Array) -> PrivacyLoss:
        return LaplaceLoss(epsilon)

    def privatize(self, key: Array, update: Array, epsilon: Array) -> Array:
        noise = draws.laplace(key, update.shape, update.dtype)
        return clip_l1(update, self.clip_norm) + noise * (2 * self.clip_norm / epsilon)

    def noise_power(self, epsilon: Array, dimension: int) -> Array:
        return 2 * dimension * (2 * self.clip_norm / epsilon) ** 2
