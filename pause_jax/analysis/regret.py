"""Cumulative regret, its growth, and the papers' bounds.

A round's regret is C^G(genie) - C^G(cohort), as in Eq. (10) of PAUSE. The genie has the same
history as the policy. A cohort smaller than the genie's can have a negative regret
(``run.rounds.state.Score``), so the cumulative regret R(n) may decrease.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import scipy.special
import xarray as xr
from jax import Array
from numpy.typing import ArrayLike, NDArray

from pause_jax.analysis import metrics
from pause_jax.base.struct import ConfigError
from pause_jax.config import SimConfig, validate
from pause_jax.sweeps.execute import sweep

__all__ = ["Growth", "bounds_of", "measure", "rows"]

Floats = NDArray[np.float64]


class Growth(NamedTuple):
    """Growth of cumulative regret from round T / 10 to the last round, T.

    Attributes:
      exponent: slope of ln R against ln n (1 for linear growth, 0 for bounded regret, and close to
        0 for logarithmic growth).
      exponent_error: standard error of ``exponent`` over seeds.
      log_r2, linear_r2: R^2 of the fits a + b ln n and a + b n to the mean over seeds.
    """

    exponent: float
    exponent_error: float
    log_r2: float
    linear_r2: float


def cumulative(result: xr.Dataset) -> xr.DataArray:
    """Return the cumulative regret R(n) in float64, [config, seed, round].

    Rounds without clients add 0. The ``empty_rounds`` coordinate [config, seed] is the number of
    these rounds. R(n) is NaN after a run's last round.

    Args:
      result: data set from ``sweep``, with ``regret``, ``clients`` and ``played``.
    """
    empty = metrics.empty_rounds(result)
    each = result.regret.astype(np.float64).where(~empty, 0.0)
    return each.cumsum("round", skipna=False).assign_coords(empty_rounds=empty.sum("round"))


def measure(configs: Mapping[str, SimConfig], keys: Array) -> xr.DataArray:
    """Sweep each config over the same keys and return the cumulative regret.

    Args:
      configs: configs keyed by name, with ``track_regret=True`` and no overlapping rounds.
      keys: typed keys [S].

    Returns:
      R(n) in float64, [config, seed, round], as in :func:`cumulative`. Configs with fewer rounds
      are padded with NaN.

    Raises:
      ConfigError: if a config is invalid, does not track regret, or has overlapping rounds.

    Examples:
      >>> import jax
      >>> from pause_jax import SimConfig, regret
      >>> from pause_jax.policies import named
      >>> base = SimConfig(num_clients=8, num_selected=2, num_rounds=200, learning=None)
      >>> configs = {name: base.replace(policy=named(name)) for name in ("genie", "random")}
      >>> curves = regret.measure(configs, jax.random.split(jax.random.key(0), 2))
      >>> last = curves.isel(round=-1).mean("seed")
      >>> float(last.sel(config="genie")), bool(last.sel(config="random") > 10)
      (0.0, True)
    """
    for name, config in configs.items():
        validate(config)
        if not config.track_regret or config.overlaps:
            raise ConfigError(
                f"{name}: track_regret = {config.track_regret}, clock = {config.clock.name!r}: "
                "regret must be tracked, and rounds must not overlap. "
                "Set track_regret = True and clock = Synchronous()."
            )

    def one(name: str, config: SimConfig) -> xr.DataArray:
        curve = cumulative(sweep({name: config}, keys, progress=False)).isel(config=0)
        # Keep only dimension coordinates and `empty_rounds`, as the others may differ by config.
        return curve.reset_coords(set(curve.coords) - {*curve.dims, "empty_rounds"}, drop=True)

    # Sweep one config at a time, and keep only its regret in memory.
    curves = [one(name, config) for name, config in configs.items()]
    return xr.concat(curves, dim=xr.Variable("config", list(configs)))


def growth(regret: ArrayLike) -> Growth:
    """Fit the growth of cumulative regret over the rounds n in [T / 10, T].

    The exponent is fitted per seed, at up to 50 rounds equally spaced in ln n. The error of the
    exponent is the standard error over seeds, because points along a curve are strongly correlated.

    Args:
      regret: cumulative regret [seeds, T]. Rounds with NaN for any seed are dropped.

    Returns:
      The fit. All fields are NaN if R(n) <= 0 for any seed at a fitted round (ln R is undefined).

    Raises:
      ValueError: if the array is not two-dimensional or has fewer than 20 rounds.
    """
    curves = np.asarray(regret, np.float64)
    curves = curves[..., ~np.isnan(curves).any(axis=0)]
    if curves.ndim != 2 or curves.shape[1] < 20:
        raise ValueError(f"regret has shape {curves.shape}: must be [seeds, T] with T >= 20.")
    horizon = curves.shape[1]
    n = np.unique(np.geomspace(horizon / 10, horizon, 50).round().astype(int))
    picked = curves[:, n - 1]
    if np.any(picked <= 0):
        return Growth(math.nan, math.nan, math.nan, math.nan)
    x = np.log(n)
    slopes = [np.polyfit(x, np.log(row), 1)[0] for row in picked]
    error = np.std(slopes, ddof=1) / math.sqrt(len(slopes)) if len(slopes) > 1 else math.nan
    mean = picked.mean(axis=0)
    return Growth(float(np.mean(slopes)), float(error), _r2(x, mean), _r2(n.astype(float), mean))


class Row(NamedTuple):
    """Name, final regret (mean and standard error over seeds) and regret growth of a config."""

    name: str
    regret: float
    regret_error: float
    growth: Growth
    empty_rounds: int = 0  # number of rounds without clients, summed over seeds

    def __str__(self) -> str:
        growth = self.growth
        line = (
            f"{self.name:22} {self.regret:9.1f} +- {self.regret_error:6.1f}   "
            f"{growth.exponent:6.2f} +- {growth.exponent_error:5.3f}  "
            f"{growth.log_r2:6.3f} {growth.linear_r2:6.3f}"
        )
        return line + f"  ({self.empty_rounds} rounds without clients)" * bool(self.empty_rounds)


HEADING = (
    f"{'policy':22} {'R(n)':>9} +- {'error':>6}   {'d ln R / d ln n':>15}  "
    f"{'log R2':>6} {'linear':>6}"
)


def rows(curves: xr.DataArray) -> list[Row]:
    """Return one row per config, sorted by final regret, to print under ``HEADING``.

    ``curves`` is R(n), [config, seed, round], from :func:`cumulative` or :func:`measure`.
    """
    table = []
    for name in curves.config.values:
        curve = curves.sel(config=name)
        values = curve.values
        last = values[np.arange(len(values)), np.sum(~np.isnan(values), axis=1) - 1]
        error = last.std(ddof=1) / math.sqrt(last.size) if last.size > 1 else math.nan
        empty = int(curve.empty_rounds.sum()) if "empty_rounds" in curve.coords else 0
        table.append(Row(str(name), float(last.mean()), float(error), growth(values), empty))
    return sorted(table, key=lambda row: row.regret)


def _r2(x: Floats, y: Floats) -> float:
    return float(np.corrcoef(x, y)[0, 1] ** 2) if y.var() > 0 else math.nan


def smallest_gap(values: ArrayLike) -> float:
    """Return the papers' delta, the smallest difference between two clients' expected values.

    Theorem 3 of PAUSE defines delta for latencies but uses it for speeds.
    """
    return float(np.min(np.diff(np.sort(np.asarray(values, np.float64)))))


def bounds_of(config: SimConfig, num_rounds: ArrayLike) -> dict[str, Floats]:
    """Compute upper bounds on a config's cumulative regret after n rounds.

    Here delta is the smallest gap between expected speeds mu. By Lemma 1, with its misprint
    corrected, Delta_max = 2 alpha + gamma + max mu - min mu.

    - ``pause``, PAUSE Eq. (17): K (Delta_max + delta) (4 (m + 1) ln n / delta^2 + 1 + 2 pi^2 / 3)
    - ``bsfl``, BSFL Eq. (15): K Delta_max (4 (m + 1) ln n / delta^2 + 1 + pi^2 / 3)
    - ``gap_free``: 4 sqrt((m + 1) K n ln n) + K Delta_max (1 + 2 zeta(2 m + 1)), for PAUSE with the
      papers' UCB (zeta = 1) and an exact search. This bound does not depend on delta
      (``docs/regret_bound.md`` derives it).
    """
    n = np.asarray(num_rounds, np.float64)
    speed = np.asarray(config.latency.expected_speed(config.num_clients), np.float64)
    delta = smallest_gap(speed)
    alpha, gamma = float(config.reward.alpha), float(config.reward.gamma)
    delta_max = float(2 * alpha + gamma + speed.max() - speed.min())
    clients, cohort = config.num_clients, config.cohort_size
    exploring = 4 * (cohort + 1) * np.log(n) / delta**2 + 1
    widths = 4 * np.sqrt((cohort + 1) * clients * n * np.log(n))
    unsure = clients * (1 + 2 * scipy.special.zeta(2 * cohort + 1))
    return {
        "pause": np.asarray(clients * (delta_max + delta) * (exploring + 2 * math.pi**2 / 3)),
        "bsfl": np.asarray(clients * delta_max * (exploring + math.pi**2 / 3)),
        "gap_free": np.asarray(widths + delta_max * unsure),
    }
