"""Learning figures in the papers' style, with standard errors over two or more seeds.

Accuracy or loss, a mean over 10 rounds, is drawn against simulated seconds, and leakage against
rounds or seconds.
"""

from __future__ import annotations

import math
import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from experiments.common import figures

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# The papers' averaging window, in rounds.
WINDOW = 10
_COLOURS = (
    *("#4477AA", "#EE6677", "#228833", "#CCBB44", "#66CCEE", "#AA3377", "#777777", "#DDAA77"),
    "#000000",
)


class Curves:
    """Curves of an experiment, from the table of :func:`experiments.common.curves.play_all`."""

    def __init__(self, table: pd.DataFrame):
        self.table = table
        self.labels = list(dict.fromkeys(table.label))

    def seeds(self, label: str) -> list[int]:
        """Return the seeds of a curve."""
        return sorted(set(self.table.seed[self.table.label == label]))

    def run(self, label: str, seed: int) -> pd.DataFrame:
        """Return one run as a table with one row per round."""
        chosen = (self.table.label == label) & (self.table.seed == seed)
        return self.table[chosen].reset_index(drop=True)

    def smoothed(self, label: str, seed: int, quantity: str) -> pd.DataFrame:
        """Return the evaluated rounds of a run; ``value`` is a mean over ``WINDOW`` rounds."""
        run = self.run(label, seed)
        value = run[quantity].rolling(WINDOW, min_periods=1).mean()
        return run.assign(value=value)[run[quantity].notna()]

    def best(
        self, label: str, quantity: str = "test_accuracy", *, least: bool = False
    ) -> list[float]:
        """Return the largest (or least) smoothed value of each seed."""
        extreme = "min" if least else "max"
        found = [self.smoothed(label, seed, quantity).value for seed in self.seeds(label)]
        return [float(getattr(values, extreme)()) for values in found]

    def last(self, label: str, quantity: str = "test_accuracy") -> list[float]:
        """Return the last smoothed value of each seed."""
        return [
            float(self.smoothed(label, seed, quantity).value.iloc[-1]) for seed in self.seeds(label)
        ]

    def at_seconds(
        self, label: str, seconds: float, quantity: str = "test_accuracy"
    ) -> list[float]:
        """Return the smoothed value of each seed at a simulated second."""
        runs = [self.smoothed(label, seed, quantity) for seed in self.seeds(label)]
        return [float(step(run.clock, run.value, [seconds])[0]) for run in runs]

    def seconds_to(self, label: str, target: float) -> list[float]:
        """Return the simulated seconds until each seed's smoothed accuracy reaches a target.

        The value is infinite for a seed that never reaches the target.
        """
        runs = [self.smoothed(label, seed, "test_accuracy") for seed in self.seeds(label)]
        reached = [run.clock[run.value >= target] for run in runs]
        return [float(clock.min()) if len(clock) else math.inf for clock in reached]

    def summary(self, quantity: str = "test_accuracy") -> list[str]:
        """Return a header, and one line per curve with its best and last smoothed values."""
        loss = quantity == "test_loss"
        words = ("least loss", "last loss") if loss else ("best %", "last %")
        lines = [
            f"{'policy':22} {'seeds':>5} {'rounds':>6} {'seconds':>8}"
            + "".join(f" {word:>16}" for word in words)
        ]
        for label in self.labels:
            runs = [self.run(label, seed) for seed in self.seeds(label)]
            values = (self.best(label, quantity, least=loss), self.last(label, quantity))
            lines.append(
                f"{label:22} {len(runs):5d} {np.mean([len(run) for run in runs]):6.0f} "
                f"{np.mean([run.clock.iloc[-1] for run in runs]):8.1f}"
                + "".join(f" {mean_and_error(each, 1 if loss else 100):>16}" for each in values)
            )
        return lines


def draw_curves(curves: Curves, axes: Axes, quantity: str, title: str = "") -> None:
    """Draw smoothed accuracy in percent, or loss, against simulated seconds."""
    percent = 100 if quantity == "test_accuracy" else 1
    for i, label in enumerate(curves.labels):
        runs = [curves.smoothed(label, seed, quantity) for seed in curves.seeds(label)]
        _draw(axes, label, i, [(run.clock, percent * run.value) for run in runs])
    word = "test accuracy, %" if percent == 100 else "test loss"
    axes.set(xlabel="simulated seconds", ylabel=f"{word} (mean over {WINDOW} rounds)", title=title)
    axes.legend(fontsize="small")


def draw_leakage(curves: Curves, axes: Axes, against: str, unit: str) -> None:
    """Draw the largest epsilon spent by any client against ``round`` or ``clock``."""
    for i, label in enumerate(curves.labels):
        runs = [curves.run(label, seed) for seed in curves.seeds(label)]
        if np.isfinite(runs[0].max_spent).all():
            _draw(axes, label, i, [(run[against], run.max_spent) for run in runs])
    axes.set(
        xlabel="round" if against == "round" else "simulated seconds",
        ylabel=f"largest spent epsilon of a client, per {unit}",
    )
    axes.legend(fontsize="small")


def save(draw: Sequence[object], out: pathlib.Path, name: str) -> None:
    """Write a figure with panels side by side, each drawn by a function of its axes."""
    figure = Figure(figsize=(6.0 * len(draw), 4.4), layout="constrained")
    for panel, axes in zip(draw, figure.subplots(1, len(draw), squeeze=False)[0], strict=True):
        assert callable(panel)
        panel(axes)
    figures.save(figure, out, name)


def _draw(axes: Axes, label: str, i: int, runs: Sequence[tuple[pd.Series, pd.Series]]) -> None:
    """Draw the mean of the runs with standard errors, on a grid that all runs cover."""
    colour = _COLOURS[i % len(_COLOURS)]
    if len(runs) == 1:
        (x, y), error = runs[0], None
    else:
        start, end = max(x.min() for x, _ in runs), min(x.max() for x, _ in runs)
        x = pd.Series(np.linspace(start, end, 300))
        rows = np.stack([step(at, values, x) for at, values in runs])
        y, error = rows.mean(axis=0), rows.std(axis=0, ddof=1) / np.sqrt(len(rows))
    axes.plot(x, y, label=f"{label} ({len(runs)})", color=colour, lw=1.5)
    if error is not None:
        axes.fill_between(x, y - error, y + error, color=colour, alpha=0.2, lw=0)


def step(at: pd.Series, values: pd.Series, x: object) -> np.ndarray:
    """Return the last value at or before each x, or the first value if x precedes all."""
    place = np.searchsorted(np.asarray(at), np.asarray(x), side="right") - 1
    return np.asarray(values)[np.clip(place, 0, None)]


def mean_and_error(values: Sequence[float], times: float = 1) -> str:
    """Format the mean and, for two or more values, its standard error."""
    mean = times * np.mean(values)
    digits = 1 if times == 100 else 3
    if len(values) == 1:
        return f"{mean:.{digits}f}"
    error = times * np.std(values, ddof=1) / np.sqrt(len(values))
    return f"{mean:.{digits}f} +- {error:.{digits}f}"
