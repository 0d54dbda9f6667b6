"""Reproduce the authors' recorded MNIST runs, and compare with the authors' numbers.

python -m experiments.mnist_mlp_30_5.run --data-dir FOLDER
"""

from __future__ import annotations

import json
import pathlib
from typing import Annotated, Any

import jax
import numpy as np
import typer
import xarray as xr

from experiments.common.claims import undetected
from experiments.common.outcome import Outcome
from experiments.mnist_mlp_30_5 import prediction
from pause_jax import SimConfig, metrics, presets, sweep
from pause_jax.analysis.plotting import save_figures
from pause_jax.privacy import NoPrivacy

HERE = pathlib.Path(__file__).parent
# As in the authors' runs, whose peak accuracy is the maximum over all rounds.
EVAL_EVERY = 1


def configs(data_dir: str | None, rounds: int) -> dict[str, SimConfig]:
    """Return the configs of the six runs that the authors recorded."""
    named = {
        policy: presets.mnist_small(policy, data_dir=data_dir)
        for policy in ("pause", "sa_pause", "random", "fastest", "all")
    }
    named["all, no privacy"] = named["all"].replace(privacy=NoPrivacy())
    return {
        name: config.replace(num_rounds=rounds, eval_every=EVAL_EVERY)
        for name, config in named.items()
    }


def figures(theirs: dict[str, Any], one: xr.Dataset) -> dict[str, tuple[float, np.ndarray]]:
    """Return name -> (the authors' value, ours [seed]), with rounds clipped to our last."""
    accuracy = 100 * one.test_accuracy.sel(eval_round=slice(None, theirs["last_round"]))
    pairs = {"peak accuracy %": (theirs["peak_accuracy"], accuracy.max("eval_round"))}
    for name, ours, axis in (
        ("seconds", one.clock, "round"),
        ("accuracy", accuracy, "eval_round"),
    ):
        for at, value in theirs[name].items():
            pairs[f"{name} at {at}"] = value, ours.sel({axis: min(int(at), one.sizes["round"])})
    return {name: (value, ours.values.astype(float)) for name, (value, ours) in pairs.items()}


def compare(result: xr.Dataset, expected: dict[str, Any], outcome: Outcome) -> None:
    """Add a table of our and the authors' values, the checks and the verdicts."""
    authors, rules = expected["authors"], expected["checks"]
    level, seeds = rules["level"], result.sizes["seed"]
    pairs = {
        (policy, name): pair
        for policy, theirs in authors.items()
        for name, pair in figures(theirs, result.sel(config=policy)).items()
    }
    tested = prediction.tests(pairs)
    outcome.add(f"{'policy':16} {'figure':16} {prediction.HEADING}")
    outcome.add(*(f"{policy:16} {name:16} {row}" for (policy, name), row in tested.items()))
    low = sum(row.t < level for row in tested.values())
    outcome.add(f"{low} of {len(tested)} p of t are below {level} before Holm's correction")
    outcome.add(f"by rank no p can be below {2 / (seeds + 1):.3f} with {seeds} seeds")
    family = []
    for policy in authors:
        p, name = min((row.t, name) for (other, name), row in tested.items() if other == policy)
        corrected = tested[policy, name].corrected
        what = f"{policy}: the authors' run is a draw from ours"
        evidence = f"least p {p:.2g}, after Holm {corrected:.2g}: {name}"
        outcome.check(f"{what} ({evidence})", corrected >= level)
        family.append(undetected(f"recorded runs: {what}", corrected, evidence, level))
    outcome.judge(family)
    apart = [
        min(row.corrected for row in prediction.tests(figures(theirs, other)).values())
        for policy, theirs in authors.items()
        for other in (result.sel(config=o) for o in authors if o != policy)
    ]
    outcome.check(
        f"a run of theirs is no draw from ours of another policy, in {len(apart)} pairs "
        f"(largest of the least p {max(apart):.1e})",
        max(apart) < level,
    )
    for policy in rules["collapse"]["policies"]:
        end = 100 * metrics.final_accuracy(result).sel(config=policy)
        below = rules["collapse"]["end_below"]
        outcome.check(f"{policy}: end below {below} % in every seed", (end < below).all())


def main(
    data_dir: Annotated[str | None, typer.Option(help="Folder with prepared MNIST.")] = None,
    seeds: int = 20,
    rounds: int = 300,
    out: Annotated[pathlib.Path, typer.Option(help="Where output is written.")] = HERE,
) -> None:
    """Run, print and write the comparison. Exit with status 1 if a check fails."""
    keys = jax.random.split(jax.random.key(0), seeds)
    result = sweep(configs(data_dir, rounds), keys)
    expected = json.loads((HERE / "expected.json").read_text())
    outcome = Outcome(f"{seeds} seeds, {rounds} rounds")
    compare(result, expected, outcome)
    save_figures(result, out / "figures", target=0.8)
    outcome.finish(out)


if __name__ == "__main__":
    typer.run(main)
