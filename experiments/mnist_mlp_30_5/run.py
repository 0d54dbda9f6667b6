"""Reproduce the authors' recorded MNIST runs and check them against their numbers.

python -m experiments.mnist_mlp_30_5.run --data-dir FOLDER
"""

from __future__ import annotations

import json
import pathlib
from typing import Annotated, Any

import jax
import typer
import xarray as xr

from experiments.outcome import Outcome
from pause_jax import SimConfig, metrics, presets, sweep
from pause_jax.analysis.plotting import save_figures
from pause_jax.privacy import NoPrivacy

HERE = pathlib.Path(__file__).parent
# As the authors did: a peak is the peak over all rounds.
EVAL_EVERY = 1


def configs(data_dir: str | None, rounds: int) -> dict[str, SimConfig]:
    """The six runs that the authors recorded."""
    named = {
        policy: presets.mnist_small(policy, data_dir=data_dir)
        for policy in ("pause", "sa_pause", "random", "fastest", "all")
    }
    named["all, no privacy"] = named["all"].replace(privacy=NoPrivacy())
    return {
        name: config.replace(num_rounds=rounds, eval_every=EVAL_EVERY)
        for name, config in named.items()
    }


def compare(result: xr.Dataset, expected: dict[str, Any], outcome: Outcome) -> None:
    """Add a table, ours beside theirs, and the checks."""
    rules = expected["checks"]
    outcome.add(f"{'policy':16} {'quantity':22} {'authors':>9} {'ours, mean':>11} {'sd':>7}")

    def add(policy: str, quantity: str, theirs: float, ours: xr.DataArray) -> tuple[float, float]:
        mean, sd = ours.mean().item(), ours.std(ddof=1).item()
        outcome.add(f"{policy:16} {quantity:22} {theirs:9.2f} {mean:11.2f} {sd:7.2f}")
        return mean, sd

    for policy, theirs in expected["authors"].items():
        one = result.sel(config=policy)
        last = min(theirs["last_round"], result.sizes["round"])
        seconds = one.clock.sel(round=last)
        mean, _ = add(policy, f"seconds at round {last}", theirs["seconds"], seconds)
        if (bound := rules["seconds_within_percent"].get(policy)) is not None:
            off = 100 * abs(mean / theirs["seconds"] - 1)
            outcome.check(f"{policy}: seconds within {bound} %", off <= bound)
        for at, accuracy in theirs["accuracy"].items():
            if int(at) not in result.eval_round:
                continue
            ours = 100 * one.test_accuracy.sel(eval_round=int(at))
            mean, sd = add(policy, f"accuracy % at {at}", accuracy, ours)
            if policy in rules["accuracy_within_sd"]["policies"]:
                deviations = rules["accuracy_within_sd"]["deviations"]
                outcome.check(
                    f"{policy}: accuracy at {at} within {deviations} sd",
                    abs(accuracy - mean) <= deviations * sd,
                )
        peak = 100 * one.test_accuracy.max("eval_round")
        add(policy, "peak accuracy %", theirs["peak_accuracy"], peak)
        collapse = rules["collapse"]
        if policy in collapse["policies"]:
            end = 100 * metrics.final_accuracy(result).sel(config=policy)
            add(policy, "accuracy % at the end", list(theirs["accuracy"].values())[-1], end)
            above = int((peak > collapse["peak_above"]).sum())
            outcome.check(
                f"{policy}: mean peak above {collapse['peak_above']} % "
                f"({above} of {peak.size} seeds, lowest {peak.min().item():.1f} %)",
                peak.mean().item() > collapse["peak_above"],
            )
            outcome.check(
                f"{policy}: end below {collapse['end_below']} % in every seed",
                (end < collapse["end_below"]).all(),
            )


def main(
    data_dir: Annotated[str | None, typer.Option(help="Folder with prepared MNIST.")] = None,
    seeds: int = 5,
    rounds: int = 300,
    out: Annotated[pathlib.Path, typer.Option(help="Where output is written.")] = HERE,
) -> None:
    """Run, print and write the comparison; exit status 1 if a check fails."""
    keys = jax.random.split(jax.random.key(0), seeds)
    result = sweep(configs(data_dir, rounds), keys)
    expected = json.loads((HERE / "expected.json").read_text())
    outcome = Outcome(f"{seeds} seeds, {rounds} rounds")
    compare(result, expected, outcome)
    save_figures(result, out / "figures", target=0.8)
    outcome.finish(out)


if __name__ == "__main__":
    typer.run(main)
