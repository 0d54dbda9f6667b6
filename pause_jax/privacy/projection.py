"""Release of a random projection of the update instead of the update."""

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
    """Orthonormal Walsh-Hadamard transform of a vector [n], n a power of two; its own inverse."""
    half = 1
    while half < x.size:
        pairs = x.reshape(-1, 2, half)
        x = jnp.stack([pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]], axis=1).reshape(-1)
        half *= 2
    return x / math.sqrt(x.size)


def padded_size(dimension: int) -> int:
    """The next power of two, n >= 2."""
    return 2 ** math.ceil(math.log2(max(dimension, 2)))


class Projected(Mechanism):
    """Project the update to k dimensions, release that by another mechanism, and project back.

    The projection is the subsampled randomised Hadamard transform: random signs, Walsh-Hadamard
    transform of the update padded to the next power of two n, k of its n coordinates times
    sqrt(n / k). The k are drawn one from each of k equal runs, which serves as well as any draw
    without replacement and needs no sort. The way back is the transpose. No matrix is built.

    Formal guarantees:
      Those of ``inner`` for the whole update: the projection depends on no data, and ``inner``
      clips what it is given. The projection is public. A client needs to send only k numbers.

    Of an update of norm r < C the release is unbiased, over projection and noise, as far as the
    projected norm (mean square r^2, relative deviation about 1 / sqrt(2k)) stays below the bound C
    of ``inner``. Beyond it is clipped: an update at the bound loses about 0.28 / sqrt(k) of its
    length. Fast ProjUnit of Asi, Feldman, Nelson, Nguyen and Talwar 2023 (arXiv 2306.04444).

    Attributes:
      inner: the mechanism for the projected update; its budget is the one that counts.
      dimension: k. At most n are used, with a larger k all of them.
    """

    name: ClassVar[str] = "projected"
    summary: ClassVar[str] = "random projection to k dimensions, then another mechanism"
    unit: ClassVar[str] = "update"

    inner: Mechanism = node(factory=PrivUnitG, of=Mechanism)
    dimension: int = static(default=1024, at_least=2)

    # What the projection does before needs no privacy: all that is promised is ``inner``'s.
    @property
    def delta(self) -> Any:
        """Of one release of ``inner``."""
        return self.inner.delta

    @property
    def budget(self) -> Budget:  # type: ignore[override]
        """That of ``inner``."""
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
        # Of this pair the first is public: the server needs it for the way back.
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
        """That of ``inner`` on its way back; what the projection itself loses is not in it."""
        kept = min(self.dimension, padded_size(dimension))
        return dimension / kept * self.inner.noise_power(epsilon, kept)
