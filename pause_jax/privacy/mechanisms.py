"""Mechanisms that privatize an update before it leaves a client (local differential privacy).

float32 noise reproduces a mechanism's statistics but not its privacy guarantee. An adversary who
sees the bits of a release can distinguish inputs (Mironov 2012), so do not deploy float32 noise.
XLA may fuse, reorder and round operations, so neither snapping nor discrete noise would be secure.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple, Self

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from pause_jax.base.struct import Config, ConfigError, Sizes, node, number
from pause_jax.privacy.budget import Budget, Geometric, Schedule, Unlimited
from pause_jax.rng import draws

# Allowed values of ``Mechanism.unit`` for mechanisms with a budget.
UNITS = ("coordinate", "update")


# Privacy losses of a client's n releases. ``Mechanism.privacy_loss`` returns one of the types
# below, and ``analysis.ledger`` composes the losses.


class LaplaceLoss(NamedTuple):
    """Privacy loss of Laplace noise with scale D / eps_i for two inputs at L1 distance D.

    For a fixed D, the loss is largest if the inputs differ in a single coordinate.
    """

    epsilon: Float[Array, " n"]  # eps_i > 0


class GaussianLoss(NamedTuple):
    """Privacy loss of Gaussian noise."""

    multiplier: Float[Array, " n"]  # sigma_i / (L2 distance between two inputs), > 0


class WorstLoss(NamedTuple):
    """Worst-case privacy loss, attained by randomised response (Kairouz, Oh, Viswanath 2015)."""

    epsilon: Float[Array, " n"]  # eps_i > 0
    delta: Float[Array, ""] | float = 0.0  # delta of each release (0 for a pure mechanism)


class NoGuarantee(NamedTuple):
    """Unbounded privacy loss, because a single release may reveal everything."""


PrivacyLoss = LaplaceLoss | GaussianLoss | WorstLoss | NoGuarantee


class Mechanism(Config):
    """Base class for mechanisms. Private mechanisms subclass :class:`Budgeted` instead.

    Attributes:
      unit: unit that epsilon protects: ``coordinate``, ``update``, or ``none``.
      delta: failure probability of a single release (n * delta for n releases), or 0 for pure LDP.
      budget: each client's privacy budget, as epsilon per ``unit``.
    """

    unit: ClassVar[str] = "none"
    delta: ClassVar[Any] = 0.0
    budget: ClassVar[Budget] = Unlimited()

    def check(self, path: str, sizes: Sizes) -> None:
        spends = not isinstance(self.budget, Unlimited)
        if self.unit not in (UNITS if spends else ("none",)):
            rule = "'none' if the class has no budget. Subclass Budgeted, or remove unit"
            if spends:
                rule = f"one of {', '.join(UNITS)}, the unit that epsilon protects"
            raise ConfigError(
                f"{path} = {type(self).__name__}(...) with unit = {self.unit!r}: must be {rule}."
            )

    def privacy_loss(self, epsilon: Array) -> PrivacyLoss:
        """Return the privacy loss of n releases. ``epsilon`` must be a positive float array [n]."""
        return NoGuarantee()

    def with_budget(self, budget: Budget) -> Self:
        """Return a copy with ``budget``, or ``self`` if the mechanism cannot use this budget."""
        return self

    def privatize(self, key: Array, update: Array, epsilon: Array) -> Array:
        """Return the privatized update of one client, float [d].

        Args:
          key: random key for this client and round, which must not be reused.
          update: unclipped update, float [d].
          epsilon: epsilon of this release, per ``unit``, a scalar > 0.
        """
        raise NotImplementedError(
            f"{type(self).__name__}.privatize is not defined. Define privatize(key, update, "
            "epsilon)."
        )

    def noise_power(self, epsilon: Array, dimension: int) -> Array:
        """Return the mean squared error E ``|release - clipped update|^2``, float [n].

        ``epsilon`` must be a positive float array [n]. The clipped update is assumed to have
        the maximum norm. Raises ConfigError if the class does not override this method.
        """
        raise ConfigError(
            f"privacy = {type(self).__name__}: has no noise_power(epsilon, dimension), but the "
            "policy needs it. Define noise_power."
        )


class NoPrivacy(Mechanism):
    """Mechanism that releases the update unchanged, without a guarantee (infinite epsilon)."""

    name: ClassVar[str] = "none"
    summary: ClassVar[str] = "no noise, no guarantee"

    def privatize(self, key: Array, update: Array, epsilon: Array) -> Array:
        return update

    def noise_power(self, epsilon: Array, dimension: int) -> Array:
        return jnp.zeros_like(epsilon)


class Budgeted(Mechanism):
    """Base class for private mechanisms. Each release is (eps_i, ``delta``)-LDP.

    A subclass must define ``unit``. By default, releases compose like randomised response, which is
    the worst case. Override ``privacy_loss`` if the distribution of the noise is known.

    Attributes:
      budget: schedule of eps_i over a client's participations.
    """

    budget: Schedule = node(factory=Geometric, of=Schedule)  # type: ignore[misc]

    def privacy_loss(self, epsilon: Array) -> PrivacyLoss:
        return WorstLoss(epsilon, self.delta)

    def with_budget(self, budget: Budget) -> Self:
        return self.replace(budget=budget) if isinstance(budget, Schedule) else self


class PerCoordinateLaplace(Budgeted):
    """PAUSE mechanism that clamps coordinates to +-Delta/2 and adds Laplace(Delta / eps) noise.

    Formal guarantees:
      Each eps_i covers a single coordinate. The guarantee is pure eps_i-LDP (replace-one).
      Two clamped values of a coordinate differ by at most Delta. By basic composition, a release of
      d coordinates is only (d * eps_i)-LDP, so report d * eps_i for whole updates.

    Attributes:
      sensitivity: Delta, width of the clamping interval (the authors' ``delta_f``).
    """

    name: ClassVar[str] = "per_coordinate"
    summary: ClassVar[str] = "clamp coordinates to +-Delta/2 and add Laplace(Delta/eps) noise"
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


class WholeUpdate(Budgeted):
    """Base class for private mechanisms whose epsilon protects a whole clipped update.

    Attributes:
      clip_norm: C, maximum norm of a clipped update.
    """

    unit: ClassVar[str] = "update"

    clip_norm: float = number(default=1.0, above=0)


def clip_l1(x: Array, bound: Array | float) -> Array:
    """Scale ``x`` [d] down to L1 norm ``bound`` if its norm is larger."""
    return x * jnp.minimum(1.0, bound / jnp.maximum(jnp.sum(jnp.abs(x)), 1e-30))


class L1Laplace(WholeUpdate):
    """Mechanism that clips the update to L1 norm C and adds Laplace(2C / eps) noise.

    Formal guarantees:
      Each eps_i covers the whole update. The guarantee is pure eps_i-LDP (replace-one).
      Two clipped updates differ by at most 2C in L1 norm.
    """

    name: ClassVar[str] = "l1_vector"
    summary: ClassVar[str] = "clip the update to L1 norm C and add Laplace(2C/eps) noise"

    def privacy_loss(self, epsilon: Array) -> PrivacyLoss:
        return LaplaceLoss(epsilon)

    def privatize(self, key: Array, update: Array, epsilon: Array) -> Array:
        noise = draws.laplace(key, update.shape, update.dtype)
        return clip_l1(update, self.clip_norm) + noise * (2 * self.clip_norm / epsilon)

    def noise_power(self, epsilon: Array, dimension: int) -> Array:
        return 2 * dimension * (2 * self.clip_norm / epsilon) ** 2
