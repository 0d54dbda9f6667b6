"""Mean curves and standard errors per config, and plot styles for figures and reports."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from pause_jax.analysis import metrics

Floats = NDArray[np.float64]

# Colours that colour-blind readers can distinguish, with a contrast of at least 3:1.
# In dark mode, each colour in DARK replaces the colour at the same index in LIGHT.
LIGHT_PAGE, DARK_PAGE = "#FFFFFF", "#0F1419"
LIGHT = ("#4459CA", "#F8636C", "#09803F", "#B68B07", "#289CE0", "#802E8C", "#6D5C6E", "#8E2B00")
DARK = ("#7190EF", "#FF6671", "#39B781", "#EFC655", "#8BD5FF", "#C890C5", "#B1C5BF", "#DB944C")
# Matplotlib markers and their SVG paths in a box from -1 to 1.
MARKERS = (
    ("o", "M.85,0A.85,.85,0,1,1,-.85,0A.85,.85,0,1,1,.85,0Z"),
    ("s", "M-.75,-.75L.75,-.75L.75,.75L-.75,.75Z"),
    ("^", "M0,-.95L.95,.75L-.95,.75Z"),
    ("D", "M0,-1L1,0L0,1L-1,0Z"),
    ("v", "M0,.95L.95,-.75L-.95,-.75Z"),
    ("P", "M-.33,-1L.33,-1L.33,-.33L1,-.33L1,.33L.33,.33L.33,1L-.33,1L-.33,.33L-1,.33L-1,-.33"
          "L-.33,-.33Z"),
    ("<", "M-.95,0L.75,-.95L.75,.95Z"),
    (">", "M.95,0L-.75,-.95L-.75,.95Z"),
)  # fmt: skip
# Dash and gap lengths, in line widths (reports: pixels). An empty tuple means a solid line.
DASHES = ((), (5, 2), (1, 1.5), (6, 2, 1, 2), (2, 3), (9, 2), (4, 1, 1, 1, 1, 1), (1, 4))
# Config names with a fixed style in all figures.
KNOWN = ("pause", "sa_pause", "random", "fastest", "all", "all, no privacy", "bsfl", "genie")


class Curve(NamedTuple):
    """Mean curve over seeds, as three arrays [n]."""

    x: Floats
    mean: Floats
    error: Floats  # standard error of ``mean``, or NaN if it is undefined (e.g. for one seed)

    def at(self, places: NDArray[np.intp]) -> Curve:
        """Return the curve's points at the indices ``places``."""
        return Curve(self.x[places], self.mean[places], self.error[places])


def learns(result: xr.Dataset) -> bool:
    """Return whether the result contains a finite test loss or test accuracy."""
    return bool(np.isfinite(result.test_loss).any()) or classifies(result)


def classifies(result: xr.Dataset) -> bool:
    """Return whether the result contains a finite test accuracy."""
    return bool(np.isfinite(result.test_accuracy).any())


def progress(result: xr.Dataset) -> dict[str, Curve]:
    """Return mean curves of test accuracy (in %) or test loss against mean simulated time."""
    values = 100 * result.test_accuracy if classifies(result) else result.test_loss
    return over_time(values, result.eval_clock)


def over_time(values: xr.DataArray, clock: xr.DataArray) -> dict[str, Curve]:
    """Return mean curves against mean simulated time, up to the end of each config's shortest run.

    ``values`` and ``clock`` have shape [config, seed, n]. Configs without finite means are skipped.
    """
    mean, error = metrics.mean_and_error(values)
    seconds = clock.mean("seed", skipna=False)
    return _by_config(seconds, mean.where(seconds.notnull()), error)


def by_round(values: xr.DataArray) -> dict[str, Curve]:
    """Return each config's mean curve against rounds, up to the end of its shortest run.

    ``values`` has shape [config, seed, round]. Configs without finite means are skipped.
    """
    mean, error = metrics.mean_and_error(values)
    rounds = values["round"].broadcast_like(mean)
    return _by_config(rounds, mean.where(values.notnull().all("seed")), error)


def hidden(curves: dict[str, Curve]) -> list[list[str]]:
    """Return groups of configs whose identical curves hide each other in a figure."""
    groups: dict[bytes, list[str]] = {}
    for name, curve in curves.items():
        groups.setdefault(np.stack([curve.x, curve.mean]).tobytes(), []).append(name)
    return [names for names in groups.values() if len(names) > 1]


def _by_config(*each: xr.DataArray) -> dict[str, Curve]:
    names = each[0].config.values
    columns = [values.transpose("config", ...).values.astype(float) for values in each]
    return {
        str(name): Curve(*parts)
        for name, *parts in zip(names, *columns, strict=True)
        if np.isfinite(parts[1]).any()
    }


def starts_at_zero(curves: dict[str, Curve]) -> bool:
    """Return whether the y-axis should start at 0, given the range of the curves' means."""
    means = [curve.mean[np.isfinite(curve.mean)] for curve in curves.values()]
    values = np.concatenate([*means, np.zeros(0)])
    if not values.size:
        return False
    low, high = values.min(), values.max()
    return bool(0 <= low <= high / 2 or 0 < low == high)


class Style(NamedTuple):
    """Plot style of a config."""

    colour: str  # colour on a light page
    marker: str  # Matplotlib marker name
    shape: str  # SVG marker path in a box from -1 to 1
    dash: tuple[float, ...]  # lengths of dashes and gaps (empty for a solid line)


def style_at(place: int) -> Style:
    """Return the style at index ``place``. The first 64 styles all differ in colour or dashes."""
    turn, column = divmod(place, len(LIGHT))
    marker, shape = MARKERS[(column + turn) % len(MARKERS)]
    return Style(LIGHT[column], marker, shape, DASHES[turn % len(DASHES)])


def styles(names: Iterable[str]) -> dict[str, Style]:
    """Return each config's style. Names that are not in ``KNOWN`` get unused styles in order."""
    labels = [str(name) for name in names]
    taken = {KNOWN.index(label) for label in labels if label in KNOWN}
    free = (place for place in itertools.count() if place not in taken)
    return {
        label: style_at(KNOWN.index(label) if label in KNOWN else next(free)) for label in labels
    }
