"""Rounds against rounds that overlap: accuracy after equal seconds, with equal budgets.

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

from experiments import claims
from experiments.outcome import Outcome
from pause_jax import Asynchronous, Learning, SimConfig, sweep
from pause_jax.latency import LogNormal, Network, Pareto
from pause_jax.learning import Digits, Dirichlet, Mlp
from pause_jax.policies import named
from pause_jax.privacy import PerCoordinateLaplace, Uniform
from pause_jax.world.availability import Diurnal

HERE = pathlib.Path(__file__).parent
BUDGET = Uniform(total_epsilon=20_000.0, horizon=100.0)
BASE = SimConfig(
    num_clients=60, num_selected=5, num_rounds=2000, eval_every=5, track_regret=False,
    privacy=PerCoordinateLaplace(sensitivity=0.003, budget=BUDGET),
    learning=Learning(data=Digits(), model=Mlp(hidden=(32,)), partition=Dirichlet()),
)  # fmt: skip
FLEETS = {
    "equal": BASE.replace(latency=LogNormal(fastest=0.4, slowest=0.4)),
    "tails": BASE.replace(latency=Pareto()),
    "phones": BASE.replace(
        latency=Network(), availability_trace=Diurnal(recheck=30.0), dropout=0.1
    ),
}
FEDBUFF = Asynchronous(concurrency=10, buffer=5, open_slots=1)
# By name: the policy, and whether rounds overlap.
CONTESTANTS = {
    "rounds, random": ("random", False),
    "rounds, pause": ("pause", False),
    "fedbuff, random": ("random", True),
    "fedbuff, pause": ("pause", True),
    "fedbuff, fastest": ("fastest", True),
}


def play(base: SimConfig, keys: jax.Array, rounds: int) -> tuple[xr.Dataset, float]:
    """All contestants, and the seconds in which random rounds play ``rounds``."""
    alone = base.replace(policy=named("random"), num_rounds=rounds)
    clock = sweep(alone, keys[:4], record=("clock",), progress=False).clock
    seconds = float(clock.isel(round=-1).mean())
    base = base.replace(max_seconds=seconds)
    configs = {
        name: base.replace(policy=named(policy), **({"clock": FEDBUFF} if overlap else {}))
        for name, (policy, overlap) in CONTESTANTS.items()
    }
    record = "clock", "eval_clock", "test_accuracy", "num_played", "counts", "waiting"
    return sweep(configs, keys, record=record, progress=False), seconds


def accuracy_at(result: xr.Dataset, seconds: float) -> xr.DataArray:
    """Accuracy in %, [config, seed], at the last evaluation by then, or at the first of all."""
    by_then = (result.eval_clock <= seconds).sum("eval_round")
    return 100 * result.test_accuracy.isel(eval_round=(by_then - 1).clip(0))


def main(
    seeds: Annotated[int, typer.Option(help="Of each fleet.")] = 16,
    rounds: Annotated[int, typer.Option(help="Random rounds that fit the time.")] = 60,
    only: Annotated[str, typer.Option(help="Fleets, with commas; all by default.")] = "",
    out: Annotated[pathlib.Path, typer.Option(help="Where output is written.")] = HERE,
) -> None:
    """Play, print and write; exit status 1 if a check fails."""
    keys = jax.random.split(jax.random.key(0), seeds)
    rules = json.loads((HERE / "expected.json").read_text())
    outcome = Outcome(f"digits, 60 clients: accuracy in % after equal seconds, {seeds} seeds")
    outcome.add(f"fedbuff: C = 10, B = 5, O = 1; rounds: m = 5; time of {rounds} random rounds", "")
    family: list[claims.Claim] = []
    for fleet in only.split(",") if only else list(FLEETS):
        result, seconds = play(FLEETS[fleet], keys, rounds)
        accuracy, steps = accuracy_at(result, seconds), result.num_played
        outcome.add(
            f"{fleet}, {seconds:.1f} s{'accuracy':>20}{'steps':>8}{'starts':>8}{'wait s':>8}"
        )
        for name in CONTESTANTS:
            own, run = accuracy.sel(config=name), result.sel(config=name)
            starts, wait = run.counts.sum("client").mean(), run.waiting.mean()
            cells = f"{float(own.mean()):8.1f}±{float(own.std()):.1f}"
            cells += f"{float(run.num_played.mean()):8.0f}{float(starts):8.0f}"
            outcome.add(f"  {name:20}{cells}{float(wait):7.2f}")
        gain = {name: accuracy.sel(config=name).values for name in CONTESTANTS}
        pairs = (
            ("fedbuff, random", "rounds, pause"),
            ("fedbuff, pause", "fedbuff, random"),
            ("fedbuff, random", "fedbuff, fastest"),
        )
        for one, other in pairs:
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
    outcome.finish(out)


if __name__ == "__main__":
    typer.run(main)
