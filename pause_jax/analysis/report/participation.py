"""Who took part: clients from the fastest to the slowest, by the configs' own latency models."""

from __future__ import annotations

import contextlib
import itertools
from typing import Any, NamedTuple

import altair as alt
import numpy as np
import xarray as xr
from numpy.typing import NDArray

from pause_jax.analysis import metrics
from pause_jax.analysis.report.pictures import Picture, spec_of, styles
from pause_jax.analysis.report.tables import Table
from pause_jax.base.struct import ConfigError
from pause_jax.config import config_file
from pause_jax.world.latency.base import Work

Floats = NDArray[np.float64]

# Bars of one config at most.
_BARS = 60
# Of a panel, in pixels.
_HEIGHT = 90
_GROUPS = ("fastest third", "middle third", "slowest third")


class _Taken(NamedTuple):
    """Of one config, clients in the order of the picture, each [K]."""

    share: Floats
    seconds: Floats | None


def show(result: xr.Dataset) -> tuple[Picture, Table]:
    """A picture of every client, or groups of clients, and a table of three groups."""
    taken = {str(name): _taken(result.sel(config=name)) for name in result.config.values}
    ordered = all(each.seconds is not None for each in taken.values())
    return _picture(result, taken, ordered), _table(result, taken, ordered)


def _taken(one: xr.Dataset) -> _Taken:
    """Shares of the played rounds in which each client took part, the mean over seeds."""
    counts = one.counts.where(one.counts >= 0) / one.num_played.where(one.num_played > 0)
    share = counts.mean("seed").values.astype(float)
    share = share[np.isfinite(share)]
    seconds = _expected_seconds(one, share.size)
    if seconds is None:
        return _Taken(share, None)
    order = np.argsort(seconds, kind="stable")
    return _Taken(share[order], seconds[order])


def _expected_seconds(one: xr.Dataset, num_clients: int) -> Floats | None:
    """What the config's latency model expects of each client, [K]; None where it is not at hand: a
    file of measurements that is elsewhere, a custom class.
    """
    size = 4.0 * float(one.num_parameters)
    samples = one.data_size.mean("seed").values[:num_clients]
    with contextlib.suppress(ConfigError):
        model = config_file.loads(str(one.config_toml.item())).latency.loaded()
        model, _ = model.given(Work(size, size, samples))
        return np.asarray(model.expected_latency(num_clients), np.float64)
    return None


def _picture(result: xr.Dataset, taken: dict[str, _Taken], ordered: bool) -> Picture:
    rows: list[dict[str, Any]] = []
    for name, each in taken.items():
        number = each.share.size
        edges = np.unique(np.linspace(0, number, min(number, _BARS) + 1).astype(int))
        for low, high in itertools.pairwise(edges):
            share = 100 * float(each.share[low:high].mean())
            row = {"config": name, "from": int(low), "to": int(high), "share": round(share, 2)}
            if ordered and each.seconds is not None:
                row["seconds"] = float(f"{each.seconds[low:high].mean():.4g}")
            rows.append(row)
    known = styles(result)
    where = "clients, fastest to slowest" if ordered else "clients by number"
    tooltip = [
        alt.Tooltip("config:N"),
        alt.Tooltip("from:Q", title="from client"),
        alt.Tooltip("to:Q", title="to"),
        alt.Tooltip("share:Q", title="% of rounds", format=".3~g"),
    ]
    if ordered:
        tooltip.append(alt.Tooltip("seconds:Q", title="expected seconds", format=".3~g"))
    highest = max(row["share"] for row in rows)
    bars = (
        alt.Chart(alt.Data(values=rows))
        .mark_rect(aria=False)
        .encode(
            x=alt.X("from:Q", title=None, axis=alt.Axis(tickCount=4, format="d", grid=False)),
            x2="to:Q",
            y=alt.Y(
                "share:Q",
                title="% of rounds",
                scale=alt.Scale(domain=[0, max(highest, 1)]),
                axis=alt.Axis(tickCount=3),
            ),
            y2=alt.value(_HEIGHT),
            color=alt.Color(
                "config:N",
                scale=alt.Scale(domain=list(known), range=[style[0] for style in known.values()]),
                legend=None,
            ),
            tooltip=tooltip,
        )
        .properties(width=210, height=_HEIGHT)
    )
    header = alt.Header(title=None, labelAnchor="start", labelFontSize=12, labelLimit=210)
    chart = bars.facet(
        facet=alt.Facet("config:N", sort=list(known), header=header), columns=3, spacing=18
    )
    title = "Who took part"
    words = f"Horizontally {where}; all panels have the same vertical scale."
    if not ordered:
        words += " Their expected speeds are not known here."
    if any(each.share.size > _BARS for each in taken.values()):
        words += " A bar is the mean of neighbours."
    description = f"{title}: share of the rounds in which each client took part. {words}"
    return Picture(title, words, description, spec_of(chart, description))


def _table(result: xr.Dataset, taken: dict[str, _Taken], ordered: bool) -> Table:
    fairness, error = metrics.mean_and_error(metrics.participation_fairness(result))
    rows = []
    for name, each in taken.items():
        cells = [name]
        for group in np.array_split(np.arange(each.share.size), len(_GROUPS)) if ordered else ():
            text = "-"
            if group.size and each.seconds is not None:
                share, seconds = (float(x[group].mean()) for x in (each.share, each.seconds))
                text = f"{100 * share:.1f} % ({seconds:.3g} s)"
            cells.append(text)
        even, sure = (float(x.sel(config=name)) for x in (fairness, error))
        cells.append(f"{even:.2f}" + (f" ± {sure:.2f}" if np.isfinite(sure) else ""))
        rows.append(tuple(cells))
    groups = _GROUPS if ordered else ()
    caption = "Fairness: Jain's index, 1 if all took part equally often."
    if ordered:
        caption = (
            "Rounds in which a client of the group took part, and the seconds that the latency "
            f"model expects of it. {caption}"
        )
    return Table("Participation by speed", ("config", *groups, "fairness"), tuple(rows), caption)
