"""Two-sided prediction tests of whether one recorded run is a draw from ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
from scipy import stats

Name = TypeVar("Name")

HEADING = f"{'authors':>8} {'ours +- sd of a run':>20} {'p rank':>7} {'p t':>7} {'Holm':>6}"


class Tested(NamedTuple):
    """Recorded value, compared with n of our runs.

    Attributes:
      theirs: recorded value of one run.
      mean: mean of our runs.
      sd: standard deviation of our runs.
      rank: p of the rank of ``theirs`` among all n + 1 values; at least 2 / (n + 1).
      t: p of one more draw from a normal distribution fitted to our runs.
      corrected: ``t`` after Holm's correction for all values tested together.
    """

    theirs: float
    mean: float
    sd: float
    rank: float
    t: float
    corrected: float

    def __str__(self) -> str:
        ours = f"{self.mean:.2f} +- {self.sd:5.2f}"
        p = f"{self.rank:7.3f} {self.t:7.4f} {self.corrected:6.3f}"
        return f"{self.theirs:8.2f} {ours:>20} {p}"


def rank_p(theirs: float, ours: np.ndarray) -> float:
    """Return the two-sided p of a draw's rank among n others; ties count against neither side."""
    side = min(np.sum(ours <= theirs), np.sum(ours >= theirs))
    return min(1.0, 2 * (1 + float(side)) / (1 + ours.size))


def t_p(theirs: float, ours: np.ndarray) -> float:
    """Return the two-sided p of one more draw from a normal distribution fitted to ``ours`` [n]."""
    spread = ours.std(ddof=1) * np.sqrt(1 + 1 / ours.size)
    return float(2 * stats.t.sf(abs(theirs - ours.mean()) / spread, ours.size - 1))


def holm(p: Sequence[float]) -> np.ndarray:
    """Correct p-values [k] to bound the probability of any false rejection (Holm 1979)."""
    order = np.argsort(p)
    factors = np.arange(len(p), 0, -1)
    corrected = np.empty(len(p))
    corrected[order] = np.minimum(1, np.maximum.accumulate(np.asarray(p)[order] * factors))
    return corrected


def tests(figures: Mapping[Name, tuple[float, np.ndarray]]) -> dict[Name, Tested]:
    """Test each value, name -> (theirs, ours [n]), with one correction for all of them."""
    ts = [t_p(theirs, ours) for theirs, ours in figures.values()]
    return {
        name: Tested(theirs, ours.mean(), ours.std(ddof=1), rank_p(theirs, ours), t, corrected)
        for (name, (theirs, ours)), t, corrected in zip(figures.items(), ts, holm(ts), strict=True)
    }
