"""Mean curves of configs with their errors: what figures and reports draw."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from pause_jax.analysis import metrics

Floats = NDArray[np.float64]


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
