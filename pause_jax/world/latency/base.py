"""Base class for latency models, and a quadrature rule for their expectations."""

from __future__ import annotations

from typing import ClassVar, NamedTuple, Self

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from pause_jax.base.source_file import FromFile
from pause_jax.base.struct import number

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(128)


class Work(NamedTuple):
    """Amount of work in a round, for models in which latency depends on the work.

    Attributes:
      download_bytes, upload_bytes: bytes that a client receives (model) and sends (update).
      samples: float [K], number of samples on which each client computes gradients.
    """

    download_bytes: Float[Array, ""] | float
    upload_bytes: Float[Array, ""] | float
    samples: Float[Array, " K"]


class Latency(FromFile):
    """Base class for models that draw each client's latency in a round.

    Latencies are independent across rounds and clients, and at least ``min_latency``. A model whose
    distribution depends on the round must override ``varies``, ``at`` and ``expected_speed_at``.

    Attributes:
      min_latency: tau_min, minimum latency in seconds.
    """

    # F, number of features per client.
    num_features: ClassVar[int] = 1

    min_latency: float = number(default=0.05, above=0)

    def with_work(self, work: Work) -> tuple[Self, Work]:
        """Return the model adapted to ``work``, and the work that the model assumes.

        The returned work differs from ``work`` if the model fixes the number of bytes or samples.
        """
        return self, work

    def sample(self, key: Array, num_clients: int) -> Array:
        """Draw each client's latency in one round, in seconds, float [K] >= min_latency.

        For a model that ``varies``, use :meth:`at` instead.
        """
        raise NotImplementedError

    @property
    def varies(self) -> bool:
        """Whether the latency distribution depends on the round number."""
        return False

    def at(self, key: Array, round: Array, num_clients: int) -> Array:
        """Draw each client's latency in round t, in seconds, float [K] >= min_latency.

        Args:
          key: random key for the round.
          round: t >= 1, int32 scalar.
          num_clients: K.
        """
        return self.sample(key, num_clients)

    def expected_speed_at(self, round: Array, num_clients: int) -> Array:
        """Return expected speeds mu_k in round t, float [K]. Only the genie knows these values."""
        return self.expected_speed(num_clients)

    @property
    def drops(self) -> bool:
        """Whether chosen clients may fail to answer, as determined by :meth:`dropped`."""
        return False

    def dropped(self, key: Array, round: Array, num_clients: int) -> Array:
        """Return which clients would fail to answer in a round if chosen, bool [K].

        Args:
          key: the same key as for :meth:`at` in this round.
          round: t >= 1, int32 scalar.
          num_clients: K.
        """
        return jnp.zeros(num_clients, bool)

    def features(self, key: Array, num_clients: int) -> Array:
        """Return the features that clients report before the round whose latency key is ``key``.

        Returns:
          float [K, F], or ones [K, 1] if the model has no features.
        """
        return jnp.ones((num_clients, 1))

    def expected_speed(self, num_clients: int) -> Array:
        """Return mu_k = E[tau_min / tau_k], float [K] in (0, 1]. Only the genie knows these values.

        For a model that ``varies``, return the mean over rounds.
        """
        raise NotImplementedError

    def expected_latency(self, num_clients: int) -> Array:
        """Return E[tau_k] in seconds, float [K], for policies that assume known latencies."""
        raise NotImplementedError


def quadrature(low: Array, high: Array) -> tuple[Array, Array]:
    """Return Gauss-Legendre (points, weights), float [K, 128] each, on K intervals [low, high].

    sum(weights * f(points), axis=1) integrates f, and is exact for polynomials of degree <= 255.
    """
    half = (high - low)[:, None] / 2
    points = low[:, None] + half * (1 + jnp.asarray(_NODES, low.dtype)[None, :])
    return points, jnp.asarray(_WEIGHTS, low.dtype)[None, :] * half
