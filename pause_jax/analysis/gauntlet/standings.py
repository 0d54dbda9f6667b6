"""Policy standings on the board, with distribution-free confidence intervals.

A policy's lead over a reference is the median difference in accuracy between their runs in the same
world. Its confidence interval inverts the exact sign test, so the endpoints are the k-th smallest
and k-th largest differences. A policy's intervals hold jointly with 95 % confidence (Bonferroni).
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import scipy.stats
import xarray as xr

from pause_jax.analysis.comparison import listed
from pause_jax.analysis.gauntlet.fleets import FLEETS, VERSION, YARDSTICK
from pause_jax.base.spelling import nearest, shown
from pause_jax.base.struct import ConfigError

TIMES = ("early", "late")
LEVEL = 0.05


def standings(scores: xr.Dataset, policy: str, against: str = YARDSTICK) -> pd.DataFrame:
    """Compare a policy with the board's other policies on each fleet.

    Args:
      scores: data set [policy, fleet, seed] from ``gauntlet``.
      policy: policy name.
      against: name of the reference policy.

    Returns:
      One row per fleet. For each time, the columns are the mean accuracy in %, the policy's rank (1
      is best) and the number of ranked policies. The next columns are the median lead over
      ``against`` in points, the endpoints of its interval, and ``*`` if the interval excludes 0.
      The last columns are the means of the other metrics.

    Raises:
      ConfigError: if the data set does not contain ``policy`` or ``against``.
    """
    for name in (policy, against):
        if name not in scores.policy:
            suggestion = nearest(name, scores.policy.values)
            raise ConfigError(f"policy {shown(name)}: must be in the data set.{suggestion}")
    own = scores.sel(policy=policy)
    together = len(TIMES) * FLEETS
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
    """Return a confidence interval for the median of differences [..., S], infinite for small S.

    ``together`` is the number of intervals that hold jointly with at least 95 % confidence. Ties do
    not narrow an interval.
    """
    number = differences.shape[-1]
    beyond = scipy.stats.binom.cdf(np.arange(number), number, 0.5)
    ordered = np.sort(differences, axis=-1)
    # This is k in the module docstring, the largest k with 2 P(Binomial(S, 1/2) < k) <= level.
    cut = int(np.sum(2 * beyond <= LEVEL / together))
    if not 0 < cut <= number // 2:
        unknown = np.full(differences.shape[:-1], np.inf)
        return -unknown, unknown
    return ordered[..., cut - 1], ordered[..., number - cut]


def formatted(table: pd.DataFrame) -> pd.DataFrame:
    """Format a policy's :func:`standings` as text, for a terminal or a paper.

    For each time, the columns are the mean accuracy, rank, and median lead with its interval.
    ``*`` marks intervals that exclude 0. Cells are ``-`` if the policy cannot run on the fleet.
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


# Title, format and source columns of each output column. Titles and sources lack the time prefix.
_CELLS = (
    (", %", "{:.1f}", ("",)),
    (" rank", "{:.0f} of {:.0f}", ("_rank", "_of")),
    (" lead", "{:+.1f} [{:+.1f}, {:+.1f}]{}", ("_lead", "_low", "_high", "_mark")),
)


def conclusion(table: pd.DataFrame, policy: str, against: str = YARDSTICK) -> str:
    """Name the fleets on which a policy is ahead or behind, early and late in the runs."""
    sentences = []
    for time in TIMES:
        ran = table[table[time].notna()]
        ahead, behind = ran.index[ran[f"{time}_low"] > 0], ran.index[ran[f"{time}_high"] < 0]
        sentences.append(
            f"{time.capitalize()} in the runs, {policy} is ahead of {against} on "
            f"{_named(ahead, len(ran))} and behind on {_named(behind, len(ran))}."
        )
    return " ".join(sentences)


def _named(fleets: pd.Index, number: int) -> str:
    return f"{len(fleets)} of {number} fleets" + (f" ({listed(fleets)})" if len(fleets) else "")


def latex(text: pd.DataFrame, policy: str, setting: str, against: str = YARDSTICK) -> str:
    """Return formatted standings as a LaTeX table (booktabs), whose caption names the setting."""
    caption = (
        f"Gauntlet version {VERSION} ({setting}): accuracy of {policy}, its rank, and its median "
        f"lead over {against} in points, with intervals that hold jointly with 95\\,\\% confidence."
    ).replace("_", r"\_")
    rows = text.reset_index()
    return str(rows.to_latex(index=False, escape=True, caption=caption, column_format="lrrrrrr"))
