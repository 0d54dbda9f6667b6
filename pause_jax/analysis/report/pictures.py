"""Report charts as Vega-Lite specifications, with a limited number of points."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import altair as alt
import numpy as np
import xarray as xr
from numpy.typing import NDArray

from pause_jax.analysis.comparison import listed, quoted
from pause_jax.analysis.curves import (
    Curve,
    Style,
    by_round,
    classifies,
    hidden,
    learns,
    over_time,
    progress,
    starts_at_zero,
    styles,
)
from pause_jax.analysis.participation import Participation, by_client
from pause_jax.analysis.participation import labels as labels_of
from pause_jax.analysis.regret import cumulative

# Maximum number of points per curve, and approximate number of markers.
_POINTS, _MARKERS = 150, 7
# Number of curves above which error bands are fainter, because they overlap.
_FEW = 6


class Picture(NamedTuple):
    """Chart with its title, caption and alternative text."""

    title: str
    caption: str  # explanation of lines and bands
    description: str  # alternative text for screen readers
    spec: dict[str, Any]  # Vega-Lite


def against_time(result: xr.Dataset, target: float) -> Picture | None:
    """Plot test accuracy (or loss) against simulated time. Return None if no value is finite."""
    if not learns(result):
        return None
    curves = progress(result)
    accuracy = classifies(result)
    positive = all(np.nanmin(curve.mean) > 0 for curve in curves.values())
    what = "test accuracy" if accuracy else "test loss"
    return _picture(
        f"{what.capitalize()} against simulated time",
        "Each point is an evaluation, plotted at its mean simulated time over seeds.",
        curves,
        result,
        ("simulated seconds", f"{what}, %" if accuracy else what),
        rule=(f"target {100 * target:g} %", 100 * target) if accuracy else None,
        log="log" if not accuracy and positive else "",
        numbers=("round or server step", result.eval_round.values),
    )


def budget(result: xr.Dataset) -> Picture | None:
    """Plot the largest budget spent by any client. Return None if all budgets are unlimited."""
    curves = by_round(result.max_spent)
    if not curves:
        return None
    units = sorted(set(result.epsilon_unit.values.tolist()) - {"none"})
    words = "Largest budget spent by any client (sum over its releases)."
    if len(units) > 1:
        words += " The configs have different units, so their curves are not comparable."
    if endless := [quoted(str(name)) for name in result.config.values if name not in curves]:
        words += f" Not shown because the budget is unlimited: {listed(endless, 20)}."
    labels = "round", f"epsilon spent, per {' or '.join(units)}"
    return _picture("Privacy budget spent", words, curves, result, labels)


def regret(result: xr.Dataset) -> Picture | None:
    """Plot cumulative regret against rounds. Return None if regret was not tracked."""
    if not np.isfinite(result.regret).any():
        return None
    words = "The genie (regret 0) has the same history but knows the true mean speeds."
    curves = by_round(cumulative(result))
    labels = "round", "cumulative regret"  # symlog handles negative and large values
    return _picture("Cumulative regret", words, curves, result, labels, log="symlog")


def versions(result: xr.Dataset) -> Picture:
    """Plot server steps against simulated seconds."""
    words = "Each server step (or round) creates a new model version."
    curves = over_time(result["round"].broadcast_like(result.clock), result.clock)
    labels = "simulated seconds", "server steps"
    return _picture("Server steps against simulated time", words, curves, result, labels)


def in_flight(result: xr.Dataset) -> Picture:
    """Plot the number of clients in flight against simulated seconds."""
    words = "Number of clients that are still training at each server step."
    curves = _overlapping(over_time(result.in_flight, result.clock), 0)
    labels = "simulated seconds", "clients in flight"
    return _picture("Clients in flight", words, curves, result, labels)


def staleness(result: xr.Dataset) -> Picture:
    """Plot the distribution of the answers' staleness."""
    each = result.staleness.stack(answer=("round", "slot")).transpose("config", "seed", "answer")
    most = int(each.max())
    # The staleness of an empty slot is -1.
    number = np.apply_along_axis(np.bincount, 2, each.values + 1, minlength=most + 2)[..., 1:]
    share = 100 * number / np.maximum(number.sum(axis=2, keepdims=True), 1)
    axes = {"config": result.config, "seed": result.seed, "round": np.arange(most + 1)}
    curves = _overlapping(by_round(xr.DataArray(share, axes)), 1)
    words = "Staleness of an answer: number of server steps while the client was training."
    labels = "staleness, server steps", "% of answers"
    return _picture("Staleness of answers", words, curves, result, labels)


def _overlapping(curves: dict[str, Curve], first: int) -> dict[str, Curve]:
    """Return curves that are positive at any index >= ``first``, or all curves if none is."""
    some = {name: curve for name, curve in curves.items() if np.any(curve.mean[first:] > 0)}
    return some or curves


def participation(result: xr.Dataset, found: dict[str, Participation]) -> Picture:
    """Plot the share of rounds in which each client took part."""
    words = "Flat curve: equal participation. Falling curve: faster clients take part more often."
    if any(each.seconds is None for each in found.values()):
        words = "Clients are sorted by number, because their expected latencies are unknown."
    return _picture("Participation per client", words, by_client(found), result, labels_of(found))


def _picture(
    title: str,
    words: str,
    curves: dict[str, Curve],
    result: xr.Dataset,
    labels: tuple[str, str],
    *,
    rule: tuple[str, float] | None = None,
    log: Any = "",
    numbers: tuple[str, NDArray[np.int_]] | None = None,
) -> Picture:
    """Build a line chart with axis ``labels``.

    ``rule`` contains the label and height of a horizontal line. ``log`` names a logarithmic
    vertical scale, or is "" for a linear scale. ``numbers`` contains the title and the values of
    an extra tooltip entry.
    """
    known = {name: style for name, style in styles(result.config.values).items() if name in curves}
    places = {name: place for place, name in enumerate(known)}
    rows = []
    for name, curve in curves.items():
        each = _rows(name, curve, numbers)
        step = math.ceil(len(each) / _MARKERS)
        for row in each[places[name] % step :: step]:
            row["mark"] = 1
        rows += each
    banded = any("low" in row for row in rows)
    more = [alt.Tooltip("number:Q", title=numbers[0])] if numbers else []
    # A logarithmic grid would be too dense, and symlog has no ticks below a thousand by default.
    powers = [0, *(10**n for n in range(12))]
    places_of_ticks: Any = {"values": powers} if log == "symlog" else {"tickCount": 7}
    scale = alt.Scale(type=log) if log else alt.Scale(zero=starts_at_zero(curves))
    ticks = alt.Axis(tickCount=7, grid=True)
    x = alt.X("x:Q", title=labels[0], scale=alt.Scale(zero=True, nice=False), axis=ticks)
    y = alt.Y("y:Q", title=labels[1], scale=scale, axis=alt.Axis(**places_of_ticks, grid=not log))
    layers = _layers(known, labels, x, y, banded=banded, more=more)
    if rule:
        layers += _rule(*rule)
    chart = alt.layer(*layers, data=alt.Data(values=rows)).properties(width="container", height=330)
    if banded:
        words += f" Bands: ± standard error over {result.sizes['seed']} seeds."
    elif result.sizes["seed"] == 1:
        words += " No standard error, because there is only one seed."
    for names in hidden(curves):
        words += f" {listed([*map(quoted, names)], 20)} have identical curves."
    ends = "; ".join(
        f"{name} {curve.mean[np.isfinite(curve.mean)][-1]:.4g}"
        for name, curve in list(curves.items())[:20]
    )
    description = f"{title}: {labels[1]} against {labels[0]}. Last values: {ends}."
    whole = (
        chart.properties(description=description, background="white")
        .configure_view(stroke=None)
        .configure_axis(
            labelFontSize=12, titleFontSize=12, titleFontWeight="normal", titlePadding=8
        )
        .configure_legend(labelFontSize=12)
    )
    return Picture(title, words, description, whole.to_dict())


def _layers(
    known: dict[str, Style],
    labels: tuple[str, str],
    x: alt.X,
    y: alt.Y,
    *,
    banded: bool,
    more: list[alt.Tooltip],
) -> list[Any]:
    """Build the bands, lines, markers and invisible hover points of all curves."""
    names = list(known)
    legend = _legend(names)
    colours = alt.Scale(domain=names, range=[style.colour for style in known.values()])
    shapes = alt.Scale(domain=names, range=[style.shape for style in known.values()])
    picked = alt.selection_point(fields=["config"], bind="legend")
    base = alt.Chart().encode(
        x=x,
        color=alt.Color("config:N", scale=colours, legend=legend),
    )
    faint = alt.condition(picked, alt.value(1.0), alt.value(0.12))
    line = base.mark_line(aria=False, strokeWidth=2).encode(y=y, opacity=faint)
    if any(style.dash for style in known.values()):
        dashes = alt.Scale(domain=names, range=[style.dash or (1, 0) for style in known.values()])
        line = line.encode(strokeDash=alt.StrokeDash("config:N", scale=dashes, legend=legend))
    marks = base.transform_filter("datum.mark == 1").mark_point(filled=True, aria=False, size=55)
    shape = alt.Shape("config:N", scale=shapes, legend=legend)
    tooltip = [
        alt.Tooltip("config:N"),
        alt.Tooltip("x:Q", title=labels[0], format=",.5~g"),
        alt.Tooltip("y:Q", title=labels[1], format=",.4~g"),
        *more,
    ]
    bands = []
    if banded:
        light = 0.18 if len(names) <= _FEW else 0.07
        band = base.mark_area(aria=False).encode(
            y=alt.Y("low:Q", title=labels[1]),
            y2="high:Q",
            opacity=alt.condition(picked, alt.value(light), alt.value(0.0)),
        )
        bands = [band]
        tooltip.append(alt.Tooltip("error:Q", title="± standard error", format=".2~g"))
    seen = base.mark_point(filled=True, aria=False, size=60).encode(
        y=y, opacity=alt.value(0.0), tooltip=tooltip
    )
    return [
        *bands,
        line,
        marks.encode(y=y, opacity=faint, shape=shape),
        seen.add_params(picked),
    ]


def _rows(
    name: str, curve: Curve, numbers: tuple[str, NDArray[np.int_]] | None
) -> list[dict[str, Any]]:
    there = np.flatnonzero(np.isfinite(curve.x) & np.isfinite(curve.mean))
    shown = np.linspace(0, there.size - 1, min(there.size, _POINTS))
    places = there[np.round(shown).astype(int)]
    rows = []
    for place, x, y, error in zip(places, *curve.at(places), strict=True):
        row = {"config": name, "x": _short(x), "y": _short(y)}
        if numbers:
            row["number"] = int(numbers[1][place])
        if np.isfinite(error):
            row |= {"low": _short(y - error), "high": _short(y + error), "error": _short(error)}
        rows.append(row)
    return rows


def _legend(names: list[str]) -> alt.Legend:
    """Build a legend whose number of columns adapts to the chart's width."""
    longest = 30 + 6 * max(map(len, names))
    return alt.Legend(
        title=None,
        orient="bottom",
        columns=alt.ExprRef(f"clamp(floor(width / {longest}), 1, {len(names)})"),
        labelLimit=alt.ExprRef("max(100, width - 20)"),
        symbolOpacity=1,
        symbolSize=70,
    )


def _rule(label: str, value: float) -> list[Any]:
    level = alt.Chart(alt.Data(values=[{"y": value, "label": label}])).encode(y="y:Q")
    place: dict[str, Any] = {"align": "right", "dy": 10, "dx": -4, "fontSize": 12, "aria": False}
    texts = (
        # A white halo keeps the label readable over curves.
        level.mark_text(color="white", stroke="white", strokeWidth=4, **place),
        level.mark_text(color="#666666", **place),
    )
    line = level.mark_rule(color="#777777", strokeDash=[4, 3], aria=False)
    return [line, *(text.encode(x=alt.value("width"), text="label:N") for text in texts)]


def _short(value: float) -> float:
    """Round to five significant digits, to shorten the Vega-Lite specification."""
    return float(f"{value:.5g}")
