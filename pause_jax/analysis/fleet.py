"""Laws of a fleet's measured latencies, and tests whether they stay as they are.

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
# A client with fewer measurements says nothing about order.
FEWEST = 8
# Significance level: one honest fleet in a thousand is suspected.
LEVEL = 1e-3
# Nats by which a law must predict better than another; odds of 150 to 1.
DECISIVE = 5.0
_NODES, _WEIGHTS = np.polynomial.laguerre.laggauss(16)


class Test(NamedTuple):
    """Test of one assumption.

    Attributes:
      figure: what is measured; 0 if the assumption holds.
      p: probability of such a figure or a larger one if it does; NaN if nothing can be said.
    """

    figure: float
    p: float

    @property
    def speaks_against(self) -> bool:
        """Whether the assumption is to be given up."""
        return self.p < LEVEL

    @property
    def verdict(self) -> str:
        """The same in words."""
        return f"{'' if self.speaks_against else 'not '}significant at {LEVEL:g}"


class Estimate(NamedTuple):
    """Number with its standard error."""

    value: float
    error: float


class Law(NamedTuple):
    """Law of all clients, each with its own scale.

    Attributes:
      name: ``lognormal``, ``shifted_exponential``, ``pareto`` or ``normal``.
      log_density: float [C], nats: how well the law predicts all but one of a client's
        measurements from that one, on average over which one is given. The client's scale is
        integrated out, with a density that does not depend on units (of its logarithm; of the mean
        for ``normal``). The parameter common to all clients, one for each law, is at its best
        value. So no law needs a penalty (the geometric intrinsic Bayes factor; Berger and Pericchi
        1996, "The intrinsic Bayes factor for model selection and prediction").
      parameters: fields of the latency model of that name, with standard errors.
      scale: float [C], of each client in the order of its number, seconds: the median of a
        lognormal, the least of a shifted exponential and a Pareto law, the mean of a normal one.
    """

    name: str
    log_density: Floats
    parameters: dict[str, Estimate]
    scale: Floats

    def model(self, min_latency: float) -> Latency | None:
        """Return the latency model, its clients from fastest to slowest; None for a normal law."""
        models: tuple[type[SpacedLatency], ...] = (LogNormal, ShiftedExponential, Pareto)
        cls = next((model for model in models if model.name == self.name), None)
        values = {name: float(np.float32(each.value)) for name, each in self.parameters.items()}
        return None if cls is None else cls(min_latency=min_latency, **values)


class Fleet(NamedTuple):
    """What was seen.

    Attributes:
      measured: measurements of each client, int [C].
      mean: mean seconds of each, float [C].
      ordered: whether the file says when they were taken; else its order counts.
      laws: best first, by their summed ``log_density``.
      drift: of each client's latency with time: the figure is the mean absolute rank correlation
        with time beyond what chance gives.
      correlation: of a client's measurement with its next one, lag 1, beyond its mean.
      together: of different clients in the same round; NaN where no round has two clients.
      change: of the mean from the first to the second half of the measurements, a factor: the
        smallest and the largest over clients.
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
        """Laws that the data cannot tell from the best one."""
        return rivals(self.laws)

    @property
    def stationary(self) -> bool:
        """Whether nothing speaks against independent rounds of one law."""
        return not (self.drift.speaks_against or self.correlation.speaks_against)


def fit(data: Measured) -> Fleet:
    """What measurements show.

    Raises:
      ConfigError: for one client alone, or clients whose measurements do not spread.
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
    """Spearman's rank correlation of each client with time; the squares add to a chi-square."""
    rows = _long(each)
    if not rows:
        return Test(math.nan, math.nan)
    found = np.asarray([stats.spearmanr(row, np.arange(len(row))).statistic for row in rows])
    z = found * np.sqrt([len(row) - 1 for row in rows])
    by_chance = np.mean([math.sqrt(2 / math.pi / (len(row) - 1)) for row in rows])
    figure = max(0.0, float(np.abs(found).mean() - by_chance))
    return Test(figure, float(stats.chi2.sf(float(z @ z), len(rows))))


def _correlation(each: list[Floats]) -> Test:
    """Lag-1 correlation of ranks, which one long tail does not decide; pooled over clients."""
    rows = [stats.rankdata(row) for row in _long(each)]
    if not rows:
        return Test(math.nan, math.nan)
    off = [row - row.mean() for row in rows]
    products = sum(float(x[1:] @ x[:-1]) for x in off)
    squares = sum(float(x @ x) for x in off)
    expected = -sum(float(x @ x) / len(x) for x in off)  # of independent ranks, about their mean
    figure = (products - expected) / squares
    total = sum(map(len, rows))
    return Test(figure, float(2 * stats.norm.sf(abs(figure) * math.sqrt(total))))


def _together(data: Measured, each: list[Floats]) -> Test:
    """Correlation of different clients in one round, of ranks within each client."""
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
    """Return the four laws of the measurements of each client, best first."""
    laws = [law(each) for law in (_lognormal, _shifted_exponential, _pareto, _normal)]
    return tuple(sorted(laws, key=lambda law: -law.log_density.sum()))


def rivals(laws: tuple[Law, ...]) -> tuple[str, ...]:
    """Return names of the laws that the data cannot tell from the first, the best one.

    The best must predict better by more than ``DECISIVE`` nats, also without the client that
    favours it most: one client alone decides nothing.
    """
    best, *others = laws
    ahead = {law.name: best.log_density - law.log_density for law in others}
    return tuple(name for name, by in ahead.items() if by.sum() - by.max() <= DECISIVE)


def _ends(scale: Floats, error: Floats) -> dict[str, Estimate]:
    """Return ``fastest`` and ``slowest`` of geometrically spaced scales.

    From the estimate of each client, [C], and its relative standard error, [C].
    """
    order = np.argsort(scale)
    place = np.linspace(0, 1, scale.size)
    design = np.stack([1 - place, place], axis=1)
    weight = 1 / error[order]
    covariance = np.linalg.inv(design.T @ (weight[:, None] ** 2 * design))
    logs = covariance @ design.T @ (weight**2 * np.log(scale[order]))
    # If the scales are not spaced equally the line is off by more than the estimates' own errors.
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
    """Return the log density of normal rows without their means, at the best common variance."""
    variance = squares.sum() / (size - 1).sum()
    common = (size - 1) * math.log(2 * math.pi * variance)
    return np.asarray(-0.5 * (common + np.log(size) + squares / variance))


def _from_logs(each: list[Floats]) -> Floats:
    """Return what a density of logarithms lacks to one of seconds, but for one measurement."""
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
    # Where it underflows z is far above n, and e^z Gamma(n, z) / z^n a smooth Laplace integral.
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
    # The least of n is above the shift by the n-th part of the mean excess: taken off.
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
