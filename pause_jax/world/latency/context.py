"""Latencies that clients can partly foretell (RBCS-F)."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from pause_jax.base.struct import number
from pause_jax.world.latency.base import Latency

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(32)
_MODEL_BITS = 2.0 * 2**20


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
        mu = jax.random.uniform(load_key, (num_clients,), minval=0.5, maxval=2.0)
        bandwidth = jax.random.uniform(band_key, (num_clients,), minval=2e6, maxval=4e6)
        return jnp.stack([1 / mu, _MODEL_BITS / bandwidth], axis=1)

    def sample(self, key: Array, num_clients: int) -> Array:
        features = self.features(jax.random.clone(key), num_clients)
        noise_key = jax.random.split(key, 3)[2]
        by_load, by_size = self._coefficients()
        kind = self._class(num_clients)
        mean = self.scale * (by_load[kind] * features[:, 0] + by_size[kind] * features[:, 1])
        noise = jax.random.uniform(noise_key, (num_clients,), minval=-1.0)
        return jnp.maximum(self.min_latency, mean * (1 + self.spread * noise))

    def _expectation(self, of: Callable[[Array], Array], num_clients: int) -> Array:
        """E[of(latency)] of every client, by a product rule over load, bandwidth and noise."""
        node = jnp.asarray(_NODES, jnp.float32)
        weight = jnp.asarray(_WEIGHTS / 2, jnp.float32)
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
