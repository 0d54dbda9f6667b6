"""Index rules under the same PAUSE maximisation, with two latency models.

python -m experiments.index_rules.run
"""

from __future__ import annotations

import json
import pathlib
from typing import Annotated

import jax
import typer
import xarray as xr

from experiments.common import regret_setting
from experiments.common.outcome import Outcome
from pause_jax import regret
from pause_jax.policies import KlUcb, Pause, Thompson, Ucb, UcbV
from pause_jax.world.latency import SpeedNormal, TwoGroups

HERE = pathlib.Path(__file__).parent
RULES = (Ucb, KlUcb, UcbV, Thompson)


def main(
    rounds: int = 10_000,
    seeds: int = 32,
    out: Annotated[pathlib.Path, typer.Option(help="Where output is written.")] = HERE,
) -> None:
    """Run, print and write the comparison. Exit with status 1 if a check fails."""
    rules = json.loads((HERE / "expected.json").read_text())
    keys = jax.random.split(jax.random.key(0), seeds)
    outcome = Outcome(f"{seeds} seeds, {rounds} rounds, K = 20, m = 5, alpha = 3, beta = 1.2")
    panels: dict[str, xr.DataArray] = {}
    for latency in (TwoGroups(), SpeedNormal()):
        curves = regret.measure(
            {
                rule.name: regret_setting.config(Pause(index=rule()), rounds, latency)
                for rule in RULES
            },
            keys,
        )
        panels[latency.name] = curves
        outcome.add(f"-- {latency.name}", regret.HEADING, *map(str, regret.rows(curves)))
        for at in rules["rounds"]:
            if at > rounds:
                continue
            # Every rule meets the same worlds, so seeds are paired.
            ratio = curves.sel(config="ucb", round=at) / curves.sel(round=at)
            for rule in ("kl_ucb", "ucb_v", "thompson"):
                times = ratio.sel(config=rule)
                mean, low = times.mean().item(), times.min().item()
                what = f"{latency.name}: {rule} has {mean:.1f} times less regret at {at}"
                what += f" (least of all seeds {low:.1f})"
                if rule == rules["recommended"]:
                    least = rules["times_less_at_least"]
                    outcome.check(f"{what}, at least {least} in every seed", low >= least)
                else:
                    outcome.add(what)
    regret_setting.draw(panels, out)
    outcome.finish(out)


if __name__ == "__main__":
    typer.run(main)
