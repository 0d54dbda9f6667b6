"""Latencies that are normal in seconds (PAUSE, BSFL's ten groups) or in speed (BSFL's code)."""

from __future__ import annotations

from typing import ClassVar

import jax
import jax.numpy as jnp
from jax import Array
from jax.scipy.stats import norm

from pause_jax.base.struct import number
from pause_jax.world.latency.base import Latency, quadrature

# Beyond this many standard deviations a normal density is below float32 resolution.
REACH = 9.0


class NormalLatency(Latency):
    """Latency = max(tau_min, Normal(mean_k, std)); subclasses give the means.

    Attributes:
      std: standard deviation in seconds before the cut at tau_min.
    """

    std: float = number(default=0.05, above=0)

    def mean(self, num_clients: int) -> Array:
        """Mean before the cut, seconds, float [K]."""
        raise NotImplementedError

    def sample(self, key: Array, num_clients: int) -> Array:
        noise = jax.random.normal(key, (num_clients,))
        return jnp.maximum(self.min_latency, self.mean(num_clients) + self.std * noise)

    def expected_speed(self, num_clients: int) -> Array:
        # The atom at tau_min has speed 1; the rest by quadrature where the density lives.
        mean = self.mean(num_clients)
        low = jnp.maximum(self.min_latency, mean - REACH * self.std)
        high = jnp.maximum(self.min_latency, mean + REACH * self.std)
        atom = norm.cdf((self.min_latency - mean) / self.std)
        tau, weight = quadrature(low, high)
        density = norm.pdf((tau - mean[:, None]) / self.std) / self.std
        return atom + jnp.sum(weight * density * self.min_latency / tau, axis=1)

    def expected_latency(self, num_clients: int) -> Array:
        mean = self.mean(num_clients)
        cut = (self.min_latency - mean) / self.std
        above = norm.sf(cut)
        return self.min_latency * (1 - above) + mean * above + self.std * norm.pdf(cut)


class TwoGroups(NormalLatency):
    """Half of the clients fast, half slow (PAUSE experiments). Clients 0 .. K/2 - 1 are fast.

    Attributes:
      fast_start, fast_span: means of the fast run from just above ``fast_start`` to
        ``fast_start + fast_span`` seconds in equal steps.
      slow_start, slow_span: the same for the slow.
    """

    name: ClassVar[str] = "two_groups"
    summary: ClassVar[str] = "a fast and a slow half, normal (PAUSE)"

    fast_start: float = number(default=0.05, above=0)
    fast_span: float = number(default=0.15, at_least=0)
    slow_start: float = number(default=0.7, above=0)
    slow_span: float = number(default=0.2, at_least=0)

    def mean(self, num_clients: int) -> Array:
        client = jnp.arange(num_clients, dtype=float)
        fast = num_clients // 2
        slow = num_clients - fast
        return jnp.where(
            client < fast,
            self.fast_start + self.fast_span * (client + 1) / max(fast, 1),
            self.slow_start + self.slow_span * (client + 1 - fast) / slow,
        )


class TenGroups(NormalLatency):
    """Ten groups of equal size with mean 0.1, 0.2, ..., 1.0 seconds (BSFL Figs. 5-6).

    Attributes:
      slowest: mean of the slowest group, seconds.
    """

    name: ClassVar[str] = "ten_groups"
    summary: ClassVar[str] = "ten groups, mean 0.1 to 1.0 s, normal (BSFL)"

    slowest: float = number(default=1.0, above=0)

    def mean(self, num_clients: int) -> Array:
        group = jnp.arange(num_clients) * 10 // num_clients
        return self.slowest * (group + 1).astype(float) / 10


class SpeedNormal(Latency):
    """Latency = clip(tau_min / X, tau_min, 1 s), X ~ Normal(mean_speed_k, std), as in BSFL's code.

    A draw X < 0 gives a negative quotient and hence tau_min, the *fastest* latency: of the slowest
    default client 16 % of the draws, and its expected speed is 0.27, not 0.12. So ``slowest`` is
    the client of least ``mean_speed``, but not of least expected speed. :class:`ClippedSpeed` is
    the model in which such a draw is the slowest. A draw of exactly 0 is 1 s in both.

    Means are spaced equally from ``fastest`` (client 0) to ``slowest`` (client K - 1).

    Attributes:
      std: standard deviation of X.
      fastest, slowest: means of X at the two ends.
    """

    name: ClassVar[str] = "speed_normal"
    summary: ClassVar[str] = "normal in speed, a negative draw is the fastest (BSFL, as published)"

    min_latency: float = number(default=0.05, above=0, at_most=1)
    std: float = number(default=0.1, above=0)
    fastest: float = number(default=0.9, above=0, at_most=1)
    slowest: float = number(default=0.1, above=0, at_most=1)

    def mean_speed(self, num_clients: int) -> Array:
        """Mean of X, float [K]."""
        step = jnp.arange(num_clients) / max(num_clients - 1, 1)
        return self.fastest + (self.slowest - self.fastest) * step

    def _speed_of_negative(self) -> Array:
        """Speed where X < 0, a scalar in [tau_min, 1]."""
        return jnp.ones_like(self.min_latency)

    def sample(self, key: Array, num_clients: int) -> Array:
        noise = jax.random.normal(key, (num_clients,))
        draw = self.mean_speed(num_clients) + self.std * noise
        speed = jnp.clip(draw, self.min_latency, 1.0)
        return self.min_latency / jnp.where(draw < 0, self._speed_of_negative(), speed)

    def expected_speed(self, num_clients: int) -> Array:
        mean = self.mean_speed(num_clients)
        a, b = (self.min_latency - mean) / self.std, (1.0 - mean) / self.std
        between = norm.cdf(b) - norm.cdf(a)
        inside = mean * between - self.std * (norm.pdf(b) - norm.pdf(a))
        negative = (self._speed_of_negative() - self.min_latency) * norm.cdf(-mean / self.std)
        return self.min_latency * norm.cdf(a) + norm.sf(b) + inside + negative

    def expected_latency(self, num_clients: int) -> Array:
        mean = self.mean_speed(num_clients)
        low = jnp.clip(mean - REACH * self.std, self.min_latency, 1.0)
        high = jnp.clip(mean + REACH * self.std, self.min_latency, 1.0)
        speed, weight = quadrature(low, high)
        density = norm.pdf((speed - mean[:, None]) / self.std) / self.std
        inside = jnp.sum(weight * density * self.min_latency / speed, axis=1)
        slow_atom = norm.cdf((self.min_latency - mean) / self.std)
        fast_atom = norm.sf((1.0 - mean) / self.std)
        # Seconds by which a negative draw is faster than 1 s.
        spared = 1.0 - self.min_latency / self._speed_of_negative()
        negative = spared * norm.cdf(-mean / self.std)
        return slow_atom + fast_atom * self.min_latency + inside - negative


class ClippedSpeed(SpeedNormal):
    """Latency = tau_min / clip(X, tau_min, 1), X ~ Normal(mean_speed_k, std): not BSFL's.

    As :class:`SpeedNormal`, but the speed is clipped before it divides, so that a draw X < 0 is the
    slowest latency, 1 s, and a client of lower mean is slower in expectation too.
    """

    name: ClassVar[str] = "clipped_speed"
    summary: ClassVar[str] = "normal in speed, a negative draw is the slowest (not BSFL's)"

    def _speed_of_negative(self) -> Array:
        return jnp.asarray(self.min_latency)
