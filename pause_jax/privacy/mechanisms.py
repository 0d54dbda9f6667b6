"""Local differential privacy: what a client does to its update before the update leaves it.

float32 noise is a statistical simulation, not a secure mechanism (Mironov 2012): an adversary who
sees the bits of a release can tell inputs apart. Do not deploy it. There is no option that repairs
it (snapping, discrete noise): XLA may fuse, reorder and round float32 as it likes, so it gives no
arithmetic on which such a proof could stand.
"""

from __future__ import annotations

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax import Array

from pause_jax.privacy.budget import Budget, Geometric
from pause_jax.privacy.clipping import clip_l1
from pause_jax.struct import Config, node, number


class Mechanism(Config):
    """A mechanism.

    Attributes:
      unit: what its epsilon protects: ``coordinate``, ``update``, or ``none``.
      pure: whether a release is epsilon-LDP with ``delta`` = 0.
      delta: of one release; n releases of a client have n times as much by basic composition.
    """

    unit: ClassVar[str] = "none"
    pure: ClassVar[bool] = True
    delta: ClassVar[Any] = 0.0

    def remaining(self, participations: Array) -> Array:
        """Share of the budget left after n participations, [K] in [0, 1]."""
        raise NotImplementedError

    def spent(self, participations: Array) -> Array:
        """Epsilon spent after n participations, [K], in this mechanism's unit."""
        raise NotImplementedError

    def epsilon(self, participation: Array) -> Array:
        """Epsilon of the i-th participation; 0 for a client whose budget is spent."""
        raise NotImplementedError

    def privatize(self, key: Array, update: Array, epsilon: Array) -> Array:
        """Release one client's update.

        Args:
          key: of this client and round, never used twice.
          update: float [d].
          epsilon: scalar > 0.

        Returns:
          float [d].
        """
        raise NotImplementedError


class NoPrivacy(Mechanism):
    """The update leaves as it is. No guarantee: the spent budget is reported as infinite."""

    name: ClassVar[str] = "none"
    summary: ClassVar[str] = "no noise, no guarantee"

    def remaining(self, participations: Array) -> Array:
        return jnp.ones(participations.shape)

    def spent(self, participations: Array) -> Array:
        return jnp.where(participations > 0, jnp.inf, 0.0)

    def epsilon(self, participation: Array) -> Array:
        return jnp.full(participation.shape, jnp.inf)

    def privatize(self, key: Array, update: Array, epsilon: Array) -> Array:
        return update


class Budgeted(Mechanism):
    """A mechanism that draws on a budget schedule.

    Attributes:
      budget: the schedule of epsilon over a client's participations.
    """

    budget: Budget = node(factory=Geometric, of=Budget)

    def remaining(self, participations: Array) -> Array:
        return self.budget.remaining(participations)

    def spent(self, participations: Array) -> Array:
        return self.budget.spent(participations)

    def epsilon(self, participation: Array) -> Array:
        return self.budget.epsilon(participation)


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

    def privatize(self, key: Array, update: Array, epsilon: Array) -> Array:
        half = self.sensitivity / 2
        noise = jax.random.laplace(key, update.shape, update.dtype)
        return jnp.clip(update, -half, half) + noise * (self.sensitivity / epsilon)


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

    def privatize(self, key: Array, update: Array, epsilon: Array) -> Array:
        noise = jax.random.laplace(key, update.shape, update.dtype)
        return clip_l1(update, self.clip_norm) + noise * (2 * self.clip_norm / epsilon)
