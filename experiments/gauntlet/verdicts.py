"""Verdicts of the gauntlet: signs of the differences from the yardstick in the same worlds.

A mark claims that a policy is ahead of the yardstick (or behind it) with a probability above one
half in a world of this fleet. The sign test is exact for any distribution of the differences.
Bonferroni over all cells limits the probability of any false mark to 5 %. The mean lead is shown
without an interval.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
import scipy.stats

# Largest probability of any false mark among all cells.
LEVEL = 0.05


class Judgement(NamedTuple):
    """Judgement of a policy on a fleet at one time, in percentage points.

    Attributes:
      each: accuracy of each seed [S].
      lead: lead over the yardstick in the world of each seed [S].
      together: number of cells, including this one, that are tested together.
    """

    each: np.ndarray
    lead: np.ndarray
    together: int

    @property
    def mean(self) -> float:
        """Mean accuracy over the seeds."""
        return float(self.each.mean())

    @property
    def ahead(self) -> float:
        """Mean lead over the yardstick."""
        return float(self.lead.mean())

    @property
    def mark(self) -> str:
        """Significance mark: ``+`` ahead of the yardstick, ``-`` behind, otherwise empty."""
        above, below = (usually_positive(sign * self.lead, self.together) for sign in (1, -1))
        return "+" if above else "-" if below else ""

    def __str__(self) -> str:
        error = self.each.std(ddof=1) / np.sqrt(self.each.size)
        return f"{self.mean:.1f}±{error:.1f}{self.mark or ' '}"


def usually_positive(lead: np.ndarray, together: int = 1) -> np.ndarray:
    """Return whether significantly more than half of the leads [..., S] are positive.

    This is one side of the exact two-sided sign test, corrected for ``together`` tests. A tie
    counts like a negative lead.
    """
    worlds = lead.shape[-1]
    at_least_as_many = scipy.stats.binom.sf((lead > 0).sum(axis=-1) - 1, worlds, 0.5)
    return 2 * at_least_as_many <= LEVEL / together


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
                str(name): Judgement(each.to_numpy(), each.to_numpy() - own, together)
                for name, each in by_policy.items()
            }
    return result


def best_of(each: Mapping[str, Judgement]) -> list[str]:
    """Return the policy with the best mean, and all policies that beat it in at least one world.

    The best comes first, and the others by their mean. This describes the worlds that ran.
    """
    order = sorted(each, key=lambda name: -each[name].mean)
    top = each[order[0]].each
    return [order[0], *(name for name in order[1:] if (each[name].each > top).any())]
