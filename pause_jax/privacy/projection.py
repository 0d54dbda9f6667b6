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
    """Apply the orthonormal Walsh-Hadamard transform (its own inverse) to x [n], n a power of 2."""
    half = 1
    while half < x.size:
        pairs = x.reshape(-1, 2, half)
        x = jnp.stack([pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]], axis=1).reshape(-1)
        half *= 2
    return x / math.sqrt(x.size)


def padded_size(dimension: int) -> int:
    """Return the smallest power of two that is at least 2 and at least ``dimension``."""
    return 2 ** math.ceil(math.log2(max(dimension, 2)))


class Projected(Mechanism):
    """Mechanism that projects the update onto k random dimensions and privatizes the projection.

    The projection is a subsampled randomised Hadamard transform. It pads the update to length n,
    the next power of two, flips signs at random, and applies the Walsh-Hadamard transform. It keeps
    one coordinate from each of k blocks, scaled by the square root of the block length. The
    transposed transform maps the release back without storing a matrix.

    Formal guarantees:
      The guarantees of ``inner`` hold for the whole update, because the projection does not depend
      on the data and ``inner`` clips its input. The projection is public, so clients need to send
      only the k privatized coordinates.

    The release is unbiased if the projection's norm is at most C, the bound of ``inner``. Larger
    norms are clipped, which on average shortens an update of norm C by about 0.28 C / sqrt(k). With
    the default ``inner``, the mechanism follows Fast ProjUnit (Asi et al. 2023, arXiv 2306.04444).

    Attributes:
      inner: mechanism that privatizes the projection and defines the budget.
      dimension: k, dimension of the projection. If k > n, all n coordinates are used.
    """

    name: ClassVar[str] = "projected"
    summary: ClassVar[str] = "random projection to k dimensions, then another mechanism"
    unit: ClassVar[str] = "update"

    inner: Mechanism = node(factory=PrivUnitG, of=Mechanism)
    dimension: int = static(default=1024, at_least=2)

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
                f"{path}.inner = {self.inner.name}: must be a mechanism for whole updates, "
                "because each coordinate of a projection depends on all coordinates of the "
                "update. Use priv_unit_g."
            )

    def privatize(self, key: Array, update: Array, epsilon: Array) -> Array:
        # The first key is public, because the server needs it to turn the release into an update.
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
        """Return the noise power of the d-dimensional release, excluding the projection error."""
        kept = min(self.dimension, padded_size(dimension))
        return dimension / kept * self.inner.noise_power(epsilon, kept)
