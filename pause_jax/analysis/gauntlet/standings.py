"""Standings of a policy on the board, with intervals that hold for any distribution.

The lead of a policy over the yardstick is its median difference in the same worlds. The interval of
a median inverts the exact sign test: its ends are the k-th smallest and k-th largest difference.
The intervals of a policy on all fleets and at both times hold jointly with 95 % (Bonferroni).
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import scipy.stats
import xarray as xr

from pause_jax.analysis.comparison import listed
from pause_jax.analysis.gauntlet.fleets import YARDSTICK

TIMES = ("early", "late")
LEVEL = 0.05


def standings(scores: xr.Dataset, policy: str, against: str = YARDSTICK) -> pd.DataFrame:
    """Compare a policy with the others, fleet by fleet.

    Args:
      scores: readings [policy, fleet, seed] from ``gauntlet``.
      policy: name of the policy.
      against: policy that it is compared with by pairs.

    Returns:
      One row per fleet. For each time: mean accuracy in %, rank among all policies by mean
      accuracy (1 is best), number of ranked policies, median lead over ``against`` in points, the
      ends of its interval, and a mark: ``*`` if the interval excludes 0. Then the means of
      the other readings.
    """
    own = scores.sel(policy=policy)
    together = len(TIMES) * scores.sizes["fleet"]
    columns: dict[str, object] = {}
    for time in TIMES:
        means = scores[time].mean("seed")
        lead = (own[time] - scores[time].sel(policy=against)).values
        low, high = interval(lead, together)
        columns |= {
            f"{time}": means.sel(policy=policy).values,
            f"{time}_rank": 1 + (means > means.sel(policy=policy)).sum("policy").values,
            f"{time}_of": means.notnull().sum("policy").values,
            f"{time}_lead": np.median(lead, axis=-1),
            f"{time}_low": low,
            f"{time}_high": high,
            f"{time}_mark": np.where((low > 0) | (high < 0), "*", ""),
        }
    for reading in ("worst_tenth", "seconds_to_target", "spent"):
        columns[reading] = own[reading].mean("seed", skipna=False).values
    return pd.DataFrame(columns, index=pd.Index(scores.fleet.values, name="fleet"))


def interval(differences: np.ndarray, together: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Return the interval of the median of differences [..., S], with infinite ends for too few.

    All ``together`` intervals hold jointly with 95 %. Ties do not narrow an interval.
    """
    number = differences.shape[-1]
    beyond = scipy.stats.binom.cdf(np.arange(number), number, 0.5)
    ordered = np.sort(differences, axis=-1)
    # As many differences are cut off on each side as have a probability of at most half the level.
    cut = int(np.sum(2 * beyond <= LEVEL / together))
    if not 0 < cut <= number // 2:
        unknown = np.full(differences.shape[:-1], np.inf)
        return -unknown, unknown
    return ordered[..., cut - 1], ordered[..., number - cut]


def formatted(table: pd.DataFrame) -> pd.DataFrame:
    """Format the standings of a policy as text, for a terminal or a paper.

    Args:
      table: data frame from :func:`standings`.

    Returns:
      One row per fleet with the mean accuracy, the rank, and the median lead with its interval, for
      each time. ``*`` marks intervals that exclude 0. Fleets on which the policy cannot run have
      the cells ``-``.
    """
    rows = {
        fleet: {
            f"{time}{title}": form.format(*(row[f"{time}{key}"] for key in keys))
            if np.isfinite(row[time])
            else "-"
            for time in TIMES
            for title, form, keys in _CELLS
        }
        for fleet, row in table.iterrows()
    }
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("fleet")


# Title, format and columns of each cell.
_CELLS = (
    (", %", "{:.1f}", ("",)),
    (" rank", "{:.0f} of {:.0f}", ("_rank", "_of")),
    (" lead", "{:+.1f} [{:+.1f}, {:+.1f}]{}", ("_lead", "_low", "_high", "_mark")),
)


def conclusion(table: pd.DataFrame, policy: str, against: str = YARDSTICK) -> str:
    """Say in one sentence per time where a policy is ahead of another one, and where behind."""
    sentences = []
    for time in TIMES:
        ran = table[table[time].notna()]
        ahead, behind = ran.index[ran[f"{time}_low"] > 0], ran.index[ran[f"{time}_high"] < 0]
        sentences.append(
            f"{time.capitalize()}, {policy} is ahead of {against} on {_named(ahead)} and behind on "
            f"{_named(behind)} of {len(ran)} fleets."
        )
    return " ".join(sentences)


def _named(fleets: pd.Index) -> str:
    return f"{len(fleets)} ({listed(fleets)})" if len(fleets) else "none"
