"""Figures of a comparison. Needs the extra ``plot`` (matplotlib)."""

from __future__ import annotations

import functools
import pathlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from pause_jax.analysis import metrics

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Paul Tol's "bright" scheme and more: distinct for colour-blind readers.
_COLOURS = ("#4477AA", "#EE6677", "#228833", "#CCBB44", "#66CCEE", "#AA3377", "#777777", "#DDAA77")
_DASHES = ("-", "--", "-.", ":")


def _style(i: int) -> dict[str, Any]:
    return {"color": _COLOURS[i % len(_COLOURS)], "ls": _DASHES[i // len(_COLOURS) % len(_DASHES)]}


def plot_accuracy(result: xr.Dataset, axes: Axes, target: float | None = None) -> None:
    """Test accuracy (or loss, for regression) against simulated seconds, mean +- standard error."""
    regression = not bool(np.isfinite(result.test_accuracy).any())
    values = result.test_loss if regression else 100 * result.test_accuracy
    mean, error = metrics.mean_and_error(values)
    seconds = result.eval_clock.mean("seed", skipna=False)  # as far as all seeds go
    for i, name in enumerate(result.config.values):
        x, y, e = (a.sel(config=name).values for a in (seconds, mean, error))
        # A run with one evaluation has one point, which a line alone would not show.
        marker = "o" if np.isfinite(y).sum() < 5 else None
        axes.plot(x, y, label=str(name), lw=1.6, marker=marker, **_style(i))
        axes.fill_between(x, y - e, y + e, color=_style(i)["color"], alpha=0.2, lw=0)
    if target is not None and not regression:
        axes.axhline(100 * target, color="0.6", lw=0.8, zorder=0)
    if regression:
        axes.set_yscale("log")
    axes.set(xlabel="simulated seconds", ylabel="test loss" if regression else "test accuracy, %")
    axes.legend(fontsize="small")


def plot_spent(result: xr.Dataset, axes: Axes) -> None:
    """Largest budget spent by any client against rounds, mean over seeds."""
    mean = result.max_spent.mean("seed", skipna=False)  # as far as all seeds go
    for i, name in enumerate(result.config.values):
        y = mean.sel(config=name).values
        if np.isfinite(y).any():
            axes.plot(result["round"].values, y, label=str(name), lw=1.6, **_style(i))
    units = sorted(set(result.epsilon_unit.values.tolist()) - {"none"})
    axes.set(xlabel="round", ylabel=f"max spent epsilon, per {' or '.join(units) or '-'}")
    if axes.lines:
        axes.legend(fontsize="small")


def plot_participation(result: xr.Dataset, axes: Sequence[Axes]) -> None:
    """Rounds in which each client took part, mean over seeds: one panel a config."""
    counts = result.counts.where(result.counts >= 0).mean("seed")
    for i, (name, panel) in enumerate(zip(result.config.values, axes, strict=True)):
        panel.bar(
            result.client.values,
            counts.sel(config=name).values,
            width=1.0,
            color=_style(i)["color"],
        )
        panel.set_title(str(name), fontsize="small", loc="left", pad=2)
        panel.margins(x=0)
    axes[0].figure.supylabel("rounds in which a client took part", fontsize="medium")
    axes[-1].set_xlabel("client")


def plot_regret(curves: xr.DataArray, axes: Axes) -> None:
    """Cumulative regret against rounds on two logarithmic axes, mean over seeds."""
    n = curves["round"].values
    shown = np.unique(np.geomspace(1, n.size, 400).astype(int)) - 1
    for i, name in enumerate(curves.config.values):
        mean = curves.sel(config=name).mean("seed", skipna=False).values[shown]
        axes.plot(n[shown], np.where(mean > 0, mean, np.nan), label=str(name), lw=1.4, **_style(i))
    axes.set(xscale="log", yscale="log", xlabel="round n", ylabel="cumulative regret R(n)")
    axes.legend(fontsize="x-small", ncols=2)


def save_figures(
    result: xr.Dataset, folder: str | pathlib.Path, target: float
) -> list[pathlib.Path]:
    """Write the figures of a comparison as PNG files.

    Args:
      result: from ``sweep``.
      folder: where to; created if need be.
      target: accuracy that is marked.

    Returns:
      The files.
    """
    from matplotlib.figure import Figure

    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    draw: Callable[..., None]
    for name, draw in (
        ("accuracy_vs_seconds", functools.partial(plot_accuracy, target=target)),
        ("spent_budget_vs_rounds", plot_spent),
        ("participation_per_client", plot_participation),
    ):
        if name == "accuracy_vs_seconds" and not np.isfinite(result.test_loss).any():
            continue  # bandit only: nothing was learned
        panels = result.sizes["config"] if draw is plot_participation else 1
        figure = Figure(figsize=(7, max(4.2, 1.1 * panels)), layout="constrained")
        axes: Any = figure.subplots(panels, sharex=True, squeeze=False)[:, 0]
        draw(result, axes if draw is plot_participation else axes[0])
        files.append(folder / f"{name}.png")
        figure.savefig(files[-1], dpi=150)
    return files
