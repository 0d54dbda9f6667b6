"""Runs of policies on a fleet of the benchmark, and their readings."""

from __future__ import annotations

from collections.abc import Mapping

import jax
import numpy as np
import xarray as xr

from pause_jax.analysis import metrics
from pause_jax.analysis.gauntlet.fleets import SEEDS, TARGET, Fleet
from pause_jax.policies import PolicyConfig
from pause_jax.sweeps.execute import sweep

# Readings of a run. Accuracies are in %, seconds are simulated.
READINGS = {
    "early": "accuracy after the early time",
    "late": "accuracy after the late time",
    "worst_tenth": "mean accuracy at the worst tenth of the clients, after the late time",
    "seconds_to_target": "seconds until the target accuracy, NaN if not reached by the late time",
    "spent": "largest budget that a client has spent at the end",
}
RECORD = ("clock", "eval_clock", "test_accuracy", "client_accuracy", "spent")


def play(
    fleet: Fleet,
    policies: Mapping[str, PolicyConfig],
    *,
    seeds: slice = slice(None),
    key: int = 0,
    progress: bool = True,
) -> xr.Dataset:
    """Run policies in the worlds of a fleet, until its late time.

    Args:
      fleet: fleet from ``fleets``.
      policies: policies by name.
      seeds: worlds to run, out of ``SEEDS``.
      key: number of the key that the worlds are drawn from. The board uses 0.
      progress: whether to show a progress bar.

    Returns:
      float [policy, seed] for each of ``READINGS``.
    """
    early, late = fleet.seconds
    keys = jax.random.split(jax.random.key(key), SEEDS)[seeds]
    configs = {
        name: fleet.config.replace(policy=policy, max_seconds=late)
        for name, policy in policies.items()
    }
    result = sweep(configs, keys, data=fleet.data, record=RECORD, progress=progress)
    by_late = result.eval_clock <= late
    at_clients = _at(result, late, "client_accuracy")
    found = {
        "early": 100 * _at(result, early, "test_accuracy"),
        "late": 100 * _at(result, late, "test_accuracy"),
        "worst_tenth": 100 * metrics.worst_share(at_clients),
        "seconds_to_target": metrics.time_to_accuracy(
            result.assign(test_accuracy=result.test_accuracy.where(by_late)), TARGET
        ),
        "spent": metrics.final_spent(result),
    }
    readings = {
        name: (("policy", "seed"), values.transpose("config", "seed").values.astype(np.float32))
        for name, values in found.items()
    }
    return xr.Dataset(readings, {"policy": list(policies), "seed": np.arange(SEEDS)[seeds]})


def _at(result: xr.Dataset, seconds: float, name: str) -> xr.DataArray:
    """Return a quantity at the last evaluation by a time, or else at the first."""
    by_then = (result.eval_clock <= seconds).sum("eval_round")
    return result[name].isel(eval_round=(by_then - 1).clip(0)).reset_coords(drop=True)
