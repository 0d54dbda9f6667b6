"""Time of a whole study: policies x seeds x rounds of the preset mnist_small, to a figure.

Each study starts a process and compiles everything. The peers have no policies, so their time is
that of as many runs of the workload W6, extrapolated from a first run and from later runs.
"""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import tempfile
import time
from typing import Annotated

import jax
import numpy as np
import typer

from benchmarks.harness import ON_CPU, Measured
from benchmarks.workloads import NUM_CLASSES, WORKLOADS
from pause_jax import plotting, presets, sweep
from pause_jax.learning import Dataset

WORKLOAD = "W6"
POLICIES = ("random", "pause", "bsfl", "cs_ucb", "power_of_choice", "oort", "fedcs", "fastest")
SEEDS = 8
RUNS = SEEDS * len(POLICIES)
_NUM_TRAIN, _NUM_TEST = 2_000, 10_000


def times(repeat: int, data_dir: str | None) -> list[float]:
    """Return the seconds of each of ``repeat`` studies, from the start of a process to its end."""
    seconds = []
    for _ in range(repeat):
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-m", "benchmarks", "study", f"{folder}/study.png"]
            command += [] if data_dir is None else ["--data-dir", data_dir]
            env = {**os.environ, **ON_CPU, "JAX_ENABLE_COMPILATION_CACHE": "false"}
            start = time.perf_counter()
            subprocess.run(command, env=env, check=True)
            seconds.append(time.perf_counter() - start)
    return seconds


def extrapolated(found: Measured) -> float:
    """Return the seconds that a peer needs for the runs of a study in one process."""
    return found.warmup + (RUNS - 1) * WORKLOADS[WORKLOAD].rounds * found.median


def main(
    figure: Annotated[pathlib.Path, typer.Argument(help="Output file of the figure.")],
    data_dir: Annotated[str | None, typer.Option(help="Folder with prepared MNIST.")] = None,
    rounds: Annotated[int, typer.Option(help="Rounds of each run.")] = WORKLOADS[WORKLOAD].rounds,
) -> None:
    """Run the study of pause_jax, on random images without MNIST, and draw its accuracy curves."""
    import matplotlib.pyplot as plt

    configs = {
        name: presets.mnist_small(name, data_dir).replace(num_rounds=rounds) for name in POLICIES
    }
    keys = jax.random.split(jax.random.key(0), SEEDS)
    data = _noise() if data_dir is None else None
    result = sweep(configs, keys, data=data, progress=False)
    canvas, axes = plt.subplots()
    plotting.plot_accuracy(result, axes)
    canvas.savefig(figure, bbox_inches="tight")


def _noise() -> Dataset:
    rng = np.random.default_rng(0)
    count = _NUM_TRAIN + _NUM_TEST
    x = rng.integers(0, 256, (count, *WORKLOADS[WORKLOAD].shape), np.uint8)
    y = rng.integers(0, NUM_CLASSES, count, np.int32)
    parts = x[:_NUM_TRAIN], y[:_NUM_TRAIN], x[_NUM_TRAIN:], y[_NUM_TRAIN:]
    return Dataset.of(*parts, num_classes=NUM_CLASSES)
