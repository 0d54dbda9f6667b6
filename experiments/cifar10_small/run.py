"""One run of the CIFAR-10 preset from start to end: its curve, its config, its time and memory.

python -m experiments.cifar10_small.run --data-dir FOLDER
"""

from __future__ import annotations

import json
import pathlib
import resource
import sys
import time
from typing import Annotated

import jax
import typer
import xarray as xr

from experiments.outcome import Outcome
from pause_jax import config_file, presets, sweep
from pause_jax.analysis.plotting import save_figures

HERE = pathlib.Path(__file__).parent
# ru_maxrss is in KiB, on macOS in bytes.
GIB = 2**30 if sys.platform == "darwin" else 2**20


def report(result: xr.Dataset, minutes: float, outcome: Outcome) -> None:
    """Add the curve and the checks."""
    run = result.isel(config=0, seed=0)
    expected = json.loads((HERE / "expected.json").read_text())
    outcome.add(f"{'round':>5} {'simulated s':>11} {'test loss':>9} {'accuracy %':>10}")
    for point in run.eval_round.values:
        at = run.sel(eval_round=point)
        outcome.add(
            f"{point:5d} {at.eval_clock.item():11.2f} {at.test_loss.item():9.3f} "
            f"{100 * at.test_accuracy.item():10.2f}"
        )
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / GIB
    outcome.check(
        f"{minutes:.1f} minutes, compilation included, below {expected['minutes_below']}",
        minutes < expected["minutes_below"],
    )
    outcome.check(
        f"peak memory {memory:.2f} GiB, below {expected['memory_gib_below']}",
        memory < expected["memory_gib_below"],
    )
    outcome.check("the model stays finite", run.first_nonfinite_round.item() == 0)
    best = 100 * run.test_accuracy.max().item()
    outcome.check(
        f"best accuracy {best:.2f} %, above {expected['best_accuracy_above']}",
        best > expected["best_accuracy_above"],
    )


def main(
    data_dir: Annotated[str | None, typer.Option(help="Folder with prepared CIFAR-10.")] = None,
    policy: str = "pause",
    rounds: int = 300,
    out: Annotated[pathlib.Path, typer.Option(help="Where output is written.")] = HERE,
) -> None:
    """Run, print and write the curve; exit status 1 if a check fails."""
    config = presets.cifar10_small(policy).replace(num_rounds=rounds)
    located = presets.cifar10_small(policy, data_dir=data_dir).replace(num_rounds=rounds)
    start = time.perf_counter()
    result = sweep({policy: located}, jax.random.split(jax.random.key(0), 1))
    minutes = (time.perf_counter() - start) / 60
    outcome = Outcome(f"cifar10_small, {policy}, {rounds} rounds, evaluated every 10")
    report(result, minutes, outcome)
    save_figures(result, out / "figures", target=0.5)
    # The folder of the data is the reader's own.
    (out / "config.toml").write_text(config_file.dumps(config))
    outcome.finish(out)


if __name__ == "__main__":
    typer.run(main)
