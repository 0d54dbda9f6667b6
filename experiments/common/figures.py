"""Drawing helpers of the experiments."""

from __future__ import annotations

import pathlib
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def band(axes: Axes, values: ArrayLike, label: str, x: ArrayLike | None = None) -> None:
    """Draw the mean of curves [n, steps], with a band from the 10 % to the 90 % quantile.

    The positions ``x`` [steps] are 1, 2, ... by default.
    """
    curves = np.asarray(values)
    steps = np.arange(1, curves.shape[1] + 1) if x is None else np.asarray(x)
    axes.plot(steps, curves.mean(axis=0), label=label, lw=1.2)
    low, high = np.quantile(curves, (0.1, 0.9), axis=0)
    axes.fill_between(steps, low, high, alpha=0.2, lw=0)


def save(figure: Figure, out: pathlib.Path, name: str) -> None:
    """Write ``out/figures/NAME.png``."""
    (out / "figures").mkdir(parents=True, exist_ok=True)
    figure.savefig(out / "figures" / f"{name}.png", dpi=100)
