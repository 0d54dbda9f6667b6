"""Differences between configs that met the same worlds, seed by seed, and how sure they are."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pause_jax.base.struct import ConfigError

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["Difference", "differences"]


class Difference(NamedTuple):
    """How much more a config has of something than the one that it is compared with.

    Attributes:
      mean: over the pairs, in the unit of the values; NaN without a pair.
      low, high: ends of its confidence interval; NaN with fewer than two pairs.
      pairs: seeds in which both have a value.
      seeds: all seeds.
    """

    mean: float
    low: float
    high: float
    pairs: int
    seeds: int

    @property
    def shown(self) -> int:
        """1 or -1 if the seeds show that the true difference is above or below 0; 0 if they do not.

        Never where a seed is left out: those that are left were chosen by their outcome.
        """
        if self.pairs < self.seeds:
            return 0
        return (self.low > 0) - (self.high < 0)


def differences(
    values: xr.DataArray, against: str, *, comparisons: int | None = None
) -> dict[str, Difference]:
    """Of every other config to one, over the same seeds: mean and paired t-interval.

    All intervals hold together with 95 % confidence (Bonferroni).

    Args:
      values: [config, seed]; NaN where there is none, say a target that was never reached.
      against: the config that all are compared with.
      comparisons: how many differences might have been asked for. The number of other configs, if
        ``against`` was chosen beforehand; of all pairs, if it was chosen because it looked best.

    Returns:
      By config, in their order, without ``against``.

    Raises:
      ConfigError: if there is no such config.
    """
    from scipy import special

    names = [str(name) for name in values.config.values]
    if against not in names:
        raise ConfigError(f"against = {against!r}: must be one of {', '.join(names)}.")
    ours = values.sel(config=against).values.astype(float)
    others = [name for name in names if name != against]
    tail = (1 - 0.95) / 2 / max(comparisons or len(others), 1)
    found = {}
    for name in others:
        each = values.sel(config=name).values.astype(float) - ours
        each = each[np.isfinite(each)]
        number = each.size
        mean = float(each.mean()) if number else math.nan
        half = math.nan
        if number > 1:
            error = float(each.std(ddof=1)) / math.sqrt(number)
            half = float(special.stdtrit(number - 1, 1 - tail)) * error
        found[name] = Difference(mean, mean - half, mean + half, number, ours.size)
    return found
