"""Mean curves of configs with their errors, and the look of each, in figures and reports."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from pause_jax.analysis import metrics

Floats = NDArray[np.float64]

# Distinct for colour-blind readers too, and each 3:1 at least against its page.
# The two lists are of the same hues: a page swaps them by the reader's colour scheme.
LIGHT_PAGE, DARK_PAGE = "#FFFFFF", "#0F1419"
LIGHT = ("#4459CA", "#F8636C", "#09803F", "#B68B07", "#289CE0", "#802E8C", "#6D5C6E", "#8E2B00")
DARK = ("#7190EF", "#FF6671", "#39B781", "#EFC655", "#8BD5FF", "#C890C5", "#B1C5BF", "#DB944C")
# Of matplotlib, and the same as an SVG path in a box from -1 to 1.
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
# Lengths of strokes and gaps, in widths of a line; the first is a line without gaps.
DASHES = ((), (5, 2), (1, 1.5), (6, 2, 1, 2), (2, 3), (9, 2), (4, 1, 1, 1, 1, 1), (1, 4))
# Names that look the same in every figure, whatever stands beside them.
KNOWN = ("pause", "sa_pause", "random", "fastest", "all", "all, no privacy", "bsfl", "genie")


class Curve(NamedTuple):
    """Of one config, each [n]: where, the mean over seeds, its standard error (NaN without one)."""

    x: Floats
    mean: Floats
    error: Floats

    def at(self, places: NDArray[np.intp]) -> Curve:
        """The points at those places."""
        return Curve(self.x[places], self.mean[places], self.error[places])


def learns(result: xr.Dataset) -> bool:
    """Whether anything was learned, so that there is a test loss."""
    return bool(np.isfinite(result.test_loss).any()) or classifies(result)


def classifies(result: xr.Dataset) -> bool:
    """Whether there is a test accuracy."""
    return bool(np.isfinite(result.test_accuracy).any())


def progress(result: xr.Dataset) -> dict[str, Curve]:
    """Test accuracy in per cent, else test loss, against the mean clock, as far as all seeds go."""
    values = 100 * result.test_accuracy if classifies(result) else result.test_loss
    return over_time(values, result.eval_clock)


def over_time(values: xr.DataArray, clock: xr.DataArray) -> dict[str, Curve]:
    """Values against the mean clock, both [config, seed, n], as far as all seeds go."""
    mean, error = metrics.mean_and_error(values)
    seconds = clock.mean("seed", skipna=False)
    return _by_config(seconds, mean.where(seconds.notnull()), error)


def by_round(values: xr.DataArray) -> dict[str, Curve]:
    """Values [config, seed, round] against rounds, as far as all seeds go."""
    mean, error = metrics.mean_and_error(values)
    rounds = values["round"].broadcast_like(mean)
    return _by_config(rounds, mean.where(values.notnull().all("seed")), error)


def hidden(curves: dict[str, Curve]) -> list[list[str]]:
    """Groups of configs that have the same curve, so that one would hide the others."""
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
    """Whether an axis helps more with 0 on it: where values come near it, or are all the same."""
    means = [curve.mean[np.isfinite(curve.mean)] for curve in curves.values()]
    values = np.concatenate([*means, np.zeros(0)])
    if not values.size:
        return False
    low, high = values.min(), values.max()
    return bool(0 <= low <= high / 2 or 0 < low == high)


class Style(NamedTuple):
    """Plot style of a config."""

    colour: str  # on a light page
    marker: str  # of matplotlib
    shape: str  # the same marker as an SVG path in a box from -1 to 1
    dash: tuple[float, ...]  # strokes and gaps; empty for a whole line


def style_at(place: int) -> Style:
    """Return the style of a place.

    No two of the first 64 have the same colour and dashes, and no two of eight in a row the same
    marker.
    """
    turn, column = divmod(place, len(LIGHT))
    marker, shape = MARKERS[(column + turn) % len(MARKERS)]
    return Style(LIGHT[column], marker, shape, DASHES[turn % len(DASHES)])


def styles(names: Iterable[str]) -> dict[str, Style]:
    """Return the style of each config of a result.

    Args:
      names: of all configs, in their order. A name of ``KNOWN`` has its own style; the others get
        the places that are free, the first one first.
    """
    labels = [str(name) for name in names]
    taken = {KNOWN.index(label) for label in labels if label in KNOWN}
    free = (place for place in itertools.count() if place not in taken)
    return {
        label: style_at(KNOWN.index(label) if label in KNOWN else next(free)) for label in labels
    }
