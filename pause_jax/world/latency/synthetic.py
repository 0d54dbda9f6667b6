"""Synthetic latency models, with normal, long-tailed or feature-based distributions.

Sources: PAUSE (``TwoGroups``), BSFL (``TenGroups``, ``SpeedNormal``), RBCS-F (``LinearContext``).
"""

from __future__ import annotations

import builtins
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.scipy.stats import norm

from pause_jax.base.struct import ConfigError, Sizes, number, static
from pause_jax.world.latency.base import Latency, quadrature

# Number of standard deviations beyond which a normal density is below float32 resolution.
REACH = 9.0
# Exponent x above which e^-x is negligible even in a float64 sum.
_NEGLIGIBLE = 60.0
# Gauss-Legendre rule for each random variable in ``LinearContext``.
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(32)
_MODEL_BITS = 2.0 * 2**20


class NormalLatency(Latency):
    """Latency = max(tau_min, Normal(mean_k, std)), with means defined by a subclass.

    Attributes:
      std: standard deviation of the latency before clipping at tau_min, in seconds.
    """

    std: float = number(default=0.05, above=0)

    def mean(self, num_clients: int) -> Array:
        """Return the mean latency before clipping at tau_min, in seconds, float [K]."""
        raise NotImplementedError

    def sample(self, key: Array, num_clients: int) -> Array:
        noise = jax.random.normal(key, (num_clients,))
        return jnp.maximum(self.min_latency, self.mean(num_clients) + self.std * noise)

    def expected_speed(self, num_clients: int) -> Array:
        # Latencies clipped to tau_min have speed 1. Quadrature covers the density above tau_min.
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
    """Normally distributed latency with a fast half (clients 0 .. K/2 - 1) and a slow half (PAUSE).

    Attributes:
      fast_start, fast_span: range of the fast clients' means, which increase in equal steps from
        just above ``fast_start`` to ``fast_start + fast_span`` seconds.
      slow_start, slow_span: range of the slow clients' means, defined in the same way.
    """

    name: ClassVar[str] = "two_groups"
    summary: ClassVar[str] = "normal, with a fast half and a slow half (PAUSE)"

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
    """Normally distributed latency in ten client groups of equal size (BSFL Figs. 5-6).

    Attributes:
      slowest: mean of group 10, in seconds. Group g has mean ``slowest`` * g / 10.
    """

    name: ClassVar[str] = "ten_groups"
    summary: ClassVar[str] = "normal, in ten groups with means from 0.1 to 1.0 s (BSFL)"

    slowest: float = number(default=1.0, above=0)

    def mean(self, num_clients: int) -> Array:
        group = jnp.arange(num_clients) * 10 // num_clients
        return self.slowest * (group + 1).astype(float) / 10


class SpeedNormal(Latency):
    """Latency = clip(tau_min / X, tau_min, 1 s), X ~ Normal(mean_speed_k, std), as in BSFL's code.

    A draw X < 0 yields a negative quotient and hence tau_min, the *fastest* latency. With the
    default values, 16 % of the slowest client's draws are negative, and its expected speed is 0.27.
    If negative draws yielded the slowest latency, the expected speed would be 0.12. ``slowest`` is
    therefore the mean of X, not the expected speed. X = 0 yields 1 s.

    The means of X are equally spaced from ``fastest`` (client 0) to ``slowest`` (client K - 1).

    Attributes:
      std: standard deviation of X.
      fastest, slowest: means of X for clients 0 and K - 1.
    """

    name: ClassVar[str] = "speed_normal"
    summary: ClassVar[str] = "normally distributed speed; a negative draw yields the least latency"

    min_latency: float = number(default=0.05, above=0, at_most=1)
    std: float = number(default=0.1, above=0)
    fastest: float = number(default=0.9, above=0, at_most=1)
    slowest: float = number(default=0.1, above=0, at_most=1)

    def mean_speed(self, num_clients: int) -> Array:
        """Return the mean of X, float [K]."""
        step = jnp.arange(num_clients) / max(num_clients - 1, 1)
        return self.fastest + (self.slowest - self.fastest) * step

    def sample(self, key: Array, num_clients: int) -> Array:
        noise = jax.random.normal(key, (num_clients,))
        draw = self.mean_speed(num_clients) + self.std * noise
        speed = jnp.clip(draw, self.min_latency, 1.0)
        return self.min_latency / jnp.where(draw < 0, 1.0, speed)

    def expected_speed(self, num_clients: int) -> Array:
        mean = self.mean_speed(num_clients)
        a, b = (self.min_latency - mean) / self.std, (1.0 - mean) / self.std
        between = norm.cdf(b) - norm.cdf(a)
        inside = mean * between - self.std * (norm.pdf(b) - norm.pdf(a))
        negative = (1.0 - self.min_latency) * norm.cdf(-mean / self.std)
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
        # Correct ``slow_atom``, which assigns negative draws a latency of 1 s instead of tau_min.
        negative = (1.0 - self.min_latency) * norm.cdf(-mean / self.std)
        return slow_atom + fast_atom * self.min_latency + inside - negative


class SpacedLatency(Latency):
    """Latency = max(tau_min, scale_k Z), where a subclass defines the distribution of Z.

    Scales are spaced geometrically from ``fastest`` (client 0) to ``slowest`` (client K - 1).

    Attributes:
      fastest, slowest: scales of clients 0 and K - 1, in seconds.
    """

    fastest: float = number(default=0.1, above=0)
    slowest: float = number(default=1.0, above=0)

    def scale(self, num_clients: int) -> Array:
        """Return scale_k in seconds, float [K]."""
        step = jnp.arange(num_clients) / max(num_clients - 1, 1)
        return self.fastest * (self.slowest / self.fastest) ** step


class LogNormal(SpacedLatency):
    """Latency = max(tau_min, scale_k e^(sigma N)), N ~ Normal(0, 1), with median ``scale_k``.

    Attributes:
      sigma: standard deviation of ln(latency) before clipping at tau_min. A value of 0.5
        corresponds to a coefficient of variation of 0.53.
    """

    name: ClassVar[str] = "lognormal"
    summary: ClassVar[str] = "lognormal, with medians from fastest to slowest"

    sigma: float = number(default=0.5, above=0, at_most=5)

    def sample(self, key: Array, num_clients: int) -> Array:
        noise = jax.random.normal(key, (num_clients,))
        return jnp.maximum(self.min_latency, self.scale(num_clients) * jnp.exp(self.sigma * noise))

    def _cut(self, num_clients: int) -> Array:
        """Return the value of N at which the latency equals tau_min, float [K]."""
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
    """:class:`LogNormal` model whose fast and slow halves swap every ``period`` rounds.

    Each swap gives client k the distribution of client k + K / 2 (mod K).

    Attributes:
      period: number of rounds between swaps (static).
    """

    name: ClassVar[str] = "switching"
    summary: ClassVar[str] = "lognormal, with fast and slow clients that periodically swap roles"

    period: int = static(default=500, at_least=1)

    @property
    def varies(self) -> bool:
        return True

    def at(self, key: Array, round: Array, num_clients: int) -> Array:
        return jnp.roll(self.sample(key, num_clients), -self._moved(round, num_clients))

    def expected_speed_at(self, round: Array, num_clients: int) -> Array:
        speed = super().expected_speed(num_clients)
        return jnp.roll(speed, -self._moved(round, num_clients))

    def _step(self, num_clients: int) -> int:
        """Return the shift s of a swap: client k takes the role of client k + s (mod K)."""
        return builtins.round(num_clients / 2)

    def _moved(self, round: Array, num_clients: int) -> Array:
        """Return the shift s in round t: client k has the initial role of client k + s (mod K)."""
        return ((round - 1) // self.period * self._step(num_clients)) % num_clients

    def _over_time(self, values: Array) -> Array:
        """Return the mean of ``values`` over all positions that a client can occupy."""
        num_clients = values.shape[0]
        step = self._step(num_clients)
        places = sorted({step * i % num_clients for i in range(num_clients)})
        return jnp.mean(jnp.stack([jnp.roll(values, -place) for place in places]), axis=0)

    def expected_speed(self, num_clients: int) -> Array:
        return self._over_time(super().expected_speed(num_clients))

    def expected_latency(self, num_clients: int) -> Array:
        return self._over_time(super().expected_latency(num_clients))


class ShiftedExponential(SpacedLatency):
    """Latency = max(tau_min, scale_k (1 + straggling E)), E ~ Exp(1).

    ``scale_k`` is the client's minimum latency before clipping at tau_min. The mean straggling
    delay is proportional to ``scale_k``, as in the standard straggler model (Lee et al. 2018,
    "Speeding up distributed machine learning using codes").

    Attributes:
      straggling: mean of the exponential delay, as a multiple of ``scale_k``.
    """

    name: ClassVar[str] = "shifted_exponential"
    summary: ClassVar[str] = "minimum time plus an exponential delay (stragglers)"

    straggling: float = number(default=1.0, above=0)

    def sample(self, key: Array, num_clients: int) -> Array:
        extra = self.straggling * jax.random.exponential(key, (num_clients,))
        return jnp.maximum(self.min_latency, self.scale(num_clients) * (1 + extra))

    def _above(self, num_clients: int) -> tuple[Array, Array, Array]:
        """Return (start = max(tau_min, scale_k), mean delay, P(latency > start)), [K] each."""
        least = self.scale(num_clients)
        start, mean = jnp.maximum(self.min_latency, least), self.straggling * least
        return start, mean, jnp.exp(-(start - least) / mean)

    def expected_speed(self, num_clients: int) -> Array:
        # E[1 / tau | tau > start] is an exponential integral. Substituting tau = start e^y makes
        # the integrand smooth and avoids underflow in float32.
        start, mean, share = self._above(num_clients)
        rate = start / mean
        y, weight = quadrature(jnp.zeros_like(rate), jnp.log1p(_NEGLIGIBLE / rate))
        inverse = jnp.sum(weight * jnp.exp(-rate[:, None] * jnp.expm1(y)), axis=1) / mean
        return 1 - share + share * self.min_latency * inverse

    def expected_latency(self, num_clients: int) -> Array:
        start, mean, share = self._above(num_clients)
        return start + share * mean


class Pareto(SpacedLatency):
    """Latency = max(tau_min, scale_k U^(-1 / shape)), where U is uniform on (0, 1).

    P(latency > x) = (scale_k / x)^shape for x >= max(tau_min, scale_k). The variance is infinite
    for ``shape`` <= 2, so means over a few rounds are unreliable. A ``shape`` <= 1 is rejected,
    because the mean would also be infinite.

    Attributes:
      shape: tail exponent, > 1.
    """

    name: ClassVar[str] = "pareto"
    summary: ClassVar[str] = "minimum time with a power-law tail"

    shape: float = number(default=2.5, above=0)

    def check(self, path: str, sizes: Sizes) -> None:
        shape: Any = self.shape
        if not isinstance(shape, jax.core.Tracer) and not shape > 1:
            raise ConfigError(
                f"{path}.shape = {shape!r}: must be > 1, because otherwise the mean latency is "
                "infinite. Raise shape, or use lognormal, whose mean is finite."
            )

    def sample(self, key: Array, num_clients: int) -> Array:
        tail = jnp.exp(jax.random.exponential(key, (num_clients,)) / self.shape)
        return jnp.maximum(self.min_latency, self.scale(num_clients) * tail)

    def _above(self, num_clients: int) -> tuple[Array, Array]:
        """Return (start = max(tau_min, scale_k), P(latency > start)), float [K] each."""
        least = self.scale(num_clients)
        start = jnp.maximum(self.min_latency, least)
        return start, (least / start) ** self.shape

    def expected_speed(self, num_clients: int) -> Array:
        start, share = self._above(num_clients)
        return 1 - share + share * self.min_latency / start * self.shape / (self.shape + 1)

    def expected_latency(self, num_clients: int) -> Array:
        start, share = self._above(num_clients)
        return start * (1 + share / (self.shape - 1))


class LinearContext(Latency):
    """Latency that is linear in features reported by clients (RBCS-F's synthetic setting).

    Clients form four classes of equal size. In each round, client k has a processor speed
    mu ~ U(0.5, 2) and a bandwidth B ~ U(2, 4) Mbit/s for a model of M = 2 * 2^20 bits. For class
    c = 1, ..., 4 with spectral efficiency e_c = ln(1 + 10^(4 - c)),

        latency = max(tau_min, scale (c / mu + M / (B e_c)) (1 + spread U(-1, 1))).

    The features are 1 / mu and M / B. Unlike in the published setting, no constant is added to the
    latencies of clients in the previous cohort, because latencies must not depend on the policy.

    Attributes:
      scale: seconds per unit of c / mu + M / (B e_c).
      spread: half-width of the multiplicative noise.
    """

    name: ClassVar[str] = "linear_context"
    summary: ClassVar[str] = "linear in reported load and bandwidth, with four classes (RBCS-F)"
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
        """Return E[of(latency)], float [K], by quadrature over load, bandwidth and noise."""
        node = jnp.asarray(_NODES, jnp.float32)
        weight = jnp.asarray(_WEIGHTS / 2, jnp.float32)
        mu = 1.25 + 0.75 * node
        bandwidth = 3e6 + 1e6 * node
        by_load, by_size = self._coefficients()
        load = by_load[:, None, None] / mu[None, :, None]
        size = by_size[:, None, None] * _MODEL_BITS / bandwidth[None, None, :]
        mean = self.scale * (load + size)
        latency = mean[..., None] * (1 + self.spread * node)[None, None, None, :]
        value = of(jnp.maximum(self.min_latency, latency))
        return jnp.einsum("cijk,i,j,k->c", value, weight, weight, weight)[self._class(num_clients)]

    def expected_speed(self, num_clients: int) -> Array:
        return self._expectation(lambda latency: self.min_latency / latency, num_clients)

    def expected_latency(self, num_clients: int) -> Array:
        return self._expectation(lambda latency: latency, num_clients)
