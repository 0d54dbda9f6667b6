"""What a fleet's measured latencies look like: their law, and whether they stay as they are.

The bandit policies assume that a client's latencies are independent and alike from round to round;
what speaks against it in the measurements is said here, with a model to simulate with.
"""

from __future__ import annotations

import math
import pathlib
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from pause_jax.latency import Latency, LogNormal, Pareto, ShiftedExponential, SpacedLatency
from pause_jax.latency.measured import Measured, parse
from pause_jax.struct import ConfigError

Floats = NDArray[np.float64]
# A client with fewer measurements says nothing about order.
FEWEST = 8
# At which a test speaks: one honest fleet in a thousand is suspected.
LEVEL = 1e-3


class Estimate(NamedTuple):
    """A number and its standard error."""

    value: float
    error: float


class Law(NamedTuple):
    """A law of all clients, each with a scale of its own.

    Attributes:
      name: ``lognormal``, ``shifted_exponential``, ``pareto`` or ``normal``.
      log_likelihood: at the best parameters, less what fitting them gains by chance: 1 for a
        parameter (Akaike), 2 for a client's least seconds, which the data fit twice as closely.
      parameters: fields of the latency model of that name, with standard errors.
      scale: float [C], of each client in the order of its number, seconds: the median of a
        lognormal, the least of a shifted exponential and a Pareto law, the mean of a normal one.
    """

    name: str
    log_likelihood: float
    parameters: dict[str, Estimate]
    scale: Floats

    def model(self, min_latency: float) -> Latency | None:
        """The latency model, its clients from the fastest to the slowest; None for a normal law,
        for which the library has no model with such scales.
        """
        models: tuple[type[SpacedLatency], ...] = (LogNormal, ShiftedExponential, Pareto)
        cls = next((model for model in models if model.name == self.name), None)
        values = {name: float(np.float32(each.value)) for name, each in self.parameters.items()}
        return None if cls is None else cls(min_latency=min_latency, **values)


class Test(NamedTuple):
    """A test of one assumption.

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


class Fleet(NamedTuple):
    """What was seen.

    Attributes:
      measured: measurements of each client, int [C].
      mean: mean seconds of each, float [C].
      ordered: whether the file says when they were taken; else its order counts.
      laws: best first.
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
    def stationary(self) -> bool:
        """Whether nothing speaks against independent rounds of one law."""
        return not (self.drift.speaks_against or self.correlation.speaks_against)


def read(path: str) -> Fleet:
    """What a file of measurements shows: see :class:`pause_jax.latency.Traces` for its form.

    Raises:
      ConfigError: if it cannot be read, or is too small to say anything.
    """
    try:
        content = pathlib.Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"fleet = {path!r}: cannot be read ({error.strerror}).") from None
    return fit(parse(content, path, "fleet"))


def fit(data: Measured) -> Fleet:
    """What measurements show.

    Raises:
      ConfigError: for one client alone, or clients with one measurement each.
    """
    number = np.bincount(data.client)
    if number.size < 2:
        raise ConfigError("fleet: has one client; there is nobody to choose among.")
    if number.max() < 2:
        raise ConfigError(
            "fleet: has one measurement of each client, so nothing can be said of their spread. "
            "Measure each a few times."
        )
    each = [data.seconds[data.client == client] for client in range(number.size)]
    laws = [law(each) for law in (_lognormal, _shifted_exponential, _pareto, _normal)]
    mean = np.asarray([row.mean() for row in each])
    halves = [row[len(row) // 2 :].mean() / row[: len(row) // 2].mean()
              for row in each if len(row) >= FEWEST]  # fmt: skip
    return Fleet(
        measured=number,
        mean=mean,
        ordered=data.when is not None,
        laws=tuple(sorted(laws, key=lambda law: -law.log_likelihood)),
        drift=_drift(each),
        correlation=_correlation(each),
        together=_together(data, each),
        change=(min(halves, default=math.nan), max(halves, default=math.nan)),
    )


def _ends(scale: Floats, error: Floats) -> dict[str, Estimate]:
    """``fastest`` and ``slowest`` of geometrically spaced scales, from those of each client.

    Args:
      scale: [C], estimates.
      error: [C], relative standard error of each.
    """
    order = np.argsort(scale)
    place = np.linspace(0, 1, scale.size)
    design, weight = np.stack([1 - place, place], axis=1), 1 / error[order]
    covariance = np.linalg.inv(design.T @ (weight[:, None] ** 2 * design))
    logs = covariance @ design.T @ (weight**2 * np.log(scale[order]))
    # If the scales are not spaced equally the line is off by more than the estimates' own errors.
    residual = (np.log(scale[order]) - design @ logs) * weight
    off = max(1.0, float(residual @ residual) / max(scale.size - 2, 1))
    ends = np.exp(logs), np.sqrt(off * np.diag(covariance))
    return {
        name: Estimate(float(ends[0][i]), float(ends[0][i] * ends[1][i]))
        for i, name in enumerate(("fastest", "slowest"))
    }


def _sizes(each: list[Floats]) -> Floats:
    return np.asarray([len(row) for row in each], np.float64)


def _lognormal(each: list[Floats]) -> Law:
    logs = [np.log(row) for row in each]
    size, total = _sizes(each), sum(map(len, each))
    means = np.asarray([row.mean() for row in logs])
    square = sum(float(((row - mean) ** 2).sum()) for row, mean in zip(logs, means, strict=True))
    free = max(total - len(each), 1)
    sigma, at_best = math.sqrt(square / free), math.sqrt(max(square, 1e-300) / total)
    likelihood = -total * (math.log(at_best) + 0.5 * math.log(2 * math.pi) + 0.5)
    likelihood -= sum(float(row.sum()) for row in logs)
    spread = max(sigma, 1e-9) / np.sqrt(size)
    return Law(
        "lognormal",
        likelihood - len(each) - 1,
        {**_ends(np.exp(means), spread), "sigma": Estimate(sigma, sigma / math.sqrt(2 * free))},
        np.exp(means),
    )


def _shifted_exponential(each: list[Floats]) -> Law:
    size = _sizes(each)
    least, mean = (np.asarray([f(row) for row in each]) for f in (np.min, np.mean))
    total, many = size.sum(), np.maximum(size, 2)
    # The least of n is above the shift by the n-th part of the mean excess: taken off.
    shift = np.maximum((many * least - mean) / (many - 1), least * 0.5)
    above = float(size @ (mean / shift - 1)) / total
    at_best = max(float(size @ (mean / least - 1)) / total, 1e-12)
    likelihood = -float(size @ np.log(at_best * least)) - total
    relative = max(above, 1e-9) / size
    return Law(
        "shifted_exponential",
        likelihood - 2 * len(each) - 1,
        {
            **_ends(shift, relative),
            "straggling": Estimate(above, above / math.sqrt(max(total - len(each), 1))),
        },
        shift,
    )


def _pareto(each: list[Floats]) -> Law:
    size, least = _sizes(each), np.asarray([row.min() for row in each])
    excess = sum(float(np.log(row / low).sum()) for row, low in zip(each, least, strict=True))
    total, free = size.sum(), max(size.sum() - len(each) - 1, 1.0)
    shape, at_best = free / max(excess, 1e-12), total / max(excess, 1e-12)
    likelihood = total * math.log(at_best) - (1 + at_best) * excess - size @ np.log(least)
    scale = least * np.exp(-1 / (size * shape))
    return Law(
        "pareto",
        float(likelihood) - 2 * len(each) - 1,
        {**_ends(scale, 1 / (size * shape)), "shape": Estimate(shape, shape / math.sqrt(free))},
        scale,
    )


def _normal(each: list[Floats]) -> Law:
    size, mean = _sizes(each), np.asarray([row.mean() for row in each])
    square = sum(float(((row - m) ** 2).sum()) for row, m in zip(each, mean, strict=True))
    total, free = size.sum(), max(size.sum() - len(each), 1.0)
    std, at_best = math.sqrt(square / free), math.sqrt(max(square, 1e-300) / total)
    likelihood = -total * (math.log(at_best) + 0.5 * math.log(2 * math.pi) + 0.5)
    return Law("normal", float(likelihood), {"std": Estimate(std, std / math.sqrt(2 * free))}, mean)


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
    top = bottom = expected = 0.0
    for row in rows:
        off = row - row.mean()
        top, bottom = top + float(off[1:] @ off[:-1]), bottom + float(off @ off)
        expected -= float(off @ off) / len(row)  # of independent ranks, about their own mean
    figure, total = (top - expected) / bottom, sum(map(len, rows))
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
