"""Figures of a comparison. Needs the extra ``plot`` (matplotlib)."""

from __future__ import annotations

import math
import pathlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from pause_jax.analysis import curves as curves_of
from pause_jax.analysis.curves import Curve, colour, dash

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["plot_accuracy", "plot_participation", "plot_regret", "plot_spent", "save_figures"]

# More bands than these hide each other; then a bar stands at each curve's end.
_FEW_BANDS = 6
# Panels below each other, and names in a column of a legend.
_PANELS, _NAMES = 12, 16


def plot_accuracy(result: xr.Dataset, axes: Axes, target: float | None = None) -> None:
    """Test accuracy (or loss, for regression) against simulated seconds, mean +- standard error."""
    accuracy = curves_of.classifies(result)
    curves = curves_of.progress(result)
    what = "test accuracy" if accuracy else "test loss"
    title = f"{what.capitalize()} against simulated time{_draw(curves, result, axes, errors=True)}"
    if target is not None and accuracy:
        axes.axhline(100 * target, color="0.6", lw=0.8, ls="--", zorder=0)
        axes.text(
            0.99,
            100 * target,
            f"target {100 * target:g} %",
            ha="right",
            va="top",
            fontsize="small",
            color="0.4",
            transform=axes.get_yaxis_transform(),
            bbox={"facecolor": "white", "alpha": 0.8, "lw": 0, "pad": 1},
        )
    if not accuracy:
        axes.set_yscale("log")
    axes.set(xlabel="simulated seconds", ylabel="test accuracy, %" if accuracy else what)
    axes.set_title(title, fontsize="medium")
    _legend(axes)


def plot_spent(result: xr.Dataset, axes: Axes) -> None:
    """Largest budget spent by any client against rounds, mean over seeds.

    Of curves that are the same the lower ones are wider, and the legend says so.
    """
    curves = curves_of.by_round(result.max_spent)
    units = sorted(set(result.epsilon_unit.values.tolist()) - {"none"})
    _draw(curves, result, axes, errors=False)
    axes.set(xlabel="round", ylabel=f"max spent epsilon, per {' or '.join(units) or '-'}")
    axes.set_title("Privacy budget spent by the busiest client, mean over seeds", fontsize="medium")
    if curves:
        _legend(axes)


def plot_participation(result: xr.Dataset, axes: Sequence[Axes]) -> None:
    """Rounds in which each client took part, mean over seeds: a panel a config, one scale."""
    counts = result.counts.where(result.counts >= 0).mean("seed")
    highest = max(float(counts.max()), 1.0)
    for i, (name, panel) in enumerate(zip(result.config.values, axes, strict=True)):
        values = counts.sel(config=name).values
        panel.bar(result.client.values, values, width=1.0, color=colour(i))
        panel.set_title(_plain(str(name)), fontsize="small", loc="left", pad=2)
        panel.set_ylim(0, 1.05 * highest)
        panel.margins(x=0)
    figure = axes[0].figure
    figure.suptitle("Who took part, mean over seeds; one scale in all panels", fontsize="medium")
    figure.supylabel("rounds in which a client took part", fontsize="medium")
    figure.supxlabel("client", fontsize="medium")


def plot_regret(curves: xr.DataArray, axes: Axes) -> None:
    """Cumulative regret [config, seed, round] on two logarithmic axes, mean over seeds."""
    n = curves["round"].values
    shown = np.unique(np.geomspace(1, n.size, 400).astype(int)) - 1
    every = {name: curve.at(shown) for name, curve in curves_of.by_round(curves).items()}
    positive = {
        name: curve._replace(mean=np.where(curve.mean > 0, curve.mean, np.nan))
        for name, curve in every.items()
    }
    _draw(positive, curves, axes, errors=False)
    axes.set(xscale="log", yscale="log", xlabel="round n", ylabel="cumulative regret R(n)")
    axes.set_title("Cumulative regret, mean over seeds", fontsize="medium")
    _legend(axes)


def _draw(
    curves: dict[str, Curve], result: xr.Dataset | xr.DataArray, axes: Axes, *, errors: bool
) -> str:
    """Draw curves, each in its config's style; return what a title says of their errors."""
    places = {str(name): place for place, name in enumerate(result.config.values)}
    same = {name: names for names in curves_of.hidden(curves) for name in names}
    banded = errors and any(np.isfinite(curve.error).any() for curve in curves.values())
    many = len(curves) > _FEW_BANDS
    for name, (x, y, error) in curves.items():
        style: dict[str, Any] = {"color": colour(places[name])}
        above = same.get(name, [name])
        under = len(above) - 1 - above.index(name)
        # A run with one evaluation has one point, which a line alone would not show.
        marker = "o" if np.isfinite(y).sum() < 5 else None
        strokes = dash(places[name])
        axes.plot(
            x,
            y,
            label=_plain(name if len(above) == 1 else f"{name} (as {_others(above, name)})"),
            lw=1.6 + 2.2 * min(under, 3),
            ls=(0, strokes) if strokes else "-",
            marker=marker,
            **style,
        )
        if banded and many:
            last = np.flatnonzero(np.isfinite(y))[-1:]
            axes.errorbar(x[last], y[last], error[last], capsize=2, lw=1.2, **style)
        elif banded:
            axes.fill_between(x, y - error, y + error, alpha=0.2, lw=0, **style)
    if not banded:
        return ""
    return f"\n{'bars at the ends' if many else 'bands'}: ± standard error over seeds"


def _plain(name: str) -> str:
    """A name as it is: matplotlib would read formulas between dollar signs."""
    return name.replace("$", r"\$")


def _others(names: list[str], name: str) -> str:
    first, *more = (each for each in names if each != name)
    return first + (f" and {len(more)} more" if more else "")


def _legend(axes: Axes) -> None:
    """Outside of the axes, so that it hides no curve."""
    columns = math.ceil(len(axes.get_legend_handles_labels()[1]) / _NAMES)
    axes.legend(
        loc="upper left",
        bbox_to_anchor=(1.01, 1.0),
        borderaxespad=0,
        fontsize="small",
        ncols=columns,
        frameon=False,
    )


def save_figures(
    result: xr.Dataset, folder: str | pathlib.Path, target: float | None = None
) -> list[pathlib.Path]:
    """Write the figures of a comparison as PNG files.

    Args:
      result: from ``sweep``.
      folder: where to; created if need be.
      target: accuracy that is marked; none for a regression.

    Returns:
      The files: ``accuracy_vs_seconds.png`` (of a regression ``loss_vs_seconds.png``) if
      something was learned, ``spent_budget_vs_rounds.png`` and ``participation_per_client.png``.
    """
    from matplotlib.figure import Figure

    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    number = result.sizes["config"]
    curves: dict[str, Callable[[Axes], None]] = {}
    if curves_of.learns(result):  # not the bandit alone
        what = "accuracy" if curves_of.classifies(result) else "loss"
        curves[f"{what}_vs_seconds"] = lambda axes: plot_accuracy(result, axes, target)
    curves["spent_budget_vs_rounds"] = lambda axes: plot_spent(result, axes)
    drawn = {}
    for name, draw in curves.items():
        drawn[name] = Figure(figsize=(8 + 2 * (number > _NAMES), 4.4), layout="constrained")
        draw(drawn[name].subplots())
    columns = math.ceil(number / _PANELS)
    rows = math.ceil(number / columns)
    figure = Figure(figsize=(max(7, 4 * columns), max(4.2, 1.1 * rows)), layout="constrained")
    grid: Any = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    panels = list(grid.T.flat)
    for empty in panels[number:]:
        empty.set_axis_off()
    plot_participation(result, panels[:number])
    drawn["participation_per_client"] = figure
    for name, figure in drawn.items():
        figure.savefig(folder / f"{name}.png", dpi=150)
    return [folder / f"{name}.png" for name in drawn]
