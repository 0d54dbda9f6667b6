"""Latencies with a long tail: lognormal, shifted exponential, Pareto."""

from __future__ import annotations

import builtins
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax import Array
from jax.scipy.stats import norm

from pause_jax.base.struct import ConfigError, Sizes, number, static
from pause_jax.world.latency.base import Latency, quadrature

# e^-60 is below float64 resolution of what it is added to.
_NEGLIGIBLE = 60.0


class SpacedLatency(Latency):
    """Latency = max(tau_min, scale_k Z), Z of one law for all; subclasses give the law.

    Scales are spaced geometrically, by equal factors, from ``fastest`` (client 0) to ``slowest``
    (client K - 1).

    Attributes:
      fastest, slowest: scales at the two ends, seconds.
    """

    fastest: float = number(default=0.1, above=0)
    slowest: float = number(default=1.0, above=0)

    def scale(self, num_clients: int) -> Array:
        """Seconds where Z = 1, float [K]."""
        step = jnp.arange(num_clients) / max(num_clients - 1, 1)
        return self.fastest * (self.slowest / self.fastest) ** step


class LogNormal(SpacedLatency):
    """Latency = max(tau_min, scale_k e^(sigma N)), N standard normal; ``scale_k`` is the median.

    Attributes:
      sigma: standard deviation of ln(latency) before the cut; 0.5 is a coefficient of variation of
        0.53.
    """

    name: ClassVar[str] = "lognormal"
    summary: ClassVar[str] = "lognormal, medians from fastest to slowest"

    sigma: float = number(default=0.5, above=0, at_most=5)

    def sample(self, key: Array, num_clients: int) -> Array:
        noise = jax.random.normal(key, (num_clients,))
        return jnp.maximum(self.min_latency, self.scale(num_clients) * jnp.exp(self.sigma * noise))

    def _cut(self, num_clients: int) -> Array:
        """The N at which the latency is tau_min, float [K]."""
        return jnp.log(self.min_latency / self.scale(num_clients)) / self.sigma

    def expected_speed(self, num_clients: int) -> Array:
        cut = self._cut(num_clients)
        mean = self.min_latency / self.scale(num_clients) * jnp.exp(self.sigma**2 / 2)
        return norm.cdf(cut) + mean * norm.cdf(-cut - self.sigma)

    def expected_latency(self, num_clients: int) -> Array:
        cut = self._cut(num_clients)
        mean = self.scale(num_clients) * jnp.exp(self.sigma**2 / 2)
        return self.min_latency * norm.cdf(cut) + mean * norm.cdf(self.sigma - cut)


class Switching(LogNormal):
    """:class:`LogNormal`, whose clients exchange their places every so many rounds.

    After each ``period`` rounds client k takes the place of client k + turn K (mod K): with a turn
    of 1/2 the fast half and the slow one change sides.

    Attributes:
      period: rounds between two changes (static).
      turn: share of the clients by which places move (static).
    """

    name: ClassVar[str] = "switching"
    summary: ClassVar[str] = "lognormal, fast and slow clients change places now and then"

    period: int = static(default=500, at_least=1)
    turn: float = static(default=0.5, at_least=0, at_most=1)

    @property
    def varies(self) -> bool:
        return True

    def at(self, key: Array, round: Array, num_clients: int) -> Array:
        return jnp.roll(self.sample(key, num_clients), -self._moved(round, num_clients))

    def expected_speed_at(self, round: Array, num_clients: int) -> Array:
        speed = super().expected_speed(num_clients)
        return jnp.roll(speed, -self._moved(round, num_clients))

    def _moved(self, round: Array, num_clients: int) -> Array:
        """Places by which the clients have moved before round t."""
        step = builtins.round(self.turn * num_clients)
        return ((round - 1) // self.period * step) % num_clients

    def _over_time(self, values: Array) -> Array:
        """The mean over the places that a client comes to stand at."""
        num_clients = values.shape[0]
        step = builtins.round(self.turn * num_clients)
        places = sorted({step * i % num_clients for i in range(num_clients)})
        return jnp.mean(jnp.stack([jnp.roll(values, -place) for place in places]), axis=0)

    def expected_speed(self, num_clients: int) -> Array:
        return self._over_time(super().expected_speed(num_clients))

    def expected_latency(self, num_clients: int) -> Array:
        return self._over_time(super().expected_latency(num_clients))


class ShiftedExponential(SpacedLatency):
    """Latency = max(tau_min, scale_k (1 + straggling E)), E ~ Exp(1).

    ``scale_k`` is the least that the client takes, and what it loses to stragglers is proportional
    to it, as in the common model of stragglers (Lee et al. 2018, "Speeding up distributed machine
    learning using codes").

    Attributes:
      straggling: mean of what comes on top, as a multiple of ``scale_k``.
    """

    name: ClassVar[str] = "shifted_exponential"
    summary: ClassVar[str] = "a least time and an exponential part on top (stragglers)"

    straggling: float = number(default=1.0, above=0)

    def sample(self, key: Array, num_clients: int) -> Array:
        extra = self.straggling * jax.random.exponential(key, (num_clients,))
        return jnp.maximum(self.min_latency, self.scale(num_clients) * (1 + extra))

    def _above(self, num_clients: int) -> tuple[Array, Array, Array]:
        """(where the density starts after the cut, mean of the exponential part, probability of
        being there), float [K].
        """
        least = self.scale(num_clients)
        start, mean = jnp.maximum(self.min_latency, least), self.straggling * least
        return start, mean, jnp.exp(-(start - least) / mean)

    def expected_speed(self, num_clients: int) -> Array:
        # E[1 / tau | tau > start] is an exponential integral; with tau = start e^y its integrand
        # is smooth, and in float32 nothing underflows.
        start, mean, share = self._above(num_clients)
        rate = start / mean
        y, weight = quadrature(jnp.zeros_like(rate), jnp.log1p(_NEGLIGIBLE / rate))
        inverse = jnp.sum(weight * jnp.exp(-rate[:, None] * jnp.expm1(y)), axis=1) / mean
        return 1 - share + share * self.min_latency * inverse

    def expected_latency(self, num_clients: int) -> Array:
        start, mean, share = self._above(num_clients)
        return start + share * mean


class Pareto(SpacedLatency):
    """Latency = max(tau_min, scale_k U^(-1 / shape)), U ~ U(0, 1); ``scale_k`` is the least.

    P(latency > x) = (scale_k / x)^shape above both. At ``shape`` 2 or below the variance is
    infinite, so that means over few rounds say little; at 1 or below the mean is, and a ranking by
    expected latency would mean nothing.

    Attributes:
      shape: exponent of the tail, > 1.
    """

    name: ClassVar[str] = "pareto"
    summary: ClassVar[str] = "a power-law tail above a least time"

    shape: float = number(default=2.5, above=0)

    def check(self, path: str, sizes: Sizes) -> None:
        shape: Any = self.shape
        if not isinstance(shape, jax.core.Tracer) and not shape > 1:
            raise ConfigError(
                f"{path}.shape = {shape!r}: must be > 1, because the mean latency is infinite "
                "otherwise. Take a shape above 1, or lognormal for a tail with all moments."
            )

    def sample(self, key: Array, num_clients: int) -> Array:
        tail = jnp.exp(jax.random.exponential(key, (num_clients,)) / self.shape)
        return jnp.maximum(self.min_latency, self.scale(num_clients) * tail)

    def _above(self, num_clients: int) -> tuple[Array, Array]:
        """(where the tail starts after the cut, its probability), float [K]."""
        least = self.scale(num_clients)
        start = jnp.maximum(self.min_latency, least)
        return start, (least / start) ** self.shape

    def expected_speed(self, num_clients: int) -> Array:
        start, share = self._above(num_clients)
        return 1 - share + share * self.min_latency / start * self.shape / (self.shape + 1)

    def expected_latency(self, num_clients: int) -> Array:
        start, share = self._above(num_clients)
        return start * (1 + share / (self.shape - 1))
