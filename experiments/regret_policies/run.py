"""Regret of every registered policy, with the papers' bounds.

python -m experiments.regret_policies.run
"""

from __future__ import annotations

import json
import pathlib
import time
from typing import Annotated

import jax
import numpy as np
import typer

from experiments.common import regret_setting
from experiments.common.outcome import Outcome
from pause_jax import regret
from pause_jax.bandit.search import Annealing
from pause_jax.policies import NAMED, Pause, PolicyConfig, named

HERE = pathlib.Path(__file__).parent
# Without learning, these policies choose like others: all losses are equal, no updates exist to
# compare, and exhaustive search agrees with exact search.
SAME = {
    "cpow_d": "power_of_choice",
    "rpow_d": "power_of_choice",
    "adapow_d": "power_of_choice",
    "clustered_similarity": "clustered_size",
    "pause_exhaustive": "pause",
}
NEVER_WRONG = ("genie", "all")
# Policies in the figure, where more curves would hide each other. The table has all policies.
DRAWN = (
    "pause", "pause_kl_ucb", "pause_ucb_v", "pause_thompson", "pause_discounted",
    "pause_useful_rate", "sa_pause", "alsa", "rbcs_f", "round_robin", "cs_ucb", "oort", "random",
    "fastest",
)  # fmt: skip


def policies(names: list[str], steps: int) -> dict[str, PolicyConfig]:
    """Return registered policies by name, with ``steps`` annealing steps in their searches.

    Raises:
      ConfigError: if a name is unknown.
    """
    chosen = {}
    for name in names:
        policy = named(name)
        if isinstance(policy, Pause) and isinstance(policy.search, Annealing):
            policy = policy.replace(search=policy.search.replace(steps=steps))
        chosen[name] = policy
    return chosen


def main(
    rounds: int = 10_000,
    seeds: int = 32,
    steps: Annotated[int, typer.Option(help="Annealing steps a round.")] = 200,
    only: Annotated[str, typer.Option(help="Comma-separated policies; all if left out.")] = "",
    out: Annotated[pathlib.Path, typer.Option(help="Where output is written.")] = HERE,
) -> None:
    """Run, print and write the comparison. Exit with status 1 if a check fails."""
    rules = json.loads((HERE / "expected.json").read_text())
    names = only.split(",") if only else [name for name in NAMED if name not in SAME]
    configs = {
        name: regret_setting.config(policy, rounds)
        for name, policy in policies(names, steps).items()
    }
    start = time.perf_counter()
    curves = regret.measure(configs, jax.random.split(jax.random.key(0), seeds))
    seconds = time.perf_counter() - start

    outcome = Outcome(f"{seeds} seeds, {rounds} rounds, K = 20, m = 5, two_groups, {steps} steps")
    outcome.add(regret.HEADING)
    table = {row.name: row for row in regret.rows(curves)}
    outcome.add(*map(str, table.values()))
    base = configs[names[0]]
    speed = np.asarray(base.latency.expected_speed(base.num_clients))
    outcome.add(f"delta, least gap of expected speeds: {regret.smallest_gap(speed):.2e}")
    n = np.arange(1, rounds + 1)
    for paper, bound in regret.bounds_of(base, n).items():
        outcome.add(f"bound of {paper} at n = {rounds}: {bound[-1]:.3g}")
        for name in rules["below_bound"]:
            if name in names:
                outcome.check(
                    f"{name} is below the bound of {paper} in every round and seed",
                    (curves.sel(config=name).values <= bound).all(),
                )
    outcome.add(*(f"{name}: as {other} without learning" for name, other in SAME.items()))
    for name, most in rules["exponent_at_most"].items():
        if name in names:
            grown = table[name].growth.exponent
            outcome.check(f"{name} is sublinear: exponent {grown:.2f} <= {most}", grown <= most)
    for name, least in rules["exponent_at_least"].items():
        if name in names:
            grown = table[name].growth.exponent
            outcome.check(f"{name} is linear: exponent {grown:.2f} >= {least}", grown >= least)
    for name in NEVER_WRONG:
        if name in names:
            last = table[name].regret
            outcome.check(f"{name} has no regret: {last:.1e}", last < rules["no_regret"])
    curves = curves.sel(config=[name for name in DRAWN if name in names])
    regret_setting.draw({"regret without learning, two_groups": curves}, out)
    typer.echo(f"{seconds:.0f} s for {len(names)} policies")
    outcome.finish(out)


if __name__ == "__main__":
    typer.run(main)
