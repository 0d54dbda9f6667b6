"""Harness that measures contenders side by side in processes that take turns.

Between its turns a process is stopped (SIGSTOP), to prevent its threads from slowing down others.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import re
import select
import signal
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from benchmarks.contenders import OURS, Contender
from benchmarks.workloads import (
    WORKLOADS,
    Weights,
    first_weights,
    read_weights,
    write_data,
    write_weights,
)

ROOT = pathlib.Path(__file__).parent.parent
# Maximum seconds to wait for an answer.
PATIENCE = 900
# Seconds of a first run, start included, above which a contender runs only once.
SLOW = 60.0
# Environment variables that select the drivers' device.
ON_CPU = {"JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": ""}
# Stopped processes must leave memory of the device to the others.
ON_ACCELERATOR = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
_QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "PYTHONWARNINGS": "ignore",
}


class DriverError(RuntimeError):
    """Failure of a driver that ended (with its last printed error) or did not answer."""


class Running:
    """Process of a driver."""

    def __init__(self, python: pathlib.Path, contender: Contender, where: Mapping[str, str]):
        self._printed = tempfile.TemporaryFile("w+")  # noqa: SIM115, closed with the process
        # This repository first. A machine without network may have other packages on this path.
        path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        # A separate process group, for signals to reach the driver's child processes.
        self._process = subprocess.Popen(
            [str(python), "-m", f"benchmarks.drivers.{contender.driver}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._printed,
            text=True,
            cwd=ROOT,
            env={**os.environ, **_QUIET, **where, "PYTHONPATH": path},
            process_group=0,
        )

    def ask(self, do: str, **request: Any) -> dict[str, Any]:
        """Wake the driver, send a request, wait for the answer, and stop the driver again."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._signal(signal.SIGCONT)
        try:
            print(json.dumps({"do": do, **request}), file=self._process.stdin, flush=True)
            ready, _, _ = select.select([self._process.stdout], [], [], PATIENCE)
        except BrokenPipeError:
            ready = []
        answer = self._process.stdout.readline() if ready else ""
        if not answer:
            raise DriverError(self._last_error() if ready else f"no answer in {PATIENCE} s")
        self._signal(signal.SIGSTOP)
        result: dict[str, Any] = json.loads(answer)
        return result

    def close(self) -> None:
        """End the process, by force if it does not end within 30 seconds."""
        if self._printed.closed:
            return
        self._signal(signal.SIGCONT)
        with contextlib.suppress(BrokenPipeError, subprocess.TimeoutExpired):
            self._process.communicate(timeout=30)
        self._signal(signal.SIGKILL)
        self._process.wait()
        self._printed.close()

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def _last_error(self) -> str:
        self._printed.seek(0)
        lines = self._printed.read().strip().splitlines()
        errors = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b", line)]
        return (errors or lines or ["ended without a word"])[-1]


class Work(NamedTuple):
    """Processor seconds of a contender's process, summed over its threads.

    Attributes:
      start: seconds from the start of the process to the end of the first run.
      first: seconds of the first run.
      later: seconds of each repetition.
    """

    start: float
    first: float
    later: list[float]

    @property
    def once(self) -> float:
        """Excess of the first run over the later runs, mostly tracing and compiling."""
        return self.first - statistics.median(self.later)


class Measured(NamedTuple):
    """Measurement of one contender on one workload.

    Attributes:
      values: value of each repetition, in seconds per round or as reported by the driver.
      warmup: seconds from the start of the process to the end of its first, uncounted run: imports,
        data, compilation.
      versions: versions of the contender's packages.
      failure: reason for missing values, or "".
      work: processor seconds; None for a contender that computes in other processes.
      device: name of the device.
    """

    values: list[float]
    warmup: float = float("nan")
    versions: Mapping[str, str] = {}
    failure: str = ""
    work: Work | None = None
    device: str = ""

    @property
    def slow(self) -> bool:
        """Whether the first run took so long that its time, compilation included, is the value."""
        return self.warmup > SLOW

    @property
    def median(self) -> float:
        """Median of the values; NaN without values."""
        return statistics.median(self.values) if self.values else float("nan")


def measure(
    workload: str,
    contenders: Mapping[str, tuple[pathlib.Path, Contender]],
    repeat: int,
    say: Callable[[str], None],
    where: Mapping[str, str] = ON_CPU,
    rounds: int | None = None,
) -> dict[str, Measured]:
    """Measure contenders on a workload, in turns.

    Args:
      workload: name of the workload.
      contenders: name -> (Python, contender).
      repeat: number of turns of each contender.
      say: function that reports progress.
      where: environment variables of the drivers, ``ON_CPU`` or ``ON_ACCELERATOR``.
      rounds: rounds of a turn; None for the workload's own number.

    Returns:
      name -> measurement, including failed contenders with the reason.
    """
    rounds = rounds or WORKLOADS[workload].rounds
    measured: dict[str, Measured] = {}
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        data, weights = _files(workload, pathlib.Path(folder))

        def start(name: str) -> tuple[Running, dict[str, Any]]:
            python, contender = contenders[name]
            running = Running(python, contender, where)
            stack.callback(running.close)
            setup = {"workload": workload, "data": data, "weights": weights}
            return running, running.ask("setup", variant=contender.variant, **setup)

        def run_once(running: Running) -> dict[str, float]:
            return running.ask("run", rounds=rounds)

        waiting: dict[str, Running] = {}
        for name, (_, contender) in contenders.items():
            say(f"{workload}: {name} warms up")
            begin = time.perf_counter()
            try:
                running, about = start(name)
                answer = run_once(running)
            except DriverError as error:
                measured[name] = Measured([], failure=str(error))
                continue
            work = Work(answer["so_far"], answer["processor"], []) if contender.idle else None
            warmup = time.perf_counter() - begin
            measured[name] = Measured([], warmup, **about, work=work)
            if measured[name].slow:
                measured[name] = Measured([answer["value"]], warmup, **about)
                running.close()
            elif contender.idle:
                waiting[name] = running
            else:
                running.close()
        for turn in range(repeat):
            for name, so_far in measured.items():
                if so_far.failure or so_far.slow:
                    continue
                try:
                    running = waiting[name] if name in waiting else start(name)[0]
                    answer = run_once(running)
                    so_far.values.append(answer["value"])
                    if so_far.work:
                        so_far.work.later.append(answer["processor"])
                    say(f"{workload}: {name} {turn + 1}/{repeat}: {so_far.values[-1]:.4g}")
                    if name not in waiting:
                        running.close()
                except DriverError as error:
                    measured[name] = Measured([], failure=str(error))
    return measured


def _files(workload: str, folder: pathlib.Path, **how: bool) -> tuple[str, str]:
    data, weights = folder / "data.npz", folder / "weights.npz"
    write_data(WORKLOADS[workload], data, **how)
    write_weights(first_weights(WORKLOADS[workload]), weights)
    return str(data), str(weights)


def compare(
    workload: str,
    ours: tuple[pathlib.Path, Contender],
    peers: Mapping[str, tuple[pathlib.Path, Contender]],
) -> tuple[float, dict[str, float | str]]:
    """Play one round from our first weights, on data whose order within a client does not matter.

    Returns:
      (largest change of a weight in our round, name -> largest difference of a weight from ours
      after the round, or the reason of a failure).
    """
    with tempfile.TemporaryDirectory() as folder:
        data, weights = _files(
            workload, pathlib.Path(folder), one_sample_each=not WORKLOADS[workload].normed
        )

        def play(python: pathlib.Path, contender: Contender) -> Weights:
            path = f"{folder}/after.npz"
            running = Running(python, contender, ON_CPU)
            try:
                variant = contender.variant
                running.ask("setup", workload=workload, data=data, weights=weights, variant=variant)
                if contender == ours[1]:
                    running.ask("save", path=weights)
                if contender.idle:
                    running.ask("run", rounds=1)
                running.ask("save", path=path)
                return read_weights(path)
            finally:
                running.close()

        try:
            expected = play(*ours)
        except DriverError as error:
            return float("nan"), {OURS: str(error)}
        moved = largest_difference(expected, read_weights(weights))
        found: dict[str, float | str] = {}
        for name, peer in peers.items():
            try:
                found[name] = largest_difference(expected, play(*peer))
            except DriverError as error:
                found[name] = str(error)
    return moved, found


def largest_difference(a: Weights, b: Weights) -> float:
    """Return the largest absolute difference between the weights of two models."""
    return max(
        float(np.max(np.abs(x - y)))
        for pair in zip(a, b, strict=True)
        for x, y in zip(*pair, strict=True)
    )
