"""What a fleet's measured latencies look like: their law, and whether they stay as they are.

The bandit policies assume that a client's latencies are independent and identically distributed;
what speaks against it in the measurements is said here, with a model to simulate with.
"""

from __future__ import annotations

import math
import pathlib
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from pause_jax.analysis.laws import Floats, Law, fitted, rivals
from pause_jax.base.struct import ConfigError
from pause_jax.world.latency.measured import Measured, parse

# A client with fewer measurements says nothing about order.
FEWEST = 8
# Significance level: one honest fleet in a thousand is suspected.
LEVEL = 1e-3


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

    @property
    def verdict(self) -> str:
        """The same in words."""
        return f"{'' if self.speaks_against else 'not '}significant at {LEVEL:g}"


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


def read(path: str) -> Fleet:
    """What a file of measurements shows: see :class:`pause_jax.world.latency.Traces` for its form.

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
    top, bottom = sum(float(x[1:] @ x[:-1]) for x in off), sum(float(x @ x) for x in off)
    expected = -sum(float(x @ x) / len(x) for x in off)  # of independent ranks, about their mean
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
