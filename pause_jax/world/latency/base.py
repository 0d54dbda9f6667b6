"""Contract of a latency model: seconds of a client in a round, and what the genie knows of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, NamedTuple, Self

import jax.numpy as jnp
import numpy as np
from jax import Array

from pause_jax.base.source_file import FromFile
from pause_jax.base.struct import number

if TYPE_CHECKING:
    from jaxtyping import Float

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(128)


class Work(NamedTuple):
    """What a client does in a round, for models in which its seconds depend on that.

    Attributes:
      download_bytes, upload_bytes: of the model that it receives, of the update that it sends.
      samples: float [K], samples that it computes a gradient on.
    """

    download_bytes: Float[Array, ""] | float
    upload_bytes: Float[Array, ""] | float
    samples: Float[Array, " K"]


class Latency(FromFile):
    """A latency model: independent over rounds and clients, never below ``min_latency``.

    A model whose law changes from round to round says so by ``varies``, and gives ``at`` and
    ``expected_speed_at``; all others are the same in every round.

    Attributes:
      min_latency: tau_min, seconds.
    """

    # F, entries of a client's features.
    num_features: ClassVar[int] = 1

    min_latency: float = number(default=0.05, above=0)

    def with_work(self, work: Work) -> tuple[Self, Work]:
        """Return the model of a run whose rounds are ``work``, and the work that the model assumes.

        A model with fixed bytes or samples assumes those.
        """
        return self, work

    def sample(self, key: Array, num_clients: int) -> Array:
        """Seconds of every client in one round, float [K] >= min_latency; of any round, if the
        model varies.
        """
        raise NotImplementedError

    @property
    def varies(self) -> bool:
        """Whether the law of a round depends on its number."""
        return False

    def at(self, key: Array, round: Array, num_clients: int) -> Array:
        """Seconds of every client in a round, float [K] >= min_latency.

        Args:
          key: of the round.
          round: t >= 1, int32 scalar.
          num_clients: K.
        """
        return self.sample(key, num_clients)

    def expected_speed_at(self, round: Array, num_clients: int) -> Array:
        """mu_k of round t, float [K]; known to the genie only."""
        return self.expected_speed(num_clients)

    @property
    def drops(self) -> bool:
        """Whether a chosen client may fail to answer: then :meth:`dropped` says who does."""
        return False

    def dropped(self, key: Array, round: Array, num_clients: int) -> Array:
        """Who would not answer in a round, bool [K].

        Args:
          key: the one that :meth:`at` gets in this round.
          round: t >= 1, int32 scalar.
          num_clients: K.
        """
        return jnp.zeros(num_clients, bool)

    def features(self, key: Array, num_clients: int) -> Array:
        """What a client can report of its state before the round that ``key`` samples.

        Returns:
          float [K, F]; a constant 1 for a model whose rounds show nothing beforehand.
        """
        return jnp.ones((num_clients, 1))

    def expected_speed(self, num_clients: int) -> Array:
        """mu_k = E[tau_min / tau_k], float [K] in (0, 1], the mean over rounds if the model varies;
        known to the genie only.
        """
        raise NotImplementedError

    def expected_latency(self, num_clients: int) -> Array:
        """E[tau_k] in seconds, float [K]; what "fastest in expectation" sorts by."""
        raise NotImplementedError


def quadrature(low: Array, high: Array) -> tuple[Array, Array]:
    """Return Gauss-Legendre points and weights on an interval of each client.

    sum(weights * f(points), axis=1) is the integral of f, exact for polynomials of degree 255.

    Args:
      low: float [K], lower ends.
      high: float [K], upper ends.

    Returns:
      (points, weights), float [K, 128] each.
    """
    half = (high - low)[:, None] / 2
    points = low[:, None] + half * (1 + jnp.asarray(_NODES, low.dtype)[None, :])
    return points, jnp.asarray(_WEIGHTS, low.dtype)[None, :] * half
