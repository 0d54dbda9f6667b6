"""Speed of pause_jax alone: whole runs, sweeps, and scaling with K, m and devices."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import partial

import jax
import typer

from benchmarks.timing import Timing, in_turns
from pause_jax import SimConfig, presets, simulate, sweep

SEEDS = (1, 2, 8, 32)
CLIENTS = (1_000, 10_000, 100_000)
COHORTS = (4, 16, 64)
DEVICES = (1, 2, 4, 8)


def _simulations(configs: Mapping[str, SimConfig]) -> dict[str, Callable[[], object]]:
    key = jax.random.key(0)
    return {name: partial(simulate, config, key) for name, config in configs.items()}


def whole_run(data_dir: str | None, repeat: int) -> dict[str, Timing]:
    """Time whole runs of digits_small, and of mnist_small if its data are available."""
    configs = {"digits_small": presets.digits_small()}
    if data_dir is not None:
        configs["mnist_small"] = presets.mnist_small(data_dir=data_dir)
    return in_turns(_simulations(configs), repeat)


def seeds(data_dir: str | None, repeat: int) -> tuple[str, dict[str, Timing]]:
    """Time sweeps by number of seeds: mnist_small if its data are available, else digits_small."""
    config = presets.digits_small()
    if data_dir is not None:
        config = presets.mnist_small(data_dir=data_dir)
    calls = {str(count): _sweep_of(config, count) for count in SEEDS}
    return "digits_small" if data_dir is None else "mnist_small", in_turns(calls, repeat)


def _sweep_of(config: SimConfig, count: int) -> Callable[[], object]:
    keys = jax.random.split(jax.random.key(0), count)
    return lambda: sweep(config, keys, progress=False).clock.values


def devices(repeat: int) -> dict[str, Timing]:
    """Time a sweep of 16 seeds of digits_small by number of CPU devices, one process each."""
    found = {}
    for count in DEVICES:
        command = [sys.executable, "-m", "benchmarks", "sweep-on-devices", str(count), str(repeat)]
        ran = subprocess.run(command, capture_output=True, text=True, check=True)
        found[str(count)] = Timing(*json.loads(ran.stdout))
    return found


def sweep_on_devices(count: int, repeat: int) -> None:
    """Time the sweep of :func:`devices` on ``count`` CPU devices, and print the result as JSON."""
    jax.config.update("jax_num_cpu_devices", count)
    call = _sweep_of(presets.digits_small(), 16)
    typer.echo(json.dumps(in_turns({"": call}, repeat)[""]))


def clients(repeat: int, rounds: int = 100) -> dict[str, Timing]:
    """Time PAUSE without learning by number of clients K, with m = 25."""
    config = SimConfig(num_selected=25, num_rounds=rounds, track_regret=False, learning=None)
    configs = {f"{k:,}": config.replace(num_clients=k) for k in CLIENTS}
    return in_turns(_simulations(configs), repeat)


def cohorts(repeat: int) -> dict[str, Timing]:
    """Time digits_small with 64 clients by number of clients per round m."""
    config = presets.digits_small("random").replace(num_clients=64)
    configs = {str(m): config.replace(num_selected=m) for m in COHORTS}
    return in_turns(_simulations(configs), repeat)
