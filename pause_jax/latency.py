"""Latency models: how many seconds a client takes in a round, and what the genie knows of it.

A model is a config with three methods. It is i.i.d. over rounds and independent over clients, and
it never returns less than ``min_latency`` (tau_min). Sources: SPEC section 4, from the PAUSE
experiments (two_groups) and from BSFL (ten_groups, speed_normal).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.scipy.stats import norm

from pause_jax.struct import Config, number

_NODES, _NODE_WEIGHTS = np.polynomial.legendre.leggauss(128)
_FEW_NODES, _FEW_WEIGHTS = np.polynomial.legendre.leggauss(32)
_MODEL_BITS = 2.0 * 2**20
# Beyond this many standard deviations a normal density is below float32 resolution.
_REACH = 9.0


class Latency(Config):
    """A latency model.

    Attributes:
      min_latency: tau_min, seconds.
    """

    # F, entries of a client's features.
    num_features: ClassVar[int] = 1

    min_latency: float = number(default=0.05, above=0)

    def sample(self, key: Array, num_clients: int) -> Array:
        """Seconds of every client in one round, float [K] >= min_latency."""
        raise NotImplementedError

    def features(self, key: Array, num_clients: int) -> Array:
        """What a client can report of its state before the round that ``key`` samples.

        Returns:
          float [K, F]; a constant 1 for a model whose rounds show nothing beforehand.
        """
        return jnp.ones((num_clients, 1))

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


class LinearContext(Latency):
    """Latency linear in what clients can report beforehand (synthetic setting of RBCS-F).

    Four classes of clients in equal parts. In a round client k has a share mu ~ U(0.5, 2) of its
    processor and a bandwidth B ~ U(2, 4) Mbit/s for a model of M = 2 * 2^20 bit. With the class
    c = 1, ..., 4 and its spectral efficiency e_c = ln(1 + 10^(4 - c)),

        latency = max(tau_min, scale (c / mu + M / (B e_c)) (1 + spread U(-1, 1))).

    The features are 1 / mu and M / B. The published setting adds a constant for clients that took
    part in the round before; here the world does not depend on the policy, so that all policies
    meet the same one, and there is none.

    Attributes:
      scale: seconds a unit.
      spread: half width of the multiplicative noise.
    """

    name: ClassVar[str] = "linear_context"
    summary: ClassVar[str] = "linear in reported load and bandwidth, four classes (RBCS-F)"
    num_features: ClassVar[int] = 2

    scale: float = number(default=0.1, above=0)
    spread: float = number(default=0.2, at_least=0, at_most=1)

    def _coefficients(self) -> tuple[Array, Array]:
        kind = jnp.arange(4.0)
        return 1 + kind, 1 / jnp.log1p(10 ** (3 - kind))

    def _class(self, num_clients: int) -> Array:
        return jnp.arange(num_clients) * 4 // num_clients

    def features(self, key: Array, num_clients: int) -> Array:
        load_key, band_key, _ = jax.random.split(key, 3)
        return self._features(load_key, band_key, num_clients)

    def _features(self, load_key: Array, band_key: Array, num_clients: int) -> Array:
        mu = jax.random.uniform(load_key, (num_clients,), minval=0.5, maxval=2.0)
        bandwidth = jax.random.uniform(band_key, (num_clients,), minval=2e6, maxval=4e6)
        return jnp.stack([1 / mu, _MODEL_BITS / bandwidth], axis=1)

    def sample(self, key: Array, num_clients: int) -> Array:
        load_key, band_key, noise_key = jax.random.split(key, 3)
        features = self._features(load_key, band_key, num_clients)
        by_load, by_size = self._coefficients()
        kind = self._class(num_clients)
        mean = self.scale * (by_load[kind] * features[:, 0] + by_size[kind] * features[:, 1])
        noise = jax.random.uniform(noise_key, (num_clients,), minval=-1.0)
        return jnp.maximum(self.min_latency, mean * (1 + self.spread * noise))

    def _expectation(self, of: Callable[[Array], Array], num_clients: int) -> Array:
        """E[of(latency)] of every client, by a product rule over load, bandwidth and noise."""
        node = jnp.asarray(_FEW_NODES, jnp.float32)
        weight = jnp.asarray(_FEW_WEIGHTS / 2, jnp.float32)
        mu, bandwidth = 1.25 + 0.75 * node, 3e6 + 1e6 * node
        by_load, by_size = self._coefficients()
        mean = self.scale * (
            by_load[:, None, None] / mu[None, :, None]
            + by_size[:, None, None] * _MODEL_BITS / bandwidth[None, None, :]
        )
        latency = mean[..., None] * (1 + self.spread * node)[None, None, None, :]
        value = of(jnp.maximum(self.min_latency, latency))
        return jnp.einsum("cijk,i,j,k->c", value, weight, weight, weight)[self._class(num_clients)]

    def expected_speed(self, num_clients: int) -> Array:
        return self._expectation(lambda latency: self.min_latency / latency, num_clients)

    def expected_latency(self, num_clients: int) -> Array:
        return self._expectation(lambda latency: latency, num_clients)


LATENCIES = (TwoGroups, TenGroups, SpeedNormal, LinearContext)
