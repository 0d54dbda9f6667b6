"""Mean curves of configs with their errors, and their styles: what figures and reports draw."""

from __future__ import annotations

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
# Lengths of strokes and gaps, in widths of a line; the first is a line without gaps.
DASHES = ((), (5, 2), (1, 1.5), (6, 2, 1, 2), (2, 3), (9, 2), (4, 1, 1, 1, 1, 1), (1, 4))


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


def colour(place: int) -> str:
    """The colour of the config at a place, on a light page."""
    return LIGHT[place % len(LIGHT)]


def dash(place: int) -> tuple[float, ...]:
    """Its dashes: no two of the first 64 places have both the same."""
    return DASHES[place // len(LIGHT) % len(DASHES)]
