"""Verdicts of the gauntlet: differences from the yardstick, with simultaneous intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from experiments.common import claims


class Judgement(NamedTuple):
    """Judgement of a policy on a fleet at one time, in percentage points.

    Attributes:
      each: accuracy of each seed [S].
      ahead: mean lead over the yardstick in the same worlds.
      half: half the width of the interval of the lead.
      together: number of intervals, including this one, that hold at once with 95 %.
    """

    each: np.ndarray
    ahead: float
    half: float
    together: int

    @property
    def mean(self) -> float:
        """Mean accuracy over the seeds."""
        return float(self.each.mean())

    @property
    def mark(self) -> str:
        """Significance mark: ``+`` ahead of the yardstick, ``-`` behind, otherwise empty."""
        return "+" if self.ahead > self.half else "-" if self.ahead < -self.half else ""

    def __str__(self) -> str:
        error = self.each.std(ddof=1) / np.sqrt(self.each.size)
        return f"{self.mean:.1f}±{error:.1f}{self.mark or ' '}"


def judged(
    found: Mapping[str, pd.DataFrame], times: Sequence[str], yardstick: str
) -> dict[str, dict[str, dict[str, Judgement]]]:
    """Compare every policy with the yardstick, by time, fleet and policy.

    Args:
      found: table of each fleet, one row per run: policy, seed, and one column per time.
      times: names of the times.
      yardstick: policy to compare with, contained in every table.
    """
    together = len(times) * sum(table.policy.nunique() - 1 for table in found.values())
    result: dict[str, dict[str, dict[str, Judgement]]] = {}
    for when in times:
        result[when] = {}
        for fleet, table in found.items():
            by_policy = table.pivot(index="seed", columns="policy", values=when)
            own = by_policy[yardstick].to_numpy()
            result[when][fleet] = {
                str(name): _judgement(each.to_numpy(), own, together)
                for name, each in by_policy.items()
            }
    return result


def _judgement(each: np.ndarray, yardstick: np.ndarray, together: int) -> Judgement:
    ahead, half = _apart(each, yardstick, together)
    return Judgement(each, ahead, half, together)


def _apart(one: np.ndarray, other: np.ndarray, together: int) -> tuple[float, float]:
    """Return the mean difference of pairs, and half the width of its interval."""
    claim = claims.mean("", one - other, "points")
    low, high = claims.interval(claim, together)
    return claim.found, (high - low) / 2


def best_of(each: Mapping[str, Judgement]) -> list[str]:
    """Return the best policy of a fleet and all policies not significantly below it, best first.

    Any policy might have been the best, so the intervals are corrected for all pairs of policies,
    at all times and on all fleets.
    """
    order = sorted(each, key=lambda name: -each[name].mean)
    top = each[order[0]]
    pairs = top.together * len(order) // 2
    apart = {name: _apart(top.each, each[name].each, pairs) for name in order[1:]}
    return [order[0], *(name for name in order[1:] if apart[name][0] <= apart[name][1])]
