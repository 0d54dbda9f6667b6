"""Neighbours and time against K, connectivity, the proofs' paths, and the printed sign.

python -m experiments.pause_table_1.run
"""

from __future__ import annotations

import json
import pathlib
from typing import Annotated, Any

import jax
import numpy as np
import typer
from matplotlib.figure import Figure

from experiments.common import instances
from experiments.common.figures import band, save
from experiments.common.outcome import Outcome
from experiments.pause_table_1 import graphs, scaling
from experiments.search_laboratory import landscape as lab

HERE = pathlib.Path(__file__).parent


def printed_sign(outcome: Outcome, number: int, steps: int, times: float, axes: Any) -> None:
    """Compare annealing with a walk that accepts every move, as the printed rule does."""
    problems = instances.draw(jax.random.key(2), number, 60, 10, scaling.REWARD, "uniform")
    optimum = np.asarray(lab.optima(problems, 10))
    gap = {}
    for name, cooling in (("as it should read", 30.0), ("sign as printed", lab.ACCEPT_ALL)):
        keys = jax.random.split(jax.random.key(3), number)
        trace = lab.traces(keys, problems, 10, steps=steps, cooling=cooling)
        current = optimum[:, None] - np.asarray(trace.current_energy)[:, 0]
        best = lab.gap_curves(trace, optimum, 1)[:, 0, -1]
        gap[name] = current[:, -1].mean(), best.mean()
        outcome.add(
            f"acceptance rule {name}: accepts {100 * float(trace.acceptance_rate.mean()):.1f} %, "
            f"mean gap after {steps} steps {gap[name][0]:.3f}, of the best set {gap[name][1]:.3f}"
        )
        band(axes, current, name)
    axes.set(xlabel="annealing step", ylabel="gap of the current state")
    axes.legend(fontsize="small")
    right, walk = gap["as it should read"][1], gap["sign as printed"][1]
    outcome.check(
        f"the printed sign leaves the best set {walk / max(right, 1e-9):.1f} times as far from the "
        f"optimum (more than {times:g})",
        walk > times * right,
    )


def main(
    largest: Annotated[int, typer.Option(help="Largest K of the scaling runs.")] = 1620,
    sets: Annotated[int, typer.Option(help="Random sets a graph.")] = 200,
    graph_instances: Annotated[int, typer.Option(help="Graphs enumerated a size.")] = 30,
    out: Annotated[pathlib.Path, typer.Option(help="Where output is written.")] = HERE,
) -> None:
    """Run, print and draw. Exit with status 1 if a check fails."""
    rules = json.loads((HERE / "expected.json").read_text())["checks"]
    sizes = [k for k in (60, 180, 540, 1620) if k <= largest]
    outcome = Outcome(f"K = {sizes}, {sets} sets a graph, {graph_instances} graphs a size")
    figure = Figure(figsize=(12, 4), layout="constrained")
    axes: Any = figure.subplots(1, 3)
    scaling.neighbours(outcome, sizes, sets, rules["slope_within"], axes[0])
    scaling.seconds(outcome, sizes, axes[1])
    graphs.connectivity(outcome, graph_instances)
    graphs.paths(outcome)
    printed_sign(outcome, 50, 1000, rules["walk_gap_times"], axes[2])
    save(figure, out, "scaling")
    outcome.finish(out)


if __name__ == "__main__":
    typer.run(main)
