"""The Gaussian mechanism for whole updates."""

from __future__ import annotations

from typing import ClassVar

from jax import Array

from pause_jax.base.struct import number
from pause_jax.privacy.calibration import gaussian_multiplier
from pause_jax.privacy.clipping import clip_l2
from pause_jax.privacy.loss import GaussianLoss, PrivacyLoss
from pause_jax.privacy.mechanisms import Budgeted
from pause_jax.rng import draws


class GaussianMechanism(Budgeted):
    """Scale the whole update to L2 norm at most C and add normal noise to every coordinate.

    Formal guarantees:
      Unit: the whole update of one release; (eps_i, delta)-LDP, replace-one. Two clipped updates
      differ by at most 2C in L2 norm. sigma is the smallest that this sensitivity needs, by the
      analytic calibration of Balle and Wang 2018 (arXiv 1805.06530), valid for every eps_i. n
      releases are (sum of eps_i, n * delta)-LDP by basic composition.

    Attributes:
      clip_norm: C, bound on the L2 norm of an update.
      delta: of ONE release.
    """

    name: ClassVar[str] = "gaussian"
    summary: ClassVar[str] = "clip the update to L2 norm C, analytic Gaussian (eps, delta)"
    unit: ClassVar[str] = "update"

    clip_norm: float = number(default=1.0, above=0)
    delta: float = number(default=1e-5, at_least=1e-9, at_most=0.5)  # type: ignore[misc]

    def privacy_loss(self, epsilon: Array) -> PrivacyLoss:
        return GaussianLoss(gaussian_multiplier(epsilon, self.delta))

    def privatize(self, key: Array, update: Array, epsilon: Array) -> Array:
        sigma = 2 * self.clip_norm * gaussian_multiplier(epsilon, self.delta)
        noise = draws.normal(key, update.shape, update.dtype)
        return clip_l2(update, self.clip_norm) + noise * sigma
