"""What a paper says of a figure, tested on runs: confirmed, refuted or open."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import scipy.stats
from numpy.typing import ArrayLike

# Of the intervals by which a claim is judged.
CONFIDENCE = 0.95


class Verdict(NamedTuple):
    """What became of a claim.

    Attributes:
      claim: in words.
      verdict: ``confirmed``, ``refuted`` or ``open``.
      evidence: the number with its error.
    """

    claim: str
    verdict: str
    evidence: str

    def __str__(self) -> str:
        return f"{self.verdict:9} {self.claim}: {self.evidence}"


def larger(claim: str, one: ArrayLike, other: ArrayLike, unit: str, by: float = 0.0) -> Verdict:
    """Whether ``one`` exceeds ``other`` by more than ``by``, from pairs with equal seeds.

    Confirmed or refuted where the interval of the mean difference lies on one side of ``by``; a
    single pair decides nothing.
    """
    difference = _pairs(one, other)
    mean, half = mean_and_half(difference)
    verdict = "confirmed" if mean - half > by else "refuted" if mean + half < by else "open"
    return Verdict(claim, verdict, _words(difference, mean, half, unit))


def alike(claim: str, one: ArrayLike, other: ArrayLike, unit: str, within: float) -> Verdict:
    """Whether the mean difference of pairs is within a margin: confirmed where its whole interval
    is, refuted where none of it is.
    """
    difference = _pairs(one, other)
    mean, half = mean_and_half(difference)
    if abs(mean) + half <= within:
        verdict = "confirmed"
    elif abs(mean) - half > within:
        verdict = "refuted"
    else:
        verdict = "open"
    evidence = f"{_words(difference, mean, half, unit)}, margin {within:g}"
    return Verdict(claim, verdict, evidence)


def always(claim: str, held: ArrayLike, what: str) -> Verdict:
    """Whether something held in every seed."""
    seeds = np.asarray(held, bool)
    verdict = "open" if seeds.size < 2 else "confirmed" if seeds.all() else "refuted"
    return Verdict(claim, verdict, f"{what} in {seeds.sum()} of {seeds.size} seeds")


def _pairs(one: ArrayLike, other: ArrayLike) -> np.ndarray:
    return np.atleast_1d(np.asarray(one, float) - np.asarray(other, float))


def mean_and_half(difference: np.ndarray) -> tuple[float, float]:
    """Mean, and half of its interval by Student's t; infinite for one value."""
    count = difference.size
    if count < 2 or not np.isfinite(difference).all():
        return float(difference.mean()) if count < 2 else math.nan, math.inf
    error = difference.std(ddof=1) / math.sqrt(count)
    return float(difference.mean()), float(
        error * scipy.stats.t.ppf((1 + CONFIDENCE) / 2, count - 1)
    )


def _words(difference: np.ndarray, mean: float, half: float, unit: str) -> str:
    if difference.size < 2:
        return f"difference {mean:+.3g} {unit}, one seed"
    if not math.isfinite(mean):
        never = np.sum(~np.isfinite(difference))
        return f"no difference in {unit}: {never} of {difference.size} seeds never got there"
    return f"difference {mean:+.3g} +- {half:.2g} {unit} ({difference.size} seeds, 95 % interval)"
