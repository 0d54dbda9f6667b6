"""Claims of a paper about a figure, judged by one rule.

The claims of a figure are a list in the code. Their wording, bounds, targets and number are fixed
before the runs. They form one family and are judged together: all intervals of a family hold at
once with 95 % (Bonferroni; a claim without data counts too). Bonferroni needs no assumption about
the dependence of the claims, and unlike Holm's rule, it gives an interval for each claim.

- ``confirmed``: the whole interval satisfies the claim. ``refuted``: the whole interval violates
  the claim.
- ``open``: the interval contains a bound, or excludes a bound only for nearly normal differences
  (see :func:`critical_value`), or fewer than three seeds ran, or all seeds gave the same value,
  which leaves the spread unknown, or only the beginning of the figure was run.
- ``not decidable here``: the interval contains a bound, and would need more than ``DECIDABLE``
  seeds to exclude it, if the mean and spread of at least three seeds remain as measured.
- ``compatible``: a test that could have rejected the claim did not, which confirms nothing.
- ``holds``, ``fails``: computed exactly, without randomness.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy.special
from numpy.typing import ArrayLike

from pause_jax.analysis import comparison

# Simultaneous confidence level of all intervals of a family.
CONFIDENCE = 0.95
# Share of seeds that counts as "always". Even 20 seeds that all agree confirm at most 0.79 in a
# family of three, so a higher share could never be confirmed.
SHARE = 0.75
# Number of seeds of an image experiment that a machine with two cores can run.
DECIDABLE = 20
# Fewer seeds do not determine the spread.
_PILOT = 3
_SHARES = 1000
# Standard deviations of the logarithm of lognormal differences, for which a verdict on a mean must
# also hold. The long-tailed differences of our experiments have the skewness of the larger one.
SKEWED = (0.5, 1.0)
_DRAWS = 200_000


class Claim(NamedTuple):
    """Statement about one number, and the value of this number in the runs.

    Attributes:
      text: wording of the claim, independent of the runs.
      kind: ``mean``, ``share``, ``test`` or ``exact``.
      found: mean, share of seeds, corrected p-value, or 1 or 0 for an exact claim.
      error: standard error of a mean, otherwise 0.
      seeds: number of seeds (or instances) behind ``found``.
      above: lower bound of the number if the claim is true, or the level of a test.
      below: upper bound of the number if the claim is true.
      unit: unit of the number.
      note: further evidence, in words.
    """

    text: str
    kind: str
    found: float
    error: float = 0.0
    seeds: int = 0
    above: float = -math.inf
    below: float = math.inf
    unit: str = ""
    note: str = ""


class Verdict(NamedTuple):
    """Verdict on a claim.

    Attributes:
      claim: wording of the claim.
      verdict: ``confirmed``, ``refuted``, ``open``, ``not decidable here``, ``compatible``,
        ``holds`` or ``fails``.
      evidence: number behind the verdict, with its interval.
    """

    claim: str
    verdict: str
    evidence: str

    def __str__(self) -> str:
        return f"{self.verdict:10} {self.claim}: {self.evidence}"


def larger(claim: str, one: ArrayLike, other: ArrayLike, unit: str, note: str = "") -> Claim:
    """Return the claim that ``one`` exceeds ``other`` in the mean, from pairs with equal seeds."""
    return mean(claim, np.asarray(one, float) - np.asarray(other, float), unit, above=0, note=note)


def alike(claim: str, one: ArrayLike, other: ArrayLike, unit: str, within: float) -> Claim:
    """Return the claim that the mean difference of pairs is within a margin."""
    difference = np.asarray(one, float) - np.asarray(other, float)
    note = f"margin {within:g}"
    return mean(claim, difference, unit, above=-within, below=within, note=note)


def mean(
    claim: str,
    values: ArrayLike,
    unit: str,
    *,
    above: float = -math.inf,
    below: float = math.inf,
    note: str = "",
) -> Claim:
    """Return the claim that the mean over seeds of ``values`` [S] lies between two bounds."""
    each = np.atleast_1d(np.asarray(values, float))
    missing = int(np.sum(~np.isfinite(each)))
    if missing:
        note = f"{missing} of {each.size} seeds never got there"
        return Claim(claim, "mean", math.nan, math.inf, each.size, above, below, unit, note)
    spread = each.std(ddof=1) if np.ptp(each) else 0.0  # exactly 0 for equal values
    error = spread / math.sqrt(each.size) if each.size > 1 else math.inf
    found = float(each.mean())
    return Claim(claim, "mean", found, float(error), each.size, above, below, unit, note)


def always(
    claim: str, held: ArrayLike, what: str, share: float = SHARE, unit: str = "seeds"
) -> Claim:
    """Return the claim that a property holds in more than a share of seeds, from a sample [S]."""
    each = np.asarray(held, bool)
    found = float(each.mean())
    return Claim(claim, "share", found, 0.0, each.size, above=share, unit=unit, note=what)


def undetected(claim: str, p: float, note: str, level: float = 1 - CONFIDENCE) -> Claim:
    """Return the claim that a test, whose p is corrected for its family, does not reject."""
    return Claim(claim, "test", p, above=level, note=note)


def exact(claim: str, holds: object, note: str) -> Claim:
    """Return a claim that is computed without randomness."""
    return Claim(claim, "exact", float(bool(holds)), note=note)


def from_record(record: Mapping[str, Any]) -> Claim:
    """Read a claim from a line of ``verdicts.jsonl``, where null marks a missing number."""
    absent = {"found": math.nan, "error": math.inf, "above": -math.inf, "below": math.inf}
    numbers = {name: record[name] for name in Claim._fields if name != "text"}
    for name, value in absent.items():
        numbers[name] = value if numbers[name] is None else numbers[name]
    return Claim(record["claim"], **numbers)


def judge(family: Sequence[Claim]) -> list[Verdict]:
    """Return the verdicts on all claims of a figure, judged together."""
    return [Verdict(claim.text, *_judged(claim, len(family))) for claim in family]


def interval(claim: Claim, together: int = 1) -> tuple[float, float]:
    """Return the interval of a mean (Student's t) or of a share (Clopper and Pearson).

    The intervals of all ``together`` claims of a family hold at once. An interval is infinite for
    fewer than two seeds or an infinite error.
    """
    tail = (1 - CONFIDENCE) / 2 / together
    if claim.seeds < 2 or not math.isfinite(claim.error):
        return -math.inf, math.inf
    if claim.kind == "share":
        held = round(claim.found * claim.seeds)
        missed = claim.seeds - held
        low = scipy.special.betaincinv(held, missed + 1, tail) if held else 0.0
        high = scipy.special.betainccinv(held + 1, missed, tail) if missed else 1.0
        return float(low), float(high)
    half = half_width(claim.error, claim.seeds, together)
    return claim.found - half, claim.found + half


def seeds_needed(claim: Claim, together: int = 1) -> float:
    """Return the number of seeds with which the interval would exclude the bounds.

    The mean or share and the spread are assumed to remain as measured. A mean has a power of
    80 %. Infinite if the number is too large, for example if a bound was hit exactly.
    """
    if claim.kind == "share":
        for seeds in range(claim.seeds, _SHARES):
            low, high = interval(claim._replace(seeds=seeds), together)
            if claim.above < low or high < claim.above:
                return seeds
        return math.inf
    spread = claim.error * math.sqrt(claim.seeds)
    distance = min(abs(claim.found - bound) for bound in (claim.above, claim.below))
    return comparison.seeds_needed(distance, spread, (1 - CONFIDENCE) / together, claim.seeds)


def half_width(error: float, seeds: int, together: int = 1) -> float:
    """Return half the width of Student's interval around a mean over seeds."""
    return float(-error * scipy.special.stdtrit(seeds - 1, (1 - CONFIDENCE) / 2 / together))


@functools.cache
def critical_value(seeds: int, together: int = 1) -> float:
    """Return the multiple of the standard error that also covers the mean of skewed differences.

    Student's interval is too narrow for skewed differences. In families of six intervals, each
    around the mean of five lognormal values (sigma 1), all six hold in only 60 % of families
    instead of 95 %. This multiple is the largest of Student's and the ones simulated for
    ``SKEWED``, and covers all of these distributions.
    """
    level = (1 - CONFIDENCE) / together
    found = [half_width(1.0, seeds, together)]
    for sigma in SKEWED:
        draws = np.random.default_rng(seeds).lognormal(0, sigma, size=(_DRAWS, seeds))
        error = draws.std(axis=1, ddof=1) / math.sqrt(seeds)
        ratio = np.abs(draws.mean(axis=1) - math.exp(sigma**2 / 2)) / error
        found.append(float(np.quantile(ratio, 1 - level)))
    return max(found)


def _side(claim: Claim, low: float, high: float) -> str:
    """Return ``confirmed``, ``refuted`` or ``open`` for an interval."""
    if claim.above < low and high < claim.below:
        return "confirmed"
    return "refuted" if high < claim.above or claim.below < low else "open"


def _judged(claim: Claim, together: int) -> tuple[str, str]:
    """Return the verdict and the evidence."""
    if claim.kind == "exact":
        return "holds" if claim.found else "fails", claim.note
    if claim.kind == "test":
        return "compatible" if claim.found >= claim.above else "refuted", claim.note
    low, high = interval(claim, together)
    if claim.kind == "mean" and (claim.seeds < _PILOT or not claim.error):
        return "open", _words(claim, low, high, together)
    verdict, words = _side(claim, low, high), _words(claim, low, high, together)
    if claim.kind == "mean" and verdict != "open":
        half = claim.error * critical_value(claim.seeds, together)
        if _side(claim, claim.found - half, claim.found + half) != verdict:
            return "open", f"{words}; {verdict} only if differences are nearly normal"
        return verdict, words
    if verdict == "open" and claim.seeds >= _PILOT and math.isfinite(claim.error):
        needed = seeds_needed(claim, together)
        words += (
            f"; needs about {needed:,} seeds" if needed < math.inf else "; needs too many seeds"
        )
        verdict = verdict if needed <= DECIDABLE else "not decidable here"
    return verdict, words


def _words(claim: Claim, low: float, high: float, together: int) -> str:
    note = f", {claim.note}" * bool(claim.note)
    if claim.kind == "share":
        held = round(claim.found * claim.seeds)
        bounds = f"a share of {low:.3f} to {high:.3f}" if claim.seeds > 1 else "one seed"
        counted = f"{claim.note} in {held} of {claim.seeds} {claim.unit}"
        return f"{counted}; {bounds}, claimed {claim.above:g}"
    if not claim.seeds:
        return f"not run{note}"
    if not math.isfinite(claim.found):
        return f"no mean in {claim.unit}{note}"
    if claim.seeds < 2:
        return f"{claim.found:+.3g} {claim.unit}, one seed{note}"
    half = (high - low) / 2
    of = f"95 % for {together} claims together" if together > 1 else "95 %"
    return f"{claim.found:+.3g} +- {half:.2g} {claim.unit} ({claim.seeds} seeds, {of}){note}"
