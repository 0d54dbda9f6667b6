"""Latencies that are normal in seconds: two groups (PAUSE experiments), ten groups (BSFL)."""

from __future__ import annotations

from typing import ClassVar

import jax
import jax.numpy as jnp
from jax import Array
from jax.scipy.stats import norm

from pause_jax.base.struct import number
from pause_jax.world.latency.base import Latency
from pause_jax.world.latency.quadrature import REACH, panel


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
        tau, weight = panel(low, high)
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
