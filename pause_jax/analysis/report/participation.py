"""Who took part: the picture of a report, and its table."""

from __future__ import annotations

import numpy as np
import xarray as xr

from pause_jax.analysis import metrics
from pause_jax.analysis import participation as taken
from pause_jax.analysis.report import pictures
from pause_jax.analysis.report.pictures import Picture
from pause_jax.analysis.report.tables import Table

_GROUPS = ("fastest third", "middle third", "slowest third")


def show(result: xr.Dataset) -> tuple[Picture, Table]:
    """A picture of every client, or groups of clients, and a table of three groups."""
    found = taken.participation(result)
    return pictures.participation(result, found), _table(result, found)


def _table(result: xr.Dataset, found: dict[str, taken.Participation]) -> Table:
    fairness, error = metrics.mean_and_error(metrics.participation_fairness(result))
    ordered = all(each.seconds is not None for each in found.values())
    rows = []
    for name, each in found.items():
        cells = [name]
        for group in np.array_split(np.arange(each.share.shape[1]), len(_GROUPS)):
            if each.seconds is not None:
                share, seconds = each.share[:, group], each.seconds[group]
                text = f"{100 * share.mean():.1f} % ({seconds.mean():.3g} s)" if share.size else "-"
                cells.append(text)
        even, sure = (float(x.sel(config=name)) for x in (fairness, error))
        cells.append(f"{even:.2f}" + (f" ± {sure:.2f}" if np.isfinite(sure) else ""))
        rows.append(tuple(cells))
    caption = "Fairness: Jain's index, 1 if all took part equally often."
    if ordered:
        caption = (
            "Rounds in which a client of the group took part, and the seconds that the latency "
            f"model expects of it. {caption}"
        )
    groups = _GROUPS if ordered else ()
    return Table("Participation by speed", ("config", *groups, "fairness"), tuple(rows), caption)
