"""Latency distributions fitted to a fleet's measurements, and tests for drift and correlation.

The bandit policies assume that a client's latencies are independent and identically distributed.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special, stats

from pause_jax.base.struct import ConfigError
from pause_jax.world.latency import Latency, LogNormal, Pareto, ShiftedExponential, SpacedLatency
from pause_jax.world.latency.measured import Measured

Floats = NDArray[np.float64]
# Minimum number of measurements per client in the tests for drift and autocorrelation.
FEWEST = 8
# Significance level of the tests (their probability of rejecting a stationary fleet).
LEVEL = 1e-3
# Lead in log predictive density, in nats, above which a distribution wins (odds of e^5 to 1).
DECISIVE = 5.0
_NODES, _WEIGHTS = np.polynomial.laguerre.laggauss(16)


class Test(NamedTuple):
    """Result of a statistical test of one assumption."""

    figure: float  # correlation that measures the violation, near 0 if the assumption holds
    p: float  # p-value, or NaN if there is not enough data

    @property
    def significant(self) -> bool:
        """True if the test rejects the assumption at significance level ``LEVEL``."""
        return self.p < LEVEL

    @property
    def verdict(self) -> str:
        """Result of the test in words, e.g. "not significant at 0.001"."""
        return f"{'' if self.significant else 'not '}significant at {LEVEL:g}"


class Estimate(NamedTuple):
    """Estimate of a parameter, with its standard error."""

    value: float
    error: float


class Law(NamedTuple):
    """Fitted latency distribution, with one scale per client and one shared parameter.

    Attributes:
      name: ``lognormal``, ``shifted_exponential``, ``pareto`` or ``normal``.
      log_density: float [C], log predictive density (in nats) of a client's other measurements
        given one measurement, averaged over the choice of the given measurement. The client's scale
        is integrated out under a flat prior on its logarithm (on the mean for ``normal``), so the
        unit of time affects no comparison. Every distribution has exactly one shared parameter, so
        no penalty is needed (geometric intrinsic Bayes factor, Berger and Pericchi 1996).
      parameters: estimates keyed by the latency model's field names, or by ``std`` for ``normal``.
      scale: float [C], scale of each client in seconds: the median for ``lognormal``, the minimum
        for ``shifted_exponential`` and ``pareto``, and the mean for ``normal``.
    """

    name: str
    log_density: Floats
    parameters: dict[str, Estimate]
    scale: Floats

    def model(self, min_latency: float) -> Latency | None:
        """Return the fitted model, with clients sorted fastest first, or None for ``normal``."""
        models: tuple[type[SpacedLatency], ...] = (LogNormal, ShiftedExponential, Pareto)
        cls = next((model for model in models if model.name == self.name), None)
        values = {name: float(np.float32(each.value)) for name, each in self.parameters.items()}
        return None if cls is None else cls(min_latency=min_latency, **values)


class Fleet(NamedTuple):
    """Latency distributions fitted to a fleet, and results of tests for drift and correlation.

    Attributes:
      measured: number of measurements per client, int [C].
      mean: mean latency per client in seconds, float [C].
      ordered: whether the file has a round or time column. Otherwise, lines must be in time order.
      laws: fitted distributions, sorted by summed ``log_density``, best first.
      drift: test for a trend. ``figure`` is max(0, r - r0), where r is the mean over clients of the
        absolute rank correlation between latency and time, and r0 is the r expected by chance.
      correlation: test for lag-1 autocorrelation of each client's latencies.
    """

    measured: NDArray[np.int64]
    mean: Floats
    ordered: bool
    laws: tuple[Law, ...]
    drift: Test
    correlation: Test

    @property
    def rivals(self) -> tuple[str, ...]:
        """Names of the distributions that the data cannot distinguish from the best one."""
        return rivals(self.laws)

    @property
    def stationary(self) -> bool:
        """True if neither the test for drift nor the test for autocorrelation is significant."""
        return not (self.drift.significant or self.correlation.significant)


def fit(data: Measured) -> Fleet:
    """Fit latency distributions to finite measurements, and test for drift and autocorrelation.

    Raises:
      ConfigError: if only one client has measurements, or if no client's measurements vary.
    """
    answered = np.isfinite(data.seconds)
    clients, seconds = data.client[answered], data.seconds[answered]
    number = np.bincount(clients)
    if number.size < 2:
        raise ConfigError("fleet has only one client: must have at least two. Add another client.")
    each = [seconds[clients == client] for client in range(number.size)]
    if all(np.ptp(row) == 0 for row in each):
        raise ConfigError(
            "fleet: no client has two different measurements, so the spread cannot be estimated. "
            "Measure each client several times, and do not round the seconds."
        )
    mean = np.asarray([row.mean() for row in each])
    return Fleet(
        measured=number,
        mean=mean,
        ordered=data.when is not None,
        laws=fitted(each),
        drift=_drift(each),
        correlation=_correlation(each),
    )


def _long(each: list[Floats]) -> list[Floats]:
    return [row for row in each if len(row) >= FEWEST and np.ptp(row) > 0]


def _drift(each: list[Floats]) -> Test:
    """Test for a trend with a chi-square statistic, the sum of the squared Spearman z-scores."""
    rows = _long(each)
    if not rows:
        return Test(math.nan, math.nan)
    found = np.asarray([stats.spearmanr(row, np.arange(len(row))).statistic for row in rows])
    z = found * np.sqrt([len(row) - 1 for row in rows])
    by_chance = np.mean([math.sqrt(2 / math.pi / (len(row) - 1)) for row in rows])
    figure = max(0.0, float(np.abs(found).mean() - by_chance))
    return Test(figure, float(stats.chi2.sf(float(z @ z), len(rows))))


def _correlation(each: list[Floats]) -> Test:
    """Test the pooled lag-1 autocorrelation of ranks, which are robust to heavy tails."""
    rows = [stats.rankdata(row) for row in _long(each)]
    if not rows:
        return Test(math.nan, math.nan)
    off = [row - row.mean() for row in rows]
    products = sum(float(x[1:] @ x[:-1]) for x in off)
    squares = sum(float(x @ x) for x in off)
    expected = -sum(float(x @ x) / len(x) for x in off)  # mean of `products` for independent ranks
    figure = (products - expected) / squares
    total = sum(map(len, rows))
    return Test(figure, float(2 * stats.norm.sf(abs(figure) * math.sqrt(total))))


def fitted(each: list[Floats]) -> tuple[Law, ...]:
    """Fit the four distributions to each client's measurements [n], and return them best first."""
    laws = [law(each) for law in (_lognormal, _shifted_exponential, _pareto, _normal)]
    return tuple(sorted(laws, key=lambda law: -law.log_density.sum()))


def rivals(laws: tuple[Law, ...]) -> tuple[str, ...]:
    """Return the names of the distributions that the best (first) one does not decisively beat.

    A decisive lead exceeds ``DECISIVE`` nats even without the client that contributes most to it.
    """
    best, *others = laws
    ahead = {law.name: best.log_density - law.log_density for law in others}
    return tuple(name for name, by in ahead.items() if by.sum() - by.max() <= DECISIVE)


def _ends(scale: Floats, error: Floats) -> dict[str, Estimate]:
    """Fit a geometric sequence to scales [C] with relative errors [C], and return its endpoints."""
    order = np.argsort(scale)
    place = np.linspace(0, 1, scale.size)
    design = np.stack([1 - place, place], axis=1)
    weight = 1 / error[order]
    covariance = np.linalg.inv(design.T @ (weight[:, None] ** 2 * design))
    logs = covariance @ design.T @ (weight**2 * np.log(scale[order]))
    # If the reduced chi-square of the fit exceeds 1, multiply the errors by its square root.
    residual = (np.log(scale[order]) - design @ logs) * weight
    off = max(1.0, float(residual @ residual) / max(scale.size - 2, 1))
    ends = np.exp(logs)
    errors = ends * np.sqrt(off * np.diag(covariance))
    fastest, slowest = map(Estimate, ends.tolist(), errors.tolist())
    return {"fastest": fastest, "slowest": slowest}


def _sizes(each: list[Floats]) -> Floats:
    return np.asarray([len(row) for row in each], np.float64)


def _squares(rows: list[Floats]) -> Floats:
    return np.asarray([float(((row - row.mean()) ** 2).sum()) for row in rows])


def _gaussian(size: Floats, squares: Floats) -> Floats:
    """Return each client's Gaussian log-likelihood [C], with the mean integrated out."""
    variance = squares.sum() / (size - 1).sum()
    common = (size - 1) * math.log(2 * math.pi * variance)
    return np.asarray(-0.5 * (common + np.log(size) + squares / variance))


def _from_logs(each: list[Floats]) -> Floats:
    """Return each client's log Jacobian of x -> ln x, averaged over leave-one-out subsets."""
    return np.asarray([-(len(row) - 1) * np.log(row).mean() for row in each])


def _lognormal(each: list[Floats]) -> Law:
    logs = [np.log(row) for row in each]
    size, squares = _sizes(each), _squares(logs)
    free = float((size - 1).sum())
    scale = np.exp([row.mean() for row in logs])
    sigma = math.sqrt(squares.sum() / free)
    spread = Estimate(sigma, sigma / math.sqrt(2 * free))
    parameters = {**_ends(scale, sigma / np.sqrt(size)), "sigma": spread}
    return Law("lognormal", _gaussian(size, squares) + _from_logs(each), parameters, scale)


def _log_upper_gamma(n: Floats, z: Floats) -> Floats:
    """Return log(e^z Gamma(n, z)), where Gamma(n, z) is the upper incomplete gamma function."""
    with np.errstate(divide="ignore"):
        upper = special.gammaincc(n, z)
        near = np.log(upper) + special.gammaln(n) + z
    # Where `upper` underflows, z >> n, so quadrature of e^z Gamma(n, z) / z^n is accurate.
    beyond = np.maximum(z - n + 1, 1.0)[:, None]
    t = _NODES / beyond
    smooth = np.exp((n[:, None] - 1) * (np.log1p(t) - t)) @ _WEIGHTS
    far = n * np.log(z) - np.log(beyond[:, 0]) + np.log(smooth)
    return np.where(upper > 1e-250, near, far)


def _shifted_exponential(each: list[Floats]) -> Law:
    size = _sizes(each)
    least, mean = (np.asarray([f(row) for row in each]) for f in (np.min, np.mean))
    total = size.sum()
    many = np.maximum(size, 2)
    # The minimum of n draws overestimates the shift by 1/n of the mean excess. Subtract this bias.
    shift = np.maximum((many * least - mean) / (many - 1), least * 0.5)
    above = float(size @ (mean / shift - 1)) / total
    logs = np.asarray([np.log(row).mean() for row in each])

    def log_density(log_straggling: float) -> Floats:
        rate = size * math.exp(-log_straggling)
        at_least = rate * mean / least
        found = _log_upper_gamma(size, at_least) + rate - at_least
        return np.asarray(found - size * np.log(size * mean) + logs)

    best = optimize.minimize_scalar(
        lambda x: -log_density(x).sum(),
        bounds=(math.log(above) - 4, math.log(above) + 4),
        method="bounded",
    )
    straggling = Estimate(above, above / math.sqrt(max(total - len(each), 1)))
    parameters = {**_ends(shift, above / size), "straggling": straggling}
    return Law("shifted_exponential", log_density(best.x), parameters, shift)


def _pareto(each: list[Floats]) -> Law:
    size = _sizes(each)
    least = np.asarray([row.min() for row in each])
    excess = np.asarray([np.log(row / low).sum() for row, low in zip(each, least, strict=True)])
    free = max(size.sum() - len(each) - 1, 1.0)
    shape = free / float(excess.sum())
    best = float((size - 1).sum()) / float(excess.sum())
    scale = least * np.exp(-1 / (size * shape))
    density = (size - 1) * math.log(best) - np.log(size) - best * excess + _from_logs(each)
    tail = Estimate(shape, shape / math.sqrt(free))
    return Law("pareto", density, {**_ends(scale, 1 / (size * shape)), "shape": tail}, scale)


def _normal(each: list[Floats]) -> Law:
    size, squares = _sizes(each), _squares(each)
    mean = np.asarray([row.mean() for row in each])
    free = float((size - 1).sum())
    std = math.sqrt(squares.sum() / free)
    spread = {"std": Estimate(std, std / math.sqrt(2 * free))}
    return Law("normal", _gaussian(size, squares), spread, mean)
