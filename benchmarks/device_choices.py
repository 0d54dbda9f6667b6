"""Measurements behind the library's choices for a kind of device: shapes, precision, kernels.

The results determine the choices in ``cohort.py`` and in ``best_form`` of ``convolution.py``.
"""

from __future__ import annotations

import math
import pathlib
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from benchmarks.drivers.pause import NUM_TEST, config_of, model_of
from benchmarks.searches import exact_calls
from benchmarks.timing import Timing, in_turns
from benchmarks.workloads import NUM_CLASSES, WORKLOADS, Workload, flops, read_data, write_data
from pause_jax import Result, presets, simulate, sweep
from pause_jax.learning import Dataset

Found = dict[str, Any]
USUAL = "as the library chooses"
# Precisions of a float32 product: the device's default, and full float32.
PRECISIONS = ("default", "highest")
PRODUCTS = 32  # matrix products per measurement


class Training:
    """Rounds of a workload in this process, through the public ``simulate``."""

    def __init__(self, workload: Workload):
        self.workload, self.key = workload, jax.random.key(0)
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "data.npz"
            write_data(workload, path)
            x, y = read_data(str(path))
        self.data = Dataset.of(x, y, x[:NUM_TEST], y[:NUM_TEST], num_classes=NUM_CLASSES)

    def run(
        self, *, client_batch: int | None = None, precision: str | None = None, form: str = ""
    ) -> Result:
        """Play the rounds of a measurement, optionally with other choices than the library's."""
        rounds = self.workload.rounds
        model = model_of(self.workload, form)
        config = config_of(self.workload, model, rounds, self.workload.learning_rate)
        with jax.default_matmul_precision(precision):
            result = simulate(config, self.key, self.data, client_batch=client_batch)
        return jax.block_until_ready(result)


def training(name: str, repeat: int, rounds: int) -> Found:
    """Time the given number of rounds of a workload under each choice."""
    workload = WORKLOADS[name]._replace(rounds=rounds)
    run = Training(workload).run
    calls: dict[str, Callable[[], object]] = {
        USUAL: run,
        "one round": Training(workload._replace(rounds=1)).run,
        "all clients side by side": partial(run, client_batch=workload.cohort),
    }
    calls["products in all bits"] = partial(run, precision="highest")
    if any(kind == "conv" for kind, _ in workload.layers):
        forms = {"products": "products", "xla": "XLA's"}
        calls |= {f"convolutions {form}": partial(run, form=f) for f, form in forms.items()}
    timings = in_turns(calls, repeat, keep_going=True)
    rates = {precision: rate(precision) for precision in PRECISIONS}
    found = {}
    for title, timing in timings.items():
        if title == "one round":
            found[title] = cell(timing)
            continue
        precision = "highest" if title.endswith("all bits") else "default"
        share = flops(workload) * workload.rounds / timing.median / rates[precision]
        note = f"{share:.3f} of the product's rate ({precision})"
        if title == USUAL and not timing.failure:
            note = f"{profiled(run).text(workload)}, {note}"
        found[title] = cell(timing, note)
    return found


def usual(name: str, repeat: int, rounds: int) -> Found:
    """Time the given number of rounds of a workload under the library's choices."""
    calls = {USUAL: Training(WORKLOADS[name]._replace(rounds=rounds)).run}
    return cells(in_turns(calls, repeat, keep_going=True))


def cell(timing: Timing, note: str = "") -> str:
    """Return the seconds and a note, or the reason of a failure."""
    return timing.failure or f"{timing.median:.4g} s {note}".strip()


def cells(timings: Mapping[str, Timing]) -> Found:
    """Return the seconds of each call, or the reason of its failure."""
    return {title: cell(timing) for title, timing in timings.items()}


class Profile(NamedTuple):
    """Profile of a device during one call.

    Attributes:
      kernels: number of kernels run.
      busy: sum of the kernels' seconds over the call's seconds; may exceed 1 if kernels overlap.
    """

    kernels: int
    busy: float

    def text(self, workload: Workload) -> str:
        """Describe the profile per local step, for clients of a cohort that step together."""
        steps = workload.rounds * workload.steps
        return f"{self.kernels / steps:.1f} kernels a step, busy {self.busy:.2f}"


def profiled(call: Callable[[], object]) -> Profile:
    """Profile one call with JAX's profiler."""
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        with jax.profiler.trace(folder):
            call()
            seconds = time.perf_counter() - start
        (path,) = pathlib.Path(folder).rglob("*.xplane.pb")
        planes = list(jax.profiler.ProfileData.from_file(str(path)).planes)
        devices = [plane for plane in planes if plane.name.startswith("/device:")]
        streams = [line for plane in devices for line in plane.lines if "Stream" in line.name]
        lines = streams or [line for plane in planes for line in plane.lines]
        durations = [
            event.duration_ns
            for line in lines
            for event in line.events
            if any(name == "hlo_op" for name, _ in event.stats)
        ]
    return Profile(len(durations), 1e-9 * math.fsum(durations) / seconds)


def rate(precision: str, size: int = 4096) -> float:
    """Measure operations per second of float32 products of square matrices up to ``size`` wide."""
    size = min(size, 1024) if jax.devices()[0].platform == "cpu" else size
    return 2 * PRODUCTS * size**3 / products_of(size, precision, 2).median


def products_of(size: int, kind: str, repeat: int) -> Timing:
    """Time products of square matrices, in ``bfloat16`` or in float32 at a precision."""
    matrix = jax.random.normal(jax.random.key(0), (size, size))
    precision = None if kind == "bfloat16" else kind
    if kind == "bfloat16":
        matrix = matrix.astype(jnp.bfloat16)
    multiply = jax.jit(partial(jnp.matmul, precision=precision))

    def play() -> jax.Array:
        for _ in range(PRODUCTS):
            product = multiply(matrix, matrix)
        return product

    return in_turns({kind: play}, repeat, keep_going=True)[kind]


def products(size: int, repeat: int) -> Found:
    """Time products of square matrices at each precision and in bfloat16."""
    found = {}
    for kind in (*PRECISIONS, "bfloat16"):
        timing = products_of(size, kind, repeat)
        speed = 2e-12 * PRODUCTS * size**3 / timing.median
        title = f"{PRODUCTS} products of {size} x {size} matrices, {kind}"
        found[title] = cell(timing, f"{speed:.3g} TFLOP/s")
    return found


def searches(clients: int, selected: int, repeat: int) -> Found:
    """Time exact search among many clients, and one ``jnp.argsort``."""
    timings = in_turns(exact_calls(clients, selected), repeat, keep_going=True)
    return {f"K = {clients:,}, m = {selected:,}: {name}": cell(timings[name]) for name in timings}


def seeds(preset: str, data: Dataset, counts: list[int], rounds: int, repeat: int) -> Found:
    """Time sweeps of a preset for each number of seeds, and for one seed."""
    config = presets.PRESETS[preset]()
    config = config.replace(num_rounds=rounds, eval_every=min(config.eval_every, rounds))
    # Half of the device's memory in GiB, or 2 if the device does not report it.
    of_device = (jax.devices()[0].memory_stats() or {}).get("bytes_limit", 0)
    limit = of_device / 2**31 or 2.0

    def play(count: int) -> object:
        keys = jax.random.split(jax.random.key(0), count)
        return sweep(config, keys, data=data, memory_limit=limit, progress=False).clock.values

    calls = {f"{count} seeds": partial(play, count) for count in sorted({1, *counts})}
    return cells(in_turns(calls, repeat, keep_going=True))
