"""Optimality gap of annealing by steps and chains, in states of bandit runs with 15 of 300.

python -m experiments.search_gap.run
"""

from __future__ import annotations

import json
import pathlib
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
import typer
from matplotlib.figure import Figure

from experiments.common import instances
from experiments.common.figures import save
from experiments.common.outcome import Outcome
from experiments.search_laboratory import landscape as lab
from pause_jax import presets

HERE = pathlib.Path(__file__).parent


def main(
    seeds: int = 5,
    states: Annotated[int, typer.Option(help="Rounds of each run that are taken.")] = 20,
    num_clients: int = 300,
    num_selected: int = 15,
    rounds: int = 500,
    steps: int = 3000,
    chains: Annotated[int, typer.Option(help="A power of 4.")] = 64,
    out: Annotated[pathlib.Path, typer.Option(help="Where output is written.")] = HERE,
) -> None:
    """Run, print and draw. Exit with status 1 if a check fails."""
    expected: dict[str, Any] = json.loads((HERE / "expected.json").read_text())
    config = presets.mnist_large("pause").replace(
        learning=None, num_clients=num_clients, num_selected=num_selected, num_rounds=rounds
    )
    # Start after the rounds in which every client is tried for the first time.
    at = np.linspace(2 * -(-num_clients // num_selected), rounds, states).astype(int)
    outcome = Outcome(
        f"{num_selected} of {num_clients}, {seeds * states} instances: {states} rounds from "
        f"{at[0]} to {at[-1]} of {seeds} runs; {steps} steps, kappa = 30"
    )
    groups = [4**i for i in range(4) if 4**i <= chains]
    marks = sorted({max(1, steps // d) for d in (30, 10, 3, 1)})
    gaps: dict[int, list[Any]] = {c: [] for c in groups}
    optima = []
    find = jax.jit(instances.from_run)
    for key in jax.random.split(jax.random.key(0), seeds):
        problems = find(config, key, jnp.asarray(at))
        keys = jax.random.split(jax.random.fold_in(key, 1), states)
        trace = lab.traces(keys, problems, num_selected, steps=steps, chains=chains, cooling=30.0)
        optimum = np.asarray(lab.optima(problems, num_selected))
        optima.append(optimum)
        for c in groups:
            gaps[c].append(lab.gap_curves(trace, optimum, c))
    optimum = np.concatenate(optima)
    curves = {c: np.concatenate(parts) for c, parts in gaps.items()}
    found = {c: lab.at_optimum(curve, optimum) for c, curve in curves.items()}

    outcome.add("mean gap (% of instances at the optimum) of the best of some chains after steps:")
    outcome.add("chains" + "".join(f"{step:>18}" for step in marks))
    for c in groups:
        cells = [
            f"{curves[c][..., s - 1].mean():8.4f} ({100 * found[c][..., s - 1].mean():5.1f} %)"
            for s in marks
        ]
        outcome.add(f"{c:6}" + "".join(f"{cell:>18}" for cell in cells))
    for c in (groups[0], groups[-1]):
        levels = (0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 1.0)
        values = np.quantile(curves[c][..., -1], levels)
        listed = ", ".join(f"{100 * q:g} %: {v:.4f}" for q, v in zip(levels, values, strict=True))
        outcome.add(f"quantiles of the gap at the end, {c} chains: {listed}")
    outcome.add(
        f"optimum: mean {optimum.mean():.3f}, from {optimum.min():.3f} to {optimum.max():.3f}"
    )
    least = min(((c / (1 + abs(optimum[:, None, None]))).min()) for c in curves.values())
    outcome.check(
        f"annealing is never better than exact (least gap {least:.1e} of 1 + |optimum|)",
        least >= -lab.TOLERANCE,
    )
    share = 100 * found[1][..., -1].mean()
    below = expected["checks"]["one_chain_percent_at_optimum_below"]
    outcome.check(
        f"one chain of {steps} steps misses the optimum in most instances (at it: {share:.1f} %)",
        share < below,
    )
    figure = Figure(figsize=(9, 4), layout="constrained")
    left, right = figure.subplots(1, 2, sharex=True)
    for c in groups:
        x = np.arange(1, steps + 1)
        left.loglog(x, curves[c].mean(axis=(0, 1)), label=f"{c} chains")
        right.semilogx(x, 100 * found[c].mean(axis=(0, 1)), label=f"{c} chains")
    left.set(xlabel="annealing step", ylabel="mean optimality gap")
    right.set(xlabel="annealing step", ylabel="instances at the optimum, %")
    left.legend(fontsize="small")
    save(figure, out, "gap_vs_step")
    outcome.finish(out)


if __name__ == "__main__":
    typer.run(main)
