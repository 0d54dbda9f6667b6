"""Annealing compared with the exact search on random instances, and its search graphs.

python -m experiments.search_laboratory.run
"""

from __future__ import annotations

import pathlib
from typing import Annotated

import jax
import numpy as np
import typer
from matplotlib.figure import Figure

from experiments.common import figures, instances
from experiments.common.outcome import Outcome
from experiments.search_laboratory import landscape as laboratory
from pause_jax import Reward

HERE = pathlib.Path(__file__).parent
CHAINS = 8
COOLING = 30.0  # kappa


def main(
    number: Annotated[int, typer.Option(help="Random instances.")] = 100,
    num_clients: Annotated[int, typer.Option(help="K.")] = 12,
    num_selected: Annotated[int, typer.Option(help="m.")] = 4,
    steps: Annotated[int, typer.Option(help="Annealing steps of a chain.")] = 60,
    out: Annotated[pathlib.Path, typer.Option(help="Where output is written.")] = HERE,
) -> None:
    """Print a table with one row per neighbourhood, and draw the gap against the annealing step."""
    problems = instances.draw(
        jax.random.key(0), number, num_clients, num_selected, Reward(), "uniform"
    )
    optimum = np.asarray(laboratory.optima(problems, num_selected))
    members = laboratory.enumerate_sets(num_clients, num_selected)
    first = jax.tree.map(lambda leaf: leaf[0], problems)
    keys = jax.random.split(jax.random.key(1), number)
    outcome = Outcome(
        f"{number} instances, {num_selected} of {num_clients} clients, {len(members)} cohorts, "
        f"{steps} steps"
    )
    outcome.add(f"{'':10}{'neighbours':>12}{'accepted':>10}{'1 chain':>10}{CHAINS:>4} chains")
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    for rule in ("pause", "alsa", "vanilla"):
        landscape = laboratory.landscape_for(keys[0], first, num_selected, rule)
        graph = laboratory.search_graph(landscape, members)
        outcome.check(f"{rule}: the search graph is connected", laboratory.is_connected(graph))
        trace = laboratory.traces(
            keys, problems, num_selected,
            neighbourhood=rule, steps=steps, chains=CHAINS, cooling=COOLING,
        )  # fmt: skip
        gaps = {chains: laboratory.gap_curves(trace, optimum, chains) for chains in (1, CHAINS)}
        found = {
            chains: laboratory.at_optimum(gap, optimum)[..., -1].mean()
            for chains, gap in gaps.items()
        }
        outcome.add(
            f"{rule:10}{graph.sum(axis=1).mean():12.1f}"
            f"{float(trace.acceptance_rate.mean()):10.0%}{found[1]:10.0%}{found[CHAINS]:11.0%}"
        )
        least = min(gap.min() for gap in gaps.values())
        outcome.check(
            f"{rule}: annealing is never better than the exact search",
            least >= -laboratory.TOLERANCE * (1 + np.abs(optimum).max()),
        )
        figures.band(axes, gaps[1].reshape(-1, steps), rule)
    axes.set(xlabel="annealing step", ylabel="gap to the exact optimum, one chain")
    axes.legend(fontsize="small")
    figures.save(figure, out, "gap")
    outcome.finish(out)


if __name__ == "__main__":
    typer.run(main)
