"""Mechanism that releases a random projection of the update."""

from __future__ import annotations

import math
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from pause_jax.base.struct import ConfigError, Sizes, node, static
from pause_jax.privacy.budget import Budget
from pause_jax.privacy.mechanisms import Mechanism, PrivacyLoss
from pause_jax.privacy.sphere import PrivUnitG


def walsh_hadamard(x: Array) -> Array:
    """Apply the orthonormal Walsh-Hadamard transform, its own inverse, to [n], n a power of two."""
    half = 1
    while half < x.size:
        pairs = x.reshape(-1, 2, half)
        x = jnp.stack([pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]], axis=1).reshape(-1)
        half *= 2
    return x / math.sqrt(x.size)


def padded_size(dimension: int) -> int:
    """Return the smallest power of two that is at least ``dimension`` and 2."""
    return 2 ** math.ceil(math.log2(max(dimension, 2)))


class Projected(Mechanism):
    """Random projection of the update to k dimensions, released by another mechanism.

    The projection is the subsampled randomised Hadamard transform: random signs, Walsh-Hadamard
    transform of the update padded to the next power of two n, and k of its n coordinates times
    sqrt(n / k). One coordinate is drawn from each of k runs, which is as good as any draw without
    replacement and needs no sort. If k does not divide n, the runs differ in length by at most one,
    and the factor is the root of the run's length. The transpose projects back. No matrix is built.

    Formal guarantees:
      The guarantees of ``inner`` hold for the whole update, because the projection is independent
      of the data and ``inner`` clips its input. The projection is public. A client only needs to
      send k numbers.

    For an update of norm r < C, the release is unbiased over projection and noise while the
    projected norm (mean square r^2, relative deviation about 1 / sqrt(2k)) is below the bound C of
    ``inner``. Larger projections are clipped: an update of norm C loses about 0.28 / sqrt(k) of its
    length. Fast ProjUnit of Asi, Feldman, Nelson, Nguyen and Talwar 2023 (arXiv 2306.04444).

    Attributes:
      inner: mechanism for the projected update, with the budget.
      dimension: k, at most n; with a larger k, all n coordinates are used.
    """

    name: ClassVar[str] = "projected"
    summary: ClassVar[str] = "random projection to k dimensions, then another mechanism"
    unit: ClassVar[str] = "update"

    inner: Mechanism = node(factory=PrivUnitG, of=Mechanism)
    dimension: int = static(default=1024, at_least=2)

    # The projection is independent of the data, so ``inner`` alone determines the guarantee.
    @property
    def delta(self) -> Any:
        """Failure probability of a single release of ``inner``."""
        return self.inner.delta

    @property
    def budget(self) -> Budget:  # type: ignore[override]
        """Budget of ``inner``."""
        return self.inner.budget

    def privacy_loss(self, epsilon: Array) -> PrivacyLoss:
        return self.inner.privacy_loss(epsilon)

    def with_budget(self, budget: Budget) -> Self:
        return self.replace(inner=self.inner.with_budget(budget))

    def check(self, path: str, sizes: Sizes) -> None:
        if self.inner.unit != "update":
            raise ConfigError(
                f"{path}.inner = {self.inner.name}: must be a mechanism for whole updates, because "
                "a coordinate of a projection depends on every coordinate. Take priv_unit_g."
            )

    def privatize(self, key: Array, update: Array, epsilon: Array) -> Array:
        # The first key is public, because the server needs it to project back.
        public, secret = jax.random.fold_in(key, 0), jax.random.fold_in(key, 1)
        padded = padded_size(update.size)
        edges = np.arange(min(self.dimension, padded) + 1) * padded // min(self.dimension, padded)
        sign_key, choice_key = jax.random.split(public)
        signs = jax.random.rademacher(sign_key, (padded,), update.dtype)
        chosen = jax.random.randint(choice_key, edges[1:].shape, edges[:-1], edges[1:])
        stretch = jnp.asarray(np.sqrt(np.diff(edges)), update.dtype)

        whole = signs * jnp.pad(update, (0, padded - update.size))
        released = self.inner.privatize(secret, stretch * walsh_hadamard(whole)[chosen], epsilon)
        spread = jnp.zeros((padded,), update.dtype).at[chosen].set(stretch * released)
        return (signs * walsh_hadamard(spread))[: update.size]

    def noise_power(self, epsilon: Array, dimension: int) -> Array:
        """Return the noise power of ``inner`` projected back, without the projection's error."""
        kept = min(self.dimension, padded_size(dimension))
        return dimension / kept * self.inner.noise_power(epsilon, kept)
