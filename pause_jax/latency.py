"""Latency models: how many seconds a client takes in a round, and what the genie knows of it.

A model is a config with three methods. It is i.i.d. over rounds and independent over clients, and
it never returns less than ``min_latency`` (tau_min). Sources: SPEC section 4, from the PAUSE
experiments (two_groups) and from BSFL (ten_groups, speed_normal).
"""

from __future__ import annotations

from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.scipy.stats import norm

from pause_jax.struct import Config, number

_NODES, _NODE_WEIGHTS = np.polynomial.legendre.leggauss(128)
# Beyond this many standard deviations a normal density is below float32 resolution.
_REACH = 9.0


class Latency(Config):
    """A latency model.

    Attributes:
      min_latency: tau_min, seconds.
    """

    min_latency: float = number(default=0.05, above=0)

    def sample(self, key: Array, num_clients: int) -> Array:
        """Seconds of every client in one round, float [K] >= min_latency."""
        raise NotImplementedError

    def expected_speed(self, num_clients: int) -> Array:
        """mu_k = E[tau_min / tau_k], float [K] in (0, 1]; known to the genie only."""
        raise NotImplementedError

    def expected_latency(self, num_clients: int) -> Array:
        """E[tau_k] in seconds, float [K]; what "fastest in expectation" sorts by."""
        raise NotImplementedError


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
        low = jnp.maximum(self.min_latency, mean - _REACH * self.std)
        high = jnp.maximum(self.min_latency, mean + _REACH * self.std)
        atom = norm.cdf((self.min_latency - mean) / self.std)
        half = (high - low)[:, None] / 2
        tau = low[:, None] + half * (1 + jnp.asarray(_NODES, mean.dtype)[None, :])
        density = norm.pdf((tau - mean[:, None]) / self.std) / self.std
        weights = jnp.asarray(_NODE_WEIGHTS, mean.dtype)[None, :]
        return atom + jnp.sum(weights * half * density * self.min_latency / tau, axis=1)

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
        client = jnp.arange(num_clients)
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
        return self.slowest * (group + 1) / 10


class SpeedNormal(Latency):
    """Latency = clip(tau_min / Normal(mean_speed_k, std), tau_min, 1 s) (BSFL's code).

    So the observed speed is Normal(mean_speed_k, std) clipped to [tau_min, 1]. Means are spaced
    equally from ``fastest`` (client 0) to ``slowest`` (client K - 1).

    Attributes:
      std: standard deviation of the speed.
      fastest, slowest: mean speeds at the two ends.
    """

    name: ClassVar[str] = "speed_normal"
    summary: ClassVar[str] = "normal in speed, latency clipped to [tau_min, 1 s] (BSFL)"

    min_latency: float = number(default=0.05, above=0, at_most=1)
    std: float = number(default=0.1, above=0)
    fastest: float = number(default=0.9, above=0, at_most=1)
    slowest: float = number(default=0.1, above=0, at_most=1)

    def mean_speed(self, num_clients: int) -> Array:
        """Mean speed before clipping, float [K]."""
        step = jnp.arange(num_clients) / max(num_clients - 1, 1)
        return self.fastest + (self.slowest - self.fastest) * step

    def sample(self, key: Array, num_clients: int) -> Array:
        noise = jax.random.normal(key, (num_clients,))
        speed = jnp.clip(self.mean_speed(num_clients) + self.std * noise, self.min_latency, 1.0)
        return self.min_latency / speed

    def expected_speed(self, num_clients: int) -> Array:
        mean = self.mean_speed(num_clients)
        a, b = (self.min_latency - mean) / self.std, (1.0 - mean) / self.std
        between = norm.cdf(b) - norm.cdf(a)
        inside = mean * between - self.std * (norm.pdf(b) - norm.pdf(a))
        return self.min_latency * norm.cdf(a) + norm.sf(b) + inside

    def expected_latency(self, num_clients: int) -> Array:
        mean = self.mean_speed(num_clients)
        low = jnp.clip(mean - _REACH * self.std, self.min_latency, 1.0)
        high = jnp.clip(mean + _REACH * self.std, self.min_latency, 1.0)
        half = (high - low)[:, None] / 2
        speed = low[:, None] + half * (1 + jnp.asarray(_NODES, mean.dtype)[None, :])
        density = norm.pdf((speed - mean[:, None]) / self.std) / self.std
        weights = jnp.asarray(_NODE_WEIGHTS, mean.dtype)[None, :]
        inside = jnp.sum(weights * half * density * self.min_latency / speed, axis=1)
        slow_atom = norm.cdf((self.min_latency - mean) / self.std)
        fast_atom = norm.sf((1.0 - mean) / self.std)
        return slow_atom * 1.0 + fast_atom * self.min_latency + inside


LATENCIES = (TwoGroups, TenGroups, SpeedNormal)
