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
# Minimum measurements of a client in the tests of order.
FEWEST = 8
# Significance level, at which a test rejects one stationary fleet in a thousand.
LEVEL = 1e-3
# Minimum lead of the best distribution, in nats of log predictive density; odds of 150 to 1.
DECISIVE = 5.0
_NODES, _WEIGHTS = np.polynomial.laguerre.laggauss(16)


class Test(NamedTuple):
    """Test of one assumption.

    Attributes:
      figure: test statistic on a readable scale, near 0 if the assumption holds.
      p: p-value; NaN without enough data.
    """

    figure: float
    p: float

    @property
    def speaks_against(self) -> bool:
        """True if the test rejects the assumption at ``LEVEL``."""
        return self.p < LEVEL

    @property
    def verdict(self) -> str:
        """Verdict in words."""
        return f"{'' if self.speaks_against else 'not '}significant at {LEVEL:g}"


class Estimate(NamedTuple):
    """Estimate with its standard error."""

    value: float
    error: float


class Law(NamedTuple):
    """Latency distribution of a fleet, with one scale per client and one shared parameter.

    Attributes:
      name: ``lognormal``, ``shifted_exponential``, ``pareto`` or ``normal``.
      log_density: float [C], log predictive density of each client's measurements given a single
        measurement, in nats, averaged over that measurement. The client's scale is integrated out
        under a flat prior on its logarithm (on the mean for ``normal``), which does not depend on
        units. The shared parameter has its best value. Every distribution has exactly one, so none
        needs a penalty (the geometric intrinsic Bayes factor; Berger and Pericchi 1996, "The
        intrinsic Bayes factor for model selection and prediction").
      parameters: fields of the latency model of that name, with standard errors.
      scale: float [C], seconds, by client number. It is the median for ``lognormal``, the minimum
        for ``shifted_exponential`` and ``pareto``, and the mean for ``normal``.
    """

    name: str
    log_density: Floats
    parameters: dict[str, Estimate]
    scale: Floats

    def model(self, min_latency: float) -> Latency | None:
        """Return a latency model with clients from fastest to slowest; None for ``normal``."""
        models: tuple[type[SpacedLatency], ...] = (LogNormal, ShiftedExponential, Pareto)
        cls = next((model for model in models if model.name == self.name), None)
        values = {name: float(np.float32(each.value)) for name, each in self.parameters.items()}
        return None if cls is None else cls(min_latency=min_latency, **values)


class Fleet(NamedTuple):
    """Fitted distributions and test results of a fleet.

    Attributes:
      measured: number of measurements of each client, int [C].
      mean: mean seconds of each client, float [C].
      ordered: whether the file has times; otherwise lines are assumed to be in time order.
      laws: fitted distributions, best first by summed ``log_density``.
      drift: test of a trend. The figure is the mean absolute rank correlation of a client's latency
        with time, minus its expectation by chance.
      correlation: test of the lag-1 autocorrelation of a client's latency.
      together: test of the correlation between clients in the same round; NaN without times or if
        no round has two clients.
      change: smallest and largest ratio, over clients, of the mean in the second half of the
        measurements to the mean in the first half; NaN if every client has fewer than ``FEWEST``.
    """

    measured: NDArray[np.int64]
    mean: Floats
    ordered: bool
    laws: tuple[Law, ...]
    drift: Test
    correlation: Test
    together: Test
    change: tuple[float, float]

    @property
    def rivals(self) -> tuple[str, ...]:
        """Names of the distributions that the data cannot distinguish from the best one."""
        return rivals(self.laws)

    @property
    def stationary(self) -> bool:
        """True if no test rejects independent rounds with a constant distribution."""
        return not (self.drift.speaks_against or self.correlation.speaks_against)


def fit(data: Measured) -> Fleet:
    """Fit latency distributions to measurements and test for drift and correlation.

    Raises:
      ConfigError: if there is only one client, or no client's measurements vary.
    """
    answered = np.isfinite(data.seconds)
    when = None if data.when is None else data.when[answered]
    data = Measured(data.client[answered], data.seconds[answered], when)
    number = np.bincount(data.client)
    if number.size < 2:
        raise ConfigError("fleet: has one client; there is nobody to choose among.")
    if number.max() < 2:
        raise ConfigError(
            "fleet: has one measurement of each client, so nothing can be said of their spread. "
            "Measure each a few times."
        )
    each = [data.seconds[data.client == client] for client in range(number.size)]
    if all(np.ptp(row) == 0 for row in each):
        raise ConfigError(
            "fleet: all measurements of a client are equal, so nothing can be said of their "
            "spread. Give the seconds as they were measured, not rounded."
        )
    mean = np.asarray([row.mean() for row in each])
    halves = [row[len(row) // 2 :].mean() / row[: len(row) // 2].mean()
              for row in each if len(row) >= FEWEST]  # fmt: skip
    return Fleet(
        measured=number,
        mean=mean,
        ordered=data.when is not None,
        laws=fitted(each),
        drift=_drift(each),
        correlation=_correlation(each),
        together=_together(data, each),
        change=(min(halves, default=math.nan), max(halves, default=math.nan)),
    )


def _long(each: list[Floats]) -> list[Floats]:
    return [row for row in each if len(row) >= FEWEST and np.ptp(row) > 0]


def _drift(each: list[Floats]) -> Test:
    """Test each client's Spearman correlation with time; the squares sum to a chi-square."""
    rows = _long(each)
    if not rows:
        return Test(math.nan, math.nan)
    found = np.asarray([stats.spearmanr(row, np.arange(len(row))).statistic for row in rows])
    z = found * np.sqrt([len(row) - 1 for row in rows])
    by_chance = np.mean([math.sqrt(2 / math.pi / (len(row) - 1)) for row in rows])
    figure = max(0.0, float(np.abs(found).mean() - by_chance))
    return Test(figure, float(stats.chi2.sf(float(z @ z), len(rows))))


def _correlation(each: list[Floats]) -> Test:
    """Test the pooled lag-1 correlation of ranks, which are robust against heavy tails."""
    rows = [stats.rankdata(row) for row in _long(each)]
    if not rows:
        return Test(math.nan, math.nan)
    off = [row - row.mean() for row in rows]
    products = sum(float(x[1:] @ x[:-1]) for x in off)
    squares = sum(float(x @ x) for x in off)
    expected = -sum(float(x @ x) / len(x) for x in off)  # for independent ranks
    figure = (products - expected) / squares
    total = sum(map(len, rows))
    return Test(figure, float(2 * stats.norm.sf(abs(figure) * math.sqrt(total))))


def _together(data: Measured, each: list[Floats]) -> Test:
    """Test the correlation between clients in a round, using ranks within each client."""
    if data.when is None:
        return Test(math.nan, math.nan)
    rank = np.zeros(len(data.seconds))
    for client, row in enumerate(each):
        if len(row) > 1 and np.ptp(row) > 0:
            ranks = stats.rankdata(row)
            rank[data.client == client] = (ranks - ranks.mean()) / ranks.std()
    rounds = np.unique(data.when, return_inverse=True)[1]
    sums, squares, number = (np.bincount(rounds, w) for w in (rank, rank**2, None))
    pairs = float((number * (number - 1.0)).sum())
    if not pairs:
        return Test(math.nan, math.nan)
    figure = float((sums**2 - squares).sum() / pairs)
    return Test(figure, float(2 * stats.norm.sf(abs(figure) * math.sqrt(pairs / 2))))


def fitted(each: list[Floats]) -> tuple[Law, ...]:
    """Fit the four distributions to the measurements of each client; return them best first."""
    laws = [law(each) for law in (_lognormal, _shifted_exponential, _pareto, _normal)]
    return tuple(sorted(laws, key=lambda law: -law.log_density.sum()))


def rivals(laws: tuple[Law, ...]) -> tuple[str, ...]:
    """Return the names of the distributions that the data cannot distinguish from the first one.

    The first and best distribution must lead by more than ``DECISIVE`` nats without the client that
    favours it most, because a single client must not decide.
    """
    best, *others = laws
    ahead = {law.name: best.log_density - law.log_density for law in others}
    return tuple(name for name, by in ahead.items() if by.sum() - by.max() <= DECISIVE)


def _ends(scale: Floats, error: Floats) -> dict[str, Estimate]:
    """Fit ``fastest`` and ``slowest`` of geometrically spaced scales.

    ``scale`` is the estimate for each client, [C], and ``error`` its relative standard error, [C].
    """
    order = np.argsort(scale)
    place = np.linspace(0, 1, scale.size)
    design = np.stack([1 - place, place], axis=1)
    weight = 1 / error[order]
    covariance = np.linalg.inv(design.T @ (weight[:, None] ** 2 * design))
    logs = covariance @ design.T @ (weight**2 * np.log(scale[order]))
    # Unevenly spaced scales deviate from the line by more than their standard errors.
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
    """Return the log density of normal rows at the best common variance, integrating out means."""
    variance = squares.sum() / (size - 1).sum()
    common = (size - 1) * math.log(2 * math.pi * variance)
    return np.asarray(-0.5 * (common + np.log(size) + squares / variance))


def _from_logs(each: list[Floats]) -> Floats:
    """Return the log Jacobian from log-seconds to seconds of all but one (average) measurement."""
    return np.asarray([-(len(row) - 1) * np.log(row).mean() for row in each])


def _lognormal(each: list[Floats]) -> Law:
    logs = [np.log(row) for row in each]
    size, squares = _sizes(each), _squares(logs)
    free = float((size - 1).sum())
    scale = np.exp([row.mean() for row in logs])
    sigma = math.sqrt(squares.sum() / free)
    return Law(
        "lognormal",
        _gaussian(size, squares) + _from_logs(each),
        {
            **_ends(scale, sigma / np.sqrt(size)),
            "sigma": Estimate(sigma, sigma / math.sqrt(2 * free)),
        },
        scale,
    )


def _log_upper_gamma(n: Floats, z: Floats) -> Floats:
    """Return the logarithm of e^z Gamma(n, z), the upper incomplete gamma function."""
    with np.errstate(divide="ignore"):
        upper = special.gammaincc(n, z)
        near = np.log(upper) + special.gammaln(n) + z
    # Where it underflows, z is far above n and e^z Gamma(n, z) / z^n is a smooth Laplace integral.
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
    # On average, the minimum of n exceeds the shift by 1/n of the mean excess, so subtract this.
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
    return Law(
        "shifted_exponential",
        log_density(best.x),
        {
            **_ends(shift, above / size),
            "straggling": Estimate(above, above / math.sqrt(max(total - len(each), 1))),
        },
        shift,
    )


def _pareto(each: list[Floats]) -> Law:
    size = _sizes(each)
    least = np.asarray([row.min() for row in each])
    excess = np.asarray([np.log(row / low).sum() for row, low in zip(each, least, strict=True)])
    free = max(size.sum() - len(each) - 1, 1.0)
    shape = free / float(excess.sum())
    best = float((size - 1).sum()) / float(excess.sum())
    scale = least * np.exp(-1 / (size * shape))
    return Law(
        "pareto",
        (size - 1) * math.log(best) - np.log(size) - best * excess + _from_logs(each),
        {**_ends(scale, 1 / (size * shape)), "shape": Estimate(shape, shape / math.sqrt(free))},
        scale,
    )


def _normal(each: list[Floats]) -> Law:
    size, squares = _sizes(each), _squares(each)
    mean = np.asarray([row.mean() for row in each])
    free = float((size - 1).sum())
    std = math.sqrt(squares.sum() / free)
    spread = {"std": Estimate(std, std / math.sqrt(2 * free))}
    return Law("normal", _gaussian(size, squares), spread, mean)
