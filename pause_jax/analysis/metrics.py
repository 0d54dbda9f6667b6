"""Metrics for each run of a sweep."""

from __future__ import annotations

import numpy as np
import xarray as xr

from pause_jax.base.struct import ConfigError

__all__ = [
    "final_accuracy",
    "final_loss",
    "final_spent",
    "mean_and_error",
    "participation_fairness",
    "simulated_seconds",
    "time_to_accuracy",
    "total_regret",
    "worst_share",
]


def time_to_accuracy(result: xr.Dataset, target: float) -> xr.DataArray:
    """Return the simulated seconds until the test accuracy first reaches ``target``.

    Args:
      result: data set from ``sweep``.
      target: accuracy in (0, 1].

    Returns:
      Seconds, [config, seed], or NaN for runs that never reached the target.

    Raises:
      ConfigError: if ``target`` is not in (0, 1].
    """
    if not 0 < target <= 1:
        raise ConfigError(f"target = {target}: must be > 0 and <= 1 (0.8 is 80 %).")
    return result.eval_clock.where(result.test_accuracy >= target).min("eval_round")


def final_accuracy(result: xr.Dataset) -> xr.DataArray:
    """Return each run's last test accuracy, [config, seed] (NaN for non-finite parameters)."""
    return final(result, "test_accuracy")


def final_loss(result: xr.Dataset) -> xr.DataArray:
    """Return each run's last test loss, [config, seed]."""
    return final(result, "test_loss")


def final(result: xr.Dataset, name: str) -> xr.DataArray:
    """Return a quantity at each run's last evaluation, without its ``eval_round`` dimension."""
    last = result.eval_clock.notnull().sum("eval_round") - 1
    return result[name].isel(eval_round=last.clip(0))


def worst_share(values: xr.DataArray, share: float = 0.1) -> xr.DataArray:
    """Return the mean of the lowest values along the ``client`` dimension.

    Args:
      values: client scores, such as accuracies. NaN values are ignored.
      share: share of clients to average over, in (0, 1]. At least one client is included.

    Raises:
      ConfigError: if ``share`` is not in (0, 1].
    """
    if not 0 < share <= 1:
        raise ConfigError(f"share = {share}: must be > 0 and <= 1 (0.1 is the worst tenth).")

    def worst(each: np.ndarray, axis: int) -> np.ndarray:
        each = np.sort(np.moveaxis(each, axis, -1))  # NaN values come last
        number = np.maximum(1, np.round(share * np.isfinite(each).sum(axis=-1, keepdims=True)))
        return np.sum(each, -1, where=np.arange(each.shape[-1]) < number) / number[..., 0]

    return values.reduce(worst, "client")


def simulated_seconds(result: xr.Dataset) -> xr.DataArray:
    """Return each run's total simulated time in seconds, [config, seed]."""
    return result.clock.max("round")


def participation_fairness(result: xr.Dataset) -> xr.DataArray:
    """Return Jain's fairness index of the participation counts T, [config, seed].

    ``(sum T)^2 / (K sum T^2)`` is 1 if all K clients took part equally often, and m/K if m clients
    took part equally often and the others never did (Jain, Chiu and Hawe 1984).
    """
    counts = result.counts.where(result.counts >= 0)
    return counts.sum("client") ** 2 / (counts.count("client") * (counts**2).sum("client"))


def final_spent(result: xr.Dataset) -> xr.DataArray:
    """Return the largest epsilon (per ``epsilon_unit``) spent by any client, [config, seed]."""
    return result.spent.max("client")


def empty_rounds(result: xr.Dataset) -> xr.DataArray:
    """Return a mask of the rounds that ran without clients, bool [config, seed, round].

    A round is empty if no available client has budget left, or if the policy selects no client.
    """
    return result.played & (result.clients < 0).all("slot")


def total_regret(result: xr.Dataset) -> xr.DataArray:
    """Return the total regret, [config, seed], or NaN if not tracked. Empty rounds add 0."""
    return result.regret.sum("round", min_count=1)


def gigabytes(result: xr.Dataset) -> xr.DataArray:
    """Return the total size of models and updates sent in each run, in GB, [config, seed]."""
    return (result.downloaded + result.uploaded).sum("round", min_count=1) / 1e9


def mean_and_error(values: xr.DataArray) -> tuple[xr.DataArray, xr.DataArray]:
    """Return the mean over seeds and its standard error (NaN for a single value), ignoring NaNs."""
    count = values.count("seed")
    mean = values.sum("seed", min_count=1) / count.where(count > 0)
    square = ((values - mean) ** 2).sum("seed", min_count=1)
    error = (square / (count - 1).where(count > 1) / count.where(count > 0)) ** 0.5
    # Without a privacy mechanism, the spent budget is infinite, so its mean has no standard error.
    return mean, error.where(np.isfinite(mean))
