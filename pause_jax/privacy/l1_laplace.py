"""Laplace noise for whole updates of bounded L1 norm."""

from __future__ import annotations

from typing import ClassVar

from jax import Array

from pause_jax.base.struct import number
from pause_jax.privacy.clipping import clip_l1
from pause_jax.privacy.loss import LaplaceLoss, PrivacyLoss
from pause_jax.privacy.mechanisms import Budgeted
from pause_jax.rng import draws


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
