"""Pieces of the accelerator benchmark, in order: correctness, speed, results of experiments.

``benchmarks.accelerator`` runs each piece in a separate process. A piece is a list of steps, and
each step is a line of the output.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import pathlib
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import data_parts, device_choices
from benchmarks.contenders import CONTENDERS, OURS
from benchmarks.device_choices import Found
from benchmarks.harness import ON_ACCELERATOR, measure
from benchmarks.peers import able, say
from pause_jax import ConfigError, SimConfig, presets, simulate
from pause_jax.config import validate
from pause_jax.learning import Dataset, Digits, Execution, Linear
from pause_jax.policies import NAMED, named

LINES = "lines.jsonl"
SEEDS = (64, 1024, 4096)
LOOPS = ("PyTorch loop", "PyTorch channels_last")
# Fastest first.
WORKLOADS_IN_ORDER = ("W2", "W4", "W3", "W1", "W5_full")
# Rounds per measurement of programs that train clients in parallel. In one round, an accelerator
# spends most of the time on the start of the run.
ROUNDS = 20


class Setting(NamedTuple):
    """Setting of the pieces.

    Attributes:
      out: output folder.
      data: folder with the parts of the data sets, or None.
      small: whether to run a minimum of each piece, as a rehearsal.
    """

    out: pathlib.Path
    data: pathlib.Path | None
    small: bool

    def read(self, name: str) -> Dataset | None:
        """Read a data set from its parts, or return None if the parts are missing."""
        if self.small and name == "cifar10":
            return _noise((32, 32, 3))
        return None if self.data is None else data_parts.read(name, self.data)


class Step(NamedTuple):
    """Named measurement, with a function that returns its results."""

    name: str
    measure: Callable[[], Found]


class Piece(NamedTuple):
    """Steps that share a process.

    Attributes:
      steps: function that yields the steps of a setting.
      env: environment variables of the process. XLA reads ``XLA_FLAGS`` only once.
    """

    steps: Callable[[Setting], Iterator[Step]]
    env: Mapping[str, str] = {}


def ended(out: pathlib.Path) -> list[dict[str, Any]]:
    """Read the lines of finished steps, and of finished pieces, whose lines have no step."""
    path, lines = out / LINES, []
    for text in path.read_text().splitlines() if path.exists() else ():
        with contextlib.suppress(json.JSONDecodeError):  # partial line of a killed process
            lines.append(json.loads(text))
    return lines


def cohorts(setting: Setting) -> Iterator[Step]:
    """Yield runs whose cohorts are recorded: every policy, and a preset with noise."""
    policies = ("pause", "random", "cpow_d") if setting.small else tuple(NAMED)
    rounds, learnt = (10, 2) if setting.small else (200, 20)
    digits = presets.digits_small().replace(num_rounds=learnt, eval_every=learnt)
    bandit = SimConfig(num_clients=30, num_selected=5, num_rounds=rounds, learning=None)
    for name in policies:
        config = bandit.replace(policy=named(name))
        try:
            validate(config)
        except ConfigError:  # the policy needs losses
            config = digits.replace(policy=named(name))
        yield Step(name, partial(_cohorts_of, config))
    yield Step("digits_small", partial(_cohorts_of, digits))


def _cohorts_of(config: SimConfig) -> Found:
    result = simulate(config, jax.random.key(0))
    found = {"clients": np.asarray(result.clients).tolist(), "seconds": float(result.clock[-1])}
    if config.learning is not None:
        found["accuracy"] = float(result.test_accuracy[-1])
    return found


def agreement(setting: Setting) -> Iterator[Step]:
    """Yield each run of :func:`cohorts` on this device, compared with the CPU's line."""
    of_cpu = {
        line["step"]: line["found"]
        for line in ended(setting.out)
        if line["piece"] == "cohorts_cpu" and "found" in line
    }
    for step in cohorts(setting):
        if step.name in of_cpu:
            yield Step(step.name, partial(_beside, of_cpu[step.name], step.measure))


def _beside(expected: Found, measure: Callable[[], Found]) -> Found:
    found = measure()
    here, there = np.asarray(found.pop("clients")), np.asarray(expected["clients"])
    equal = (np.sort(here, axis=1) == np.sort(there, axis=1)).all(axis=1)
    first = {} if equal.all() else {"first_other_round": int(np.argmin(equal)) + 1}
    apart = {f"{name}_apart": abs(found[name] - expected[name]) for name in found}
    return {"equal_rounds": int(equal.sum()), "rounds": len(equal), **first, **apart}


def precision(setting: Setting) -> Iterator[Step]:
    """Yield the errors of a product, a convolution and a linear solve at each precision."""
    size = 64 if setting.small else 2048
    for kind in ("default", "tensorfloat32", "high", "highest"):
        yield Step(kind, partial(_errors, kind, size))


def _errors(kind: str, size: int) -> Found:
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((2, size, size))
    image, kernel = rng.standard_normal((20, 15, 15, 32)), rng.standard_normal((3, 3, 32, 64))
    matrix = a @ a.T / size + np.eye(size)
    patches = np.lib.stride_tricks.sliding_window_view(image, (3, 3), (1, 2))
    with jax.default_matmul_precision(kind):
        product = jnp.matmul(*_singles(a, b))
        layout = ("NHWC", "HWIO", "NHWC")
        x, weights = map(jnp.asarray, _singles(image, kernel))
        convolved = jax.lax.conv_general_dilated(
            x, weights, (1, 1), "VALID", dimension_numbers=layout
        )
        solved = jnp.linalg.solve(*_singles(matrix, b[:, :1]))
    return {
        "product": _relative(product, a @ b),
        "convolution": _relative(convolved, np.einsum("nhwcij,ijco->nhwo", patches, kernel)),
        "solution": _relative(solved, np.linalg.solve(matrix, b[:, :1])),
    }


def _singles(*arrays: np.ndarray) -> list[np.ndarray]:
    return [array.astype(np.float32) for array in arrays]


def _relative(found: jax.Array, right: np.ndarray) -> float:
    return float(np.linalg.norm(np.asarray(found, float) - right) / np.linalg.norm(right))


def speed(setting: Setting) -> Iterator[Step]:
    """Yield timings of the library alone: products, training, searches, seeds."""
    small, repeat = setting.small, 1 if setting.small else 3
    rounds, clients = (2, 1000) if small else (30, 1_000_000)
    yield Step("products", partial(device_choices.products, 16 if small else 8192, repeat))
    for name in ("tiny",) if small else WORKLOADS_IN_ORDER:
        yield Step(name, partial(device_choices.training, name, repeat, 2 if small else ROUNDS))
    yield Step("searches", partial(device_choices.searches, clients, clients // 1000, repeat))
    for preset, data in (("digits_small", Digits().load()), ("mnist_small", setting.read("mnist"))):
        if data is not None:
            counts = [2] if small else list(SEEDS)
            sweeps = partial(device_choices.seeds, preset, data, counts, rounds, repeat)
            yield Step(f"{preset}, seeds", sweeps)


def peers(setting: Setting) -> Iterator[Step]:
    """Yield timings of rounds in float32 and bfloat16, and in PyTorch if it is installed."""
    here = pathlib.Path(sys.executable)
    of_torch = () if importlib.util.find_spec("torch") is None else ("torch.func", *LOOPS)
    chosen = {name: (here, CONTENDERS[name]) for name in (OURS, *of_torch)}
    module = CONTENDERS[OURS]._replace(norms=False)
    for kind in ("bfloat16",) if setting.small else ("float32", "bfloat16"):
        chosen[f"own Flax module, {kind}"] = here, module._replace(variant=kind)
    for workload in ("tiny",) if setting.small else WORKLOADS_IN_ORDER:
        repeat, rounds = (1, None) if setting.small else (3, ROUNDS)
        contenders = able(workload, chosen)
        loops = {name: contenders.pop(name) for name in LOOPS if name in contenders}
        yield Step(workload, partial(_turns, workload, contenders, repeat, rounds))
        if loops:
            yield Step(f"{workload}, loops", partial(_turns, workload, loops, 1, None))


def _turns(workload: str, contenders: Any, repeat: int, rounds: int | None) -> Found:
    measured = measure(workload, contenders, repeat, say, ON_ACCELERATOR, rounds)
    return {name: each.failure or f"{each.median:.4g} s a round" for name, each in measured.items()}


def usual_speed(setting: Setting) -> Iterator[Step]:
    """Yield timings under the library's choices, for a process with other flags."""
    for name in ("tiny",) if setting.small else ("W2", "W4"):
        yield Step(name, partial(device_choices.usual, name, 3, 2 if setting.small else ROUNDS))


def figures(setting: Setting) -> Iterator[Step]:
    """Yield the runs of PAUSE's CIFAR-10 figures, one run per step, seed by seed."""
    from experiments import pause_figs_2_3, pause_figs_4_5, pause_figs_8_9
    from experiments.pause_figs_2_3 import run as figs_2_3
    from experiments.pause_figs_4_5 import run as figs_4_5
    from experiments.pause_figs_8_9 import run as figs_8_9

    data = setting.read("cifar10")
    if data is None:
        return
    for seed in range(1) if setting.small else range(1, 4):
        for package, figure in (
            (pause_figs_2_3, figs_2_3), (pause_figs_4_5, figs_4_5), (pause_figs_8_9, figs_8_9),
        ):  # fmt: skip
            configs = figure.setting(None, figure.ROUNDS).configs
            if setting.small:
                configs = _least(configs) if figure is figs_2_3 else {}
            name = package.__name__.rpartition(".")[2]
            for label, config in configs.items():
                yield Step(
                    f"{name}, {label}, seed {seed}",
                    partial(_curve, setting, name, label, seed, config, data),
                )


def resnet(setting: Setting) -> Iterator[Step]:
    """Yield the runs of BSFL Fig. 9 (ResNet-18 by products), one policy and seed per step."""
    from experiments.common import bsfl_learning

    data = setting.read("cifar10")
    if data is None:
        return
    configs = bsfl_learning.curves_of(presets.bsfl_cifar10, None, iid=True, exact=False)
    if setting.small:
        configs = _least(configs)
    else:
        products = {"learning.model.convolution": "products"}
        configs = {label: config.override(products) for label, config in configs.items()}
    together = Execution(client_batch=presets.bsfl_cifar10().num_selected)
    for seed in range(1) if setting.small else range(3):
        for label, config in configs.items():
            run = partial(_curve, setting, "bsfl_fig_9", label, seed, config, data, together)
            yield Step(f"{label}, seed {seed}", run)


def _least(configs: Mapping[str, SimConfig]) -> dict[str, SimConfig]:
    label = "random"
    least = configs[label].replace(num_clients=20, num_selected=2, num_rounds=2, eval_every=2)
    return {label: least.override({"learning.model": Linear()})}


def _curve(
    setting: Setting,
    name: str,
    label: str,
    seed: int,
    config: SimConfig,
    data: Dataset,
    execution: Execution | None = None,
) -> Found:
    """Play a run of an experiment in ``OUT/NAME/runs``, from its last piece if it has any."""
    from experiments.common.curves import Run, play_all

    table = play_all([Run(label, seed, config)], setting.out / name, data, execution)
    accuracy = table.test_accuracy.dropna()
    return {"rounds": len(table), "accuracy": float(accuracy.iloc[-1])}


def _noise(shape: tuple[int, ...], count: int = 120) -> Dataset:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (count + 20, *shape), np.uint8)
    y = np.arange(count + 20, dtype=np.int32) % 10
    return Dataset.of(x[:count], y[:count], x[count:], y[count:])


PIECES: dict[str, Piece] = {
    "cohorts_cpu": Piece(cohorts, {"JAX_PLATFORMS": "cpu"}),
    "cohorts": Piece(agreement),
    "precision": Piece(precision),
    "speed": Piece(speed),
    "peers": Piece(peers),
    "without_command_buffers": Piece(
        usual_speed, {"XLA_FLAGS": "--xla_gpu_enable_command_buffer="}
    ),
    "figures": Piece(figures),
    # XLA of JAX 0.11.2 aborts when Triton multiplies the patches of this network.
    "resnet": Piece(resnet, {"XLA_FLAGS": "--xla_gpu_enable_triton_gemm=false"}),
}
