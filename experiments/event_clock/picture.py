"""Accuracy against seconds, one panel per fleet, with bands over seeds."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping

import numpy as np
import xarray as xr

from experiments.common import figures

# Number of times per curve.
POINTS = 60


def accuracy_at(result: xr.Dataset, seconds: float) -> xr.DataArray:
    """Return accuracy in % [config, seed] at the last evaluation by then, or else at the first."""
    by_then = (result.eval_clock <= seconds).sum("eval_round")
    return 100 * result.test_accuracy.isel(eval_round=(by_then - 1).clip(0))


def draw(fleets: Mapping[str, tuple[xr.Dataset, float]], out: pathlib.Path) -> None:
    """Draw ``out/figures/accuracy.png`` from each fleet's results and seconds per run."""
    import matplotlib.pyplot as plt

    number = len(fleets)
    figure, panels = plt.subplots(1, number, figsize=(1.5 + 3.9 * number, 3.6), squeeze=False)
    for axes, (fleet, (result, seconds)) in zip(panels[0], fleets.items(), strict=True):
        times = np.linspace(0, seconds, POINTS + 1)[1:]
        at = xr.concat([accuracy_at(result, t) for t in times], "time")
        for name in result.config.values:
            each = at.sel(config=name).transpose("seed", "time").values
            figures.band(axes, each, str(name), times)
        axes.set(title=fleet, xlabel="simulated seconds", ylim=(0, 100))
    panels[0][0].set_ylabel("test accuracy, %")
    handles = panels[0][0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside right center", frameon=False, fontsize="small")
    figure.set_layout_engine("constrained")
    figures.save(figure, out, "accuracy")
    plt.close(figure)
