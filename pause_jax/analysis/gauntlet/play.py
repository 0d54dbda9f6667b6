"""Runs of policies on a benchmark fleet, and their scores."""

from __future__ import annotations

import timeit
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jax import Array

from pause_jax.analysis import metrics
from pause_jax.analysis.gauntlet.fleets import SEEDS, TARGET, Fleet
from pause_jax.bandit.protocol import Selection
from pause_jax.policies import PolicyConfig
from pause_jax.policies.dry_round import dry_round
from pause_jax.rng import keys
from pause_jax.run import contract
from pause_jax.run.preflight import prepare
from pause_jax.run.setup import learner_of, setup_of
from pause_jax.sweeps.execute import sweep

# Metrics of a run. Accuracies are in %, and times are in simulated seconds.
READINGS = {
    "early": "accuracy early in the run",
    "late": "accuracy late in the run",
    "worst_tenth": "mean accuracy for the worst tenth of the clients, late in the run",
    "seconds_to_target": "time to the target accuracy; NaN if not reached by the late evaluation",
    "spent": "largest budget spent by any client",
}
RECORD = (
    *("clock", "eval_clock", "test_accuracy", "client_accuracy", "spent"),
    *(*contract.RECORDED, contract.NONFINITE),  # for warnings about custom policies
)


def play(
    fleet: Fleet,
    policies: Mapping[str, PolicyConfig],
    *,
    settings: Mapping[str, Mapping[str, float]] | None = None,
    seeds: slice = slice(None),
    root: int = 0,
    progress: bool = True,
) -> xr.Dataset:
    """Run policies in a fleet's worlds, and return the metrics in ``READINGS`` [policy, seed].

    No round starts after the late evaluation time. ``settings`` maps each policy to the config
    fields to change, as in ``{"pause": {"reward.alpha": 10.0}}``. ``jax.random.key(root)`` is
    split into one key per world, and ``seeds`` selects a slice of worlds. The board uses root 0.
    """
    early, late = fleet.seconds
    worlds = jax.random.split(jax.random.key(root), SEEDS)[seeds]
    configs = {
        name: fleet.config.replace(policy=policy, max_seconds=late).override(
            (settings or {}).get(name, {})
        )
        for name, policy in policies.items()
    }
    result = sweep(configs, worlds, data=fleet.data, record=RECORD, progress=progress)
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


def server_seconds(fleet: Fleet, policy: PolicyConfig, rounds: int = 100) -> float:
    """Measure a policy's server time per round, in seconds.

    The result is the shortest of five measurements, and excludes client work and validation.
    """
    config, data = prepare(fleet.config.replace(policy=policy), fleet.data)
    learner = learner_of(config, data)
    streams = keys.streams(jax.random.key(0))
    setup = setup_of(config, learner, learner.init(streams), streams.world)
    everyone, one = jnp.ones(config.num_clients, bool), jnp.float32(1)

    def play_one(state: Any, round: Array) -> tuple[Any, Selection]:
        key = jax.random.fold_in(streams.policy, round)
        return dry_round(setup.policy, setup.context, key, state, round, everyone, one)[:2]

    program = jax.jit(lambda state: jax.lax.scan(play_one, state, jnp.arange(1, rounds + 1)))
    state = jax.block_until_ready(program(setup.policy.init()))[0]
    return min(timeit.repeat(lambda: jax.block_until_ready(program(state)), number=1)) / rounds


def _at(result: xr.Dataset, seconds: float, name: str) -> xr.DataArray:
    """Return a quantity at each run's last evaluation until ``seconds`` (or at its first)."""
    by_then = (result.eval_clock <= seconds).sum("eval_round")
    return result[name].isel(eval_round=(by_then - 1).clip(0)).reset_coords(drop=True)
