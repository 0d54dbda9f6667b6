"""Figures that compare configs. Requires the ``plot`` extra (matplotlib)."""

from __future__ import annotations

import math
import pathlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from pause_jax.analysis import curves as curves_of
from pause_jax.analysis import participation as taken
from pause_jax.analysis.comparison import listed
from pause_jax.analysis.curves import Curve, styles

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["plot_accuracy", "plot_participation", "plot_regret", "plot_spent", "save_figures"]

# Maximum number of error bands. More bands would overlap too much, so use error bars instead.
_FEW_BANDS = 6
# Maximum number of names in a legend column.
_NAMES = 16
# Approximate number of markers per curve.
_MARKERS = 7
_FORMATS = ("png", "pdf", "svg")
# The last three settings keep text searchable and make SVG files reproducible byte for byte.
_SAVED: Any = {
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.titlelocation": "left",
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "pdf.fonttype": 42,
    "svg.fonttype": "none",
    "svg.hashsalt": "pause_jax",
}


def plot_accuracy(result: xr.Dataset, axes: Axes, target: float | None = None) -> None:
    """Plot test accuracy (or loss, for regression) against simulated seconds.

    Args:
      result: data set from ``sweep``. With several seeds, bands or bars show the standard error.
      axes: Matplotlib axes.
      target: accuracy in [0, 1] to mark with a horizontal line (ignored for regression).
    """
    accuracy = curves_of.classifies(result)
    curves = curves_of.progress(result)
    what = "test accuracy" if accuracy else "test loss"
    errors = _draw(curves, result, axes, errors=True)
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
    elif curves_of.starts_at_zero(curves):
        axes.set_ylim(bottom=0)
    axes.set(xlabel="simulated seconds", ylabel="test accuracy, %" if accuracy else what)
    axes.set_xlim(left=0)
    axes.set_title(f"{what.capitalize()} against simulated time{errors}")
    _label(axes)


def plot_spent(result: xr.Dataset, axes: Axes) -> None:
    """Plot the largest budget spent by any client (mean over seeds) against rounds.

    Identical curves get decreasing line widths, and their labels end in ``(same as NAME)``.
    """
    curves = curves_of.by_round(result.max_spent)
    units = sorted(set(result.epsilon_unit.values.tolist()) - {"none"})
    _draw(curves, result, axes, errors=False)
    if curves_of.starts_at_zero(curves):
        axes.set_ylim(bottom=0)
    axes.set(xlabel="round", ylabel=f"spent epsilon, per {' or '.join(units) or '-'}")
    axes.set_title("Largest privacy budget spent by any client (mean over seeds)")
    _label(axes)


def plot_participation(result: xr.Dataset, axes: Axes) -> None:
    """Plot the share of rounds in which each client took part, fastest client first.

    A flat curve means equal participation. A falling curve means that fast clients take part more
    often. If the latency model of any config is not available, clients are sorted by number.
    """
    found = taken.participation(result)
    errors = _draw(taken.by_client(found), result, axes, errors=True)
    axes.set_ylim(bottom=0)
    axes.set(**dict(zip(("xlabel", "ylabel"), taken.labels(found), strict=True)))
    axes.set_title(f"Participation per client{errors}")
    _label(axes)


def plot_regret(curves: xr.DataArray, axes: Axes, scale: str = "log") -> None:
    """Plot cumulative regret (mean over seeds) against rounds.

    Args:
      curves: cumulative regret R(n), [config, seed, round].
      axes: Matplotlib axes.
      scale: Matplotlib scale of both axes. With ``log``, means <= 0 are omitted.
    """
    shown = np.unique(np.geomspace(1, curves.sizes["round"], 400).astype(int)) - 1
    drawn = {name: curve.at(shown) for name, curve in curves_of.by_round(curves).items()}
    if scale == "log":
        drawn = {
            name: curve._replace(mean=np.where(curve.mean > 0, curve.mean, np.nan))
            for name, curve in drawn.items()
            if (curve.mean > 0).any()
        }
    _draw(drawn, curves, axes, errors=False)
    axes.set(xscale=scale, yscale=scale, xlabel="round n", ylabel="cumulative regret R(n)")
    axes.set_title("Cumulative regret (mean over seeds)")
    _label(axes)


def _draw(
    curves: dict[str, Curve], result: xr.Dataset | xr.DataArray, axes: Axes, *, errors: bool
) -> str:
    """Draw the curves, and return a title suffix that explains the error bands or bars."""
    looks = styles(result.config.values)
    same = {name: names for names in curves_of.hidden(curves) for name in names}
    banded = errors and any(np.isfinite(curve.error).any() for curve in curves.values())
    many = len(curves) > _FEW_BANDS
    for place, (name, (x, y, error)) in enumerate(curves.items()):
        look = looks[name]
        style: dict[str, Any] = {"color": look.colour}
        above = same.get(name, [name])
        under = len(above) - 1 - above.index(name)
        label = name
        if len(above) > 1:
            label += f" (same as {listed([each for each in above if each != name], 1)})"
        step = math.ceil(x.size / _MARKERS)
        axes.plot(
            x,
            y,
            label=label.replace("$", r"\$"),  # a bare $ starts a formula
            lw=1.2 + 1.8 * min(under, 3),
            ls=(0, look.dash) if look.dash else "-",
            marker=look.marker,
            ms=4 + 1.5 * min(under, 3),
            markevery=(place % step, step),
            **style,
        )
        if banded and many:
            last = np.flatnonzero(np.isfinite(y))[-1:]
            axes.errorbar(x[last], y[last], error[last], capsize=2, lw=1.2, **style)
        elif banded:
            axes.fill_between(x, y - error, y + error, alpha=0.2, lw=0, **style)
    axes.margins(x=0.015)
    if not banded:
        return ""
    return f" ({'bars at the ends' if many else 'bands'}: ± standard error over seeds)"


def _label(axes: Axes) -> None:
    """Add a legend outside the axes, in descending order of the curves' last values."""
    handles: Any
    handles, names = axes.get_legend_handles_labels()
    if not handles:
        return
    ends = [line.get_ydata()[np.isfinite(line.get_ydata())][-1] for line in handles]
    order = np.argsort(-np.asarray(ends), kind="stable")
    axes.legend(
        [handles[i] for i in order],
        [names[i] for i in order],
        loc="upper left",
        bbox_to_anchor=(1.01, 1.0),
        borderaxespad=0,
        fontsize="small",
        handlelength=3.2,
        ncols=math.ceil(len(names) / _NAMES),
        frameon=False,
    )


def save_figures(
    result: xr.Dataset, folder: str | pathlib.Path, target: float | None = None
) -> list[pathlib.Path]:
    """Write PNG, PDF and SVG figures that compare configs.

    Each config has the same colour, marker and dashes in all figures (``analysis.curves.styles``).

    Args:
      result: data set from ``sweep``.
      folder: output folder, created if missing.
      target: accuracy to mark with a horizontal line (ignored for regression).

    Returns:
      Paths of the files. The figures are ``participation_per_client``, ``accuracy_vs_seconds`` if
      a model is trained (``loss_vs_seconds`` for regression), and ``spent_budget_vs_rounds`` if
      any budget is limited.
    """
    import matplotlib
    from matplotlib.figure import Figure

    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    drawn: dict[str, Callable[[Axes], None]] = {}
    if curves_of.learns(result):
        what = "accuracy" if curves_of.classifies(result) else "loss"
        drawn[f"{what}_vs_seconds"] = lambda axes: plot_accuracy(result, axes, target)
    if curves_of.by_round(result.max_spent):
        drawn["spent_budget_vs_rounds"] = lambda axes: plot_spent(result, axes)
    drawn["participation_per_client"] = lambda axes: plot_participation(result, axes)
    files = []
    wide = 5.8 + 1.4 * (result.sizes["config"] > _NAMES)
    with matplotlib.rc_context(_SAVED):
        for name, draw in drawn.items():
            figure = Figure(figsize=(wide, 3.1), layout="constrained")
            draw(figure.subplots())
            figure.draw_without_rendering()
            figure.set_layout_engine("none")  # compute the layout once for all formats
            for form in _FORMATS:
                files.append(folder / f"{name}.{form}")
                date = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}.get(form)
                figure.savefig(files[-1], dpi=220, metadata=date)
    return files
