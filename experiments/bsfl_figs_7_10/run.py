"""BSFL Fig. 7 (left) and Fig. 10 (left): regret while a linear model is trained.

python -m experiments.bsfl_figs_7_10.run
"""

from __future__ import annotations

import json
import pathlib
from typing import Annotated

import jax
import typer
import xarray as xr

from experiments import regret_setting
from experiments.outcome import Outcome
from pause_jax import SimConfig, presets, regret
from pause_jax.policies import PowerOfChoice, Random

HERE = pathlib.Path(__file__).parent


def panels(rounds: int) -> dict[str, dict[str, SimConfig]]:
    """The policies of the two figures; BSFL's power-of-choice ranks all clients by latest loss."""
    everyone = PowerOfChoice(loss="stale", candidates=20)
    iid = {
        name: presets.bsfl_linear(name) for name in ("bsfl", "alsa", "cs_ucb", "rbcs_f", "random")
    }
    iid["power_of_choice"] = presets.bsfl_linear(everyone)
    other = {
        name: presets.bsfl_linear_noniid(name) for name in ("bsfl", "alsa", "cs_ucb_q", "rbcs_f")
    }
    other["random"] = presets.bsfl_linear_noniid(Random(weighting="data"))
    other["power_of_choice"] = presets.bsfl_linear_noniid(everyone)
    return {
        title: {
            name: config.replace(num_rounds=rounds, eval_every=rounds)
            for name, config in configs.items()
        }
        for title, configs in (
            ("Fig. 7, left: i.i.d.", iid),
            ("Fig. 10, left: non-i.i.d.", other),
        )
    }


def main(
    rounds: int = 10_000,
    seeds: int = 10,
    out: Annotated[pathlib.Path, typer.Option(help="Where output is written.")] = HERE,
) -> None:
    """Run, print and write the comparison; exit status 1 if a check fails."""
    rules = json.loads((HERE / "expected.json").read_text())
    outcome = Outcome(f"{seeds} seeds, {rounds} rounds, K = 20, m = 5, speed_normal, linear model")
    keys = jax.random.split(jax.random.key(0), seeds)
    drawn: dict[str, xr.DataArray] = {}
    for title, configs in panels(rounds).items():
        curves = drawn[title] = regret.measure(configs, keys)
        table = {row.name: row for row in regret.rows(curves)}
        outcome.add(f"-- {title}", regret.HEADING, *map(str, table.values()))
        least = min(
            (row for row in table.values() if row.name not in rules["sublinear"]),
            key=lambda row: row.regret,
        )
        for name in rules["sublinear"]:
            grown, most = table[name].growth.exponent, rules["exponent_at_most"][name]
            outcome.check(f"{title}: {name} has exponent {grown:.2f} <= {most}", grown <= most)
        share = table["bsfl"].regret / least.regret
        outcome.check(
            f"{title}: bsfl has {share:.2f} of the regret of the next, {least.name}",
            share <= rules["share_at_most"],
        )
        for name, row in table.items():
            if name not in rules["sublinear"]:
                grown, edge = row.growth.exponent, rules["linear_at_least"]
                outcome.check(f"{title}: {name} has exponent {grown:.2f} >= {edge}", grown >= edge)
    regret_setting.draw(drawn, out)
    outcome.finish(out)


if __name__ == "__main__":
    typer.run(main)
