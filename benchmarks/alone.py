"""pause_jax alone: a whole run, sweeps against one run, and growth with K, m and devices.

``python -m benchmarks.alone DEVICES REPEAT`` times one sweep on so many CPU devices, for `devices`.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

import jax

from pause_jax import SimConfig, presets, simulate, sweep

SEEDS = (1, 2, 8, 32)
CLIENTS = (1_000, 10_000, 100_000)
COHORTS = (4, 16, 64)
DEVICES = (1, 2, 4, 8)


class Timing(NamedTuple):
    """Seconds of a call: the first one, which compiles and reads the data, and the later ones."""

    first: float
    later: list[float]

    @property
    def median(self) -> float:
        """Of the later calls."""
        return statistics.median(self.later)


def in_turns(calls: Mapping[str, Callable[[], object]], repeat: int) -> dict[str, Timing]:
    """Time calls in turns: each once, to compile, and then ``repeat`` times."""

    def seconds(call: Callable[[], object]) -> float:
        start = time.perf_counter()
        jax.block_until_ready(call())
        return time.perf_counter() - start

    timings = {name: Timing(seconds(call), []) for name, call in calls.items()}
    for _ in range(repeat):
        for name, call in calls.items():
            timings[name].later.append(seconds(call))
    return timings


def _simulations(configs: Mapping[str, SimConfig]) -> dict[str, Callable[[], object]]:
    key = jax.random.key(0)
    return {name: partial(simulate, config, key) for name, config in configs.items()}


def whole_run(data_dir: str | None, repeat: int) -> dict[str, Timing]:
    """Presets from start to end: digits_small, and mnist_small if its data are there."""
    configs = {"digits_small": presets.digits_small()}
    if data_dir is not None:
        configs["mnist_small"] = presets.mnist_small(data_dir=data_dir)
    return in_turns(_simulations(configs), repeat)


def seeds(data_dir: str | None, repeat: int) -> tuple[str, dict[str, Timing]]:
    """Sweeps over numbers of seeds: of mnist_small if its data are there, else of digits_small."""
    config = presets.digits_small()
    if data_dir is not None:
        config = presets.mnist_small(data_dir=data_dir)
    calls = {str(count): _sweep_of(config, count) for count in SEEDS}
    return "digits_small" if data_dir is None else "mnist_small", in_turns(calls, repeat)


def _sweep_of(config: SimConfig, count: int) -> Callable[[], object]:
    keys = jax.random.split(jax.random.key(0), count)
    return lambda: sweep(config, keys, progress=False).clock.values


def devices(repeat: int) -> dict[str, Timing]:
    """A sweep of 16 seeds of digits_small on numbers of CPU devices, each in its own process."""
    found = {}
    for count in DEVICES:
        command = [sys.executable, "-m", "benchmarks.alone", str(count), str(repeat)]
        ran = subprocess.run(command, capture_output=True, text=True, check=True)
        found[str(count)] = Timing(*json.loads(ran.stdout))
    return found


def clients(repeat: int, rounds: int = 100) -> dict[str, Timing]:
    """PAUSE without learning for numbers of clients K, m = 25."""
    config = SimConfig(num_selected=25, num_rounds=rounds, track_regret=False, learning=None)
    configs = {f"{k:,}": config.replace(num_clients=k) for k in CLIENTS}
    return in_turns(_simulations(configs), repeat)


def cohorts(repeat: int) -> dict[str, Timing]:
    """digits_small with 64 clients for numbers of clients a round m."""
    config = presets.digits_small("random").replace(num_clients=64)
    configs = {str(m): config.replace(num_selected=m) for m in COHORTS}
    return in_turns(_simulations(configs), repeat)


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", int(sys.argv[1]))
    call = _sweep_of(presets.digits_small(), 16)
    print(json.dumps(in_turns({"": call}, int(sys.argv[2]))[""]))
