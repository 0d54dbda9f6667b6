"""What the library must choose for a kind of device, measured: shapes, precision, kernels.

The rows say what to write into ``pause_jax/learning/device_choice.py``.
"""

from __future__ import annotations

import math
import pathlib
import tempfile
import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from benchmarks.drivers.pause import NUM_TEST, config_of, model_of
from benchmarks.harness import Measured
from benchmarks.selection import exact_calls
from benchmarks.timing import Row, here
from benchmarks.workloads import NUM_CLASSES, WORKLOADS, Workload, flops, read_data, write_data
from pause_jax import Result, simulate
from pause_jax.learning import Dataset

# Of a product in float32: what the device does by itself, and all bits.
PRECISIONS = ("default", "highest")
PRODUCTS = 32  # matrix products of a measurement


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
        """Play the rounds of a measurement, with other choices than the table's."""
        rounds = self.workload.rounds
        model = model_of(self.workload, form)
        config = config_of(self.workload, model, rounds, self.workload.learning_rate)
        with jax.default_matmul_precision(precision):
            result = simulate(config, self.key, self.data, client_batch=client_batch)
        return jax.block_until_ready(result)


def training(name: str, repeat: int) -> list[Row]:
    """A round of a workload under each choice; seconds are of all rounds of a measurement."""
    workload = WORKLOADS[name]
    run = Training(workload).run
    usual = f"{name}: as the library chooses"
    calls: dict[str, Callable[[], object]] = {usual: run}
    for n in (1, workload.cohort):
        calls[f"{name}: {n} clients side by side"] = partial(run, client_batch=n)
    calls[f"{name}: products in all bits"] = partial(run, precision="highest")
    if any(kind == "conv" for kind, _ in workload.layers):
        forms = {"products": "products", "xla": "XLA's"}
        calls |= {f"{name}: convolutions {form}": partial(run, form=f) for f, form in forms.items()}
    found = here(calls, repeat)
    rates = {precision: rate(precision) for precision in PRECISIONS}
    rows = []
    for title, each in found.items():
        precision = "highest" if title.endswith("all bits") else "default"
        share = flops(workload) * workload.rounds / each.median / rates[precision]
        note = f"{share:.3f} of the product's rate ({precision})"
        if title == usual:
            note = f"{profiled(run).told(workload)}, {note}"
        rows.append(
            Row(title, each, None if title == usual else ("usual", found[usual]), note=note)
        )
    return rows


def usual(name: str, repeat: int) -> list[Row]:
    """Rounds of a workload as the library runs them."""
    title = f"{name}: as the library chooses"
    return [Row(title, here({title: Training(WORKLOADS[name]).run}, repeat)[title])]


class Profile(NamedTuple):
    """What a device did in one call.

    Attributes:
      kernels: that it ran.
      busy: share of the call's seconds in which it ran any; may pass 1 where several run at once.
    """

    kernels: int
    busy: float

    def told(self, workload: Workload) -> str:
        """In words, beside the local steps of the call if all clients step together."""
        steps = workload.rounds * workload.steps
        return f"{self.kernels / steps:.1f} kernels a step, busy {self.busy:.2f}"


def profiled(call: Callable[[], object]) -> Profile:
    """Count the kernels of one call by JAX's profiler."""
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
    """Operations a second of float32 products of square matrices, at most ``size`` wide."""
    size = min(size, 1024) if jax.devices()[0].platform == "cpu" else size
    return 2 * PRODUCTS * size**3 / products_of(size, precision, 2).median


def products_of(size: int, kind: str, repeat: int) -> Measured:
    """Time products of square matrices: ``bfloat16``, or float32 at a precision."""
    matrix = jax.random.normal(jax.random.key(0), (size, size))
    precision = None if kind == "bfloat16" else kind
    if kind == "bfloat16":
        matrix = matrix.astype(jnp.bfloat16)
    multiply = jax.jit(partial(jnp.matmul, precision=precision))

    def play() -> jax.Array:
        for _ in range(PRODUCTS):
            product = multiply(matrix, matrix)
        return product

    return here({kind: play}, repeat)[kind]


def products(size: int, repeat: int) -> list[Row]:
    """Products of square matrices in each kind of numbers."""
    found = {kind: products_of(size, kind, repeat) for kind in (*PRECISIONS, "bfloat16")}
    first = found["default"]
    rows = []
    for kind, each in found.items():
        name = f"{PRODUCTS} products of {size} x {size} matrices, {kind}"
        speed = 2e-12 * PRODUCTS * size**3 / each.median
        base = None if each is first else ("default", first)
        rows.append(Row(name, each, base, note=f"{speed:.3g} TFLOP/s"))
    return rows


def selections(clients: int, selected: int, repeat: int) -> list[Row]:
    """Exact search among many clients, beside one ``argsort``."""
    found = here(exact_calls(clients, selected), repeat)
    base = found["argsort"]
    return [
        Row(f"K = {clients:,}, m = {selected:,}: {name}", each,
            None if each is base else ("argsort", base))
        for name, each in found.items()
    ]  # fmt: skip
