"""PAUSE authors' recorded CIFAR-10 setting: cnn3 with batch norm, eps_bar = 100, 300 rounds.

python -m experiments.cifar10_small.run --data-dir FOLDER
"""

from __future__ import annotations

import functools
import json
import math
import pathlib
from typing import Annotated, Any

import numpy as np
import typer

from experiments.common import learning_figure
from experiments.common.curves import play_all, runs_of
from experiments.common.learning_figure import Curves
from experiments.common.outcome import Outcome
from pause_jax import SimConfig, presets
from pause_jax.learning import Cnn3

HERE = pathlib.Path(__file__).parent
POLICIES = ("pause", "sa_pause", "random", "fastest")
# The same run with the preset's norm, under which all weights are clipped and noised.
PROTECTED = "pause, all weights protected"


def configs(data_dir: str | None, rounds: int) -> dict[str, SimConfig]:
    """Return the configs of the recorded policies, and of pause with all weights protected."""
    preset = presets.cifar10_small(data_dir=data_dir).replace(
        num_rounds=rounds, eval_every=5, track_regret=False
    )
    authors = preset.override({"learning.model": Cnn3(norm="batch")})
    return {
        **{name: authors.replace(policy=presets.cifar10_small(name).policy) for name in POLICIES},
        PROTECTED: preset,
    }


def check(curves: Curves, rules: dict[str, Any], outcome: Outcome) -> None:
    """Add a table and the checks, based on single evaluations without smoothing."""
    at = {
        name: {
            round: 100 * np.mean([_at(curves, name, seed, round) for seed in curves.seeds(name)])
            for round in rules["rounds"]
        }
        for name in curves.labels
    }
    outcome.add(f"{'accuracy % at round':30}" + "".join(f"{r:>7}" for r in rules["rounds"]))
    for name, found in at.items():
        outcome.add(f"{name:30}" + "".join(f"{value:7.1f}" for value in found.values()))
    pause = at["pause"]
    least = rules["pause_at_least"]
    outcome.check(
        f"pause at {least[0]}: {pause[least[0]]:.1f} >= {least[1]}", pause[least[0]] >= least[1]
    )
    low, high = rules["pause_at_300"]
    outcome.check(f"pause at 300: {pause[300]:.1f} in {low} to {high}", low <= pause[300] <= high)
    for name in ("random", "sa_pause"):
        apart, most = abs(at[name][300] - pause[300]), rules["apart_at_most"]
        outcome.check(f"{name} at 300 is {apart:.1f} from pause, <= {most}", apart <= most)
    peaks = [100 * curves.run("fastest", s).test_accuracy.max() for s in curves.seeds("fastest")]
    low, high = rules["fastest_peak"]
    outcome.check(
        f"fastest peaks at {np.mean(peaks):.1f}, {low} to {high}", low <= np.mean(peaks) <= high
    )
    end, most = at["fastest"][300], rules["fastest_ends_below"]
    outcome.check(f"fastest ends at {end:.1f} < {most}", end < most)


def _at(curves: Curves, name: str, seed: int, round: int) -> float:
    run = curves.run(name, seed).set_index("round")
    return float(run.test_accuracy.get(round, math.nan))


def main(
    data_dir: Annotated[str | None, typer.Option(help="Folder with prepared CIFAR-10.")] = None,
    seeds: int = 3,
    rounds: int = 300,
    out: Annotated[pathlib.Path, typer.Option(help="Where output is written.")] = HERE,
) -> None:
    """Play missing runs, print and write. Exit with status 1 if a check fails."""
    curves = Curves(play_all(runs_of(configs(data_dir, rounds), seeds), out))
    outcome = Outcome(f"CIFAR-10, cnn3, K = 30, m = 5, eps_bar = 100; {seeds} seed(s)")
    outcome.add(*curves.summary(), "")
    check(curves, json.loads((HERE / "expected.json").read_text()), outcome)
    draw = functools.partial(learning_figure.draw_curves, curves, quantity="test_accuracy")
    learning_figure.save([draw], out, "accuracy")
    outcome.finish(out)


if __name__ == "__main__":
    typer.run(main)
