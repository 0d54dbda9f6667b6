"""Synchronous rounds against overlapping server steps: accuracy at equal times and budgets.

python -m experiments.event_clock.run
"""

from __future__ import annotations

import json
import pathlib
from typing import Annotated

import jax
import numpy as np
import typer
import xarray as xr

from experiments.common import claims
from experiments.common.outcome import Outcome
from experiments.event_clock import picture
from experiments.event_clock.picture import accuracy_at
from experiments.event_clock.setting import CLAIMS, CONTESTANTS, FLEETS, play

HERE = pathlib.Path(__file__).parent


def main(
    seeds: Annotated[int, typer.Option(help="Of each fleet.")] = 16,
    rounds: Annotated[int, typer.Option(help="Random rounds that fit the time.")] = 60,
    only: Annotated[str, typer.Option(help="Fleets, with commas; all by default.")] = "",
    out: Annotated[pathlib.Path, typer.Option(help="Where output is written.")] = HERE,
) -> None:
    """Run, print and write. Exit with status 1 if a check fails."""
    keys = jax.random.split(jax.random.key(0), seeds)
    rules = json.loads((HERE / "expected.json").read_text())
    outcome = Outcome(f"digits, 60 clients: accuracy in % after equal seconds, {seeds} seeds")
    clocks = "fedbuff: C = 10, B = 5, O = 1; paced: C = b = 10, B = 20, O = 1; rounds: m = 5"
    outcome.add(clocks, f"time of {rounds} random rounds", "")
    family: list[claims.Claim] = []
    played: dict[str, tuple[xr.Dataset, float]] = {}
    for fleet in only.split(",") if only else list(FLEETS):
        result, seconds = played[fleet] = play(FLEETS[fleet], keys, rounds)
        accuracy, steps = accuracy_at(result, seconds), result.num_played
        outcome.add(
            f"{fleet}, {seconds:.1f} s{'accuracy':>20}{'steps':>8}{'starts':>8}{'wait s':>8}"
            f"{'staleness':>11}"
        )
        for name in CONTESTANTS:
            own, run = accuracy.sel(config=name), result.sel(config=name)
            starts, wait = run.counts.sum("client").mean(), run.waiting.mean()
            cells = f"{float(own.mean()):8.1f}±{float(own.std()):.1f}"
            cells += f"{float(run.num_played.mean()):8.0f}{float(starts):8.0f}"
            age = run.staleness.where(run.staleness >= 0).mean()
            outcome.add(f"  {name:20}{cells}{float(wait):7.2f}{float(age):11.2f}")
        gain = {name: accuracy.sel(config=name).values for name in CONTESTANTS}
        for one, other in CLAIMS:
            claim = f"{fleet}: {one} above {other}"
            family.append(claims.larger(claim, gain[one], gain[other], "points"))
        for rule in rules:
            ratio = float((steps.sel(config=rule["one"]) / steps.sel(config=rule["other"])).mean())
            passed = rule["at_least"] <= ratio <= rule["at_most"]
            outcome.check(f"{fleet}: {rule['claim']} ({ratio:.2f})", passed)
        ended = bool(np.all(result["clock"].max("round") >= seconds))
        outcome.check(f"{fleet}: the clock ends every run", ended)
        jax.clear_caches()
    outcome.add("")
    outcome.judge(family)
    picture.draw(played, out)
    outcome.finish(out)


if __name__ == "__main__":
    typer.run(main)
