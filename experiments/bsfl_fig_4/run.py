"""Energy by annealing step for ALSA, SA and SA-PAUSE, and how often ALSA is ahead of SA.

python -m experiments.bsfl_fig_4.run
"""

from __future__ import annotations

import json
import math
import pathlib
from typing import Annotated, Any

import jax
import numpy as np
import typer
from matplotlib.figure import Figure
from numpy.typing import NDArray

from experiments.common import claims, instances
from experiments.common.claims import Claim
from experiments.common.figures import band, save
from experiments.common.outcome import Outcome
from experiments.search_laboratory import landscape as lab
from pause_jax.bandit.reward import Reward
from pause_jax.bandit.search import Problem

HERE = pathlib.Path(__file__).parent
NAMES = {"alsa": "ALSA", "vanilla": "SA", "pause": "SA-PAUSE"}
COLUMNS = (*NAMES.values(), "current %", "best %", "listing %")
COOLINGS = (1.0, 30.0, 300.0)
# BSFL's Fashion-MNIST run; the tiny gamma orders the list of p and adds nothing to the energy.
REWARD = Reward(alpha=2.0, beta=1.0, gamma=1e-6)


def ahead_claim(kind: str, cooling: float, share: float, number: int, claimed: float) -> Claim:
    """Return the claim about the ends of runs at equal steps, from a percentage of instances."""
    held = np.arange(number) < round(share * number / 100)
    text = f"Fig. 4: {kind}, kappa = {cooling:g}: ALSA ends above SA in {claimed:g} % of the runs"
    return claims.always(text, held, "above", claimed / 100, "instances")


def share_ahead(alsa: NDArray[np.float32], sa: NDArray[np.float32], at: int, to: int) -> float:
    """Return the percentage of instances with ALSA at step ``at`` above SA at step ``to``."""
    return 100 * float((alsa[:, at - 1] > sa[:, to - 1]).mean())


def main(
    number: Annotated[int, typer.Option(help="Random instances of each kind.")] = 120,
    num_clients: int = 500,
    num_selected: int = 25,
    steps: int = 3000,
    out: Annotated[pathlib.Path, typer.Option(help="Where output is written.")] = HERE,
) -> None:
    """Run, print and draw. Exit with status 1 if a check fails."""
    expected: dict[str, Any] = json.loads((HERE / "expected.json").read_text())
    rules = expected["checks"]
    outcome = Outcome(f"{num_selected} of {num_clients}, {number} instances, {steps} steps")
    sets = math.log2(math.comb(num_clients, num_selected))
    outcome.add(
        f"2^{sets:.1f} sets. Mean gap to the optimum; % of instances with ALSA above SA:",
        f"{'kind':8} kappa  steps listed" + "".join(f"{name:>10}" for name in COLUMNS),
    )
    figure = Figure(figsize=(11, 6), layout="constrained")
    axes: Any = figure.subplots(len(instances.KINDS), len(COOLINGS), sharex=True, sharey="row")
    key = jax.random.key(0)
    equal_steps: dict[tuple[str, float], float] = {}
    equal_listing: dict[tuple[str, float], float] = {}
    excess = -np.inf
    for row, kind in enumerate(instances.KINDS):
        problems = instances.draw(key, number, num_clients, num_selected, REWARD, kind)
        optimum = np.asarray(lab.optima(problems, num_selected))
        few = Problem(*(leaf[:5] for leaf in problems))
        degree = {n: lab.sampled_degrees(key, few, num_selected, n, 200).mean() for n in NAMES}
        ratio = degree["vanilla"] / degree["alsa"]
        for column, cooling in enumerate(COOLINGS):
            current: dict[str, NDArray[np.float32]] = {}
            best: dict[str, NDArray[np.float32]] = {}
            panel = axes[row, column]
            for i, (name, label) in enumerate(NAMES.items()):
                keys = jax.random.split(jax.random.fold_in(key, i), number)
                trace = lab.traces(
                    keys, problems, num_selected, neighbourhood=name, steps=steps, cooling=cooling
                )
                current[name] = np.asarray(trace.current_energy)[:, 0]
                best[name] = np.asarray(trace.best_energy)[:, 0]
                above = (best[name][:, -1] - optimum) / (1 + np.abs(optimum))
                excess = max(excess, float(above.max()))
                band(panel, current[name], label)
            panel.axhline(optimum.mean(), color="k", lw=0.8, ls="--", label="exact optimum")
            panel.set_title(f"{kind}, kappa = {cooling:g}", fontsize="medium", loc="left")
            for at in sorted({max(1, steps // 30), max(1, steps // 3), steps}):
                # Step at which SA has listed as many neighbours as ALSA in `at` steps.
                listed = max(1, round(at / ratio))
                row_of = [(optimum - current[name][:, at - 1]).mean() for name in NAMES] + [
                    share_ahead(current["alsa"], current["vanilla"], at, at),
                    share_ahead(best["alsa"], best["vanilla"], at, at),
                    share_ahead(current["alsa"], current["vanilla"], at, listed),
                ]
                figures = "".join(f"{value:10.3f}" for value in row_of)
                outcome.add(f"{kind:8} {cooling:5g} {at:6} {listed:6}{figures}")
            equal_steps[kind, cooling], equal_listing[kind, cooling] = row_of[-3], row_of[-1]
        mean = ", ".join(f"{label} {degree[name]:.0f}" for name, label in NAMES.items())
        outcome.add(f"{kind}: mean number of neighbours {mean}")
    outcome.check(
        f"no energy above the exact optimum (largest excess {excess:.1e} of 1 + |optimum|)",
        excess <= lab.TOLERANCE,
    )
    claim, top = expected["authors"]["percent_alsa_higher"], max(equal_steps.values())
    outcome.judge([ahead_claim(*cell, share, number, claim) for cell, share in equal_steps.items()])
    outcome.check(
        f"{claim} % is not reproduced at equal steps: at the end {top:.1f} % at most",
        top < claim - rules["out_of_reach_by_points"],
    )
    cold = equal_steps["uniform", max(COOLINGS)]
    outcome.check(f"uniform, largest kappa: SA is ahead (ALSA in {cold:.1f} %)", cold < 50)
    least = min(share for (_, cooling), share in equal_listing.items() if cooling > 1)
    outcome.check(
        f"kappa > 1: ALSA is ahead at equal listing, {least:.1f} % at least",
        least >= rules["listing_at_least"],
    )
    axes[0, 0].legend(fontsize="small")
    figure.supxlabel("annealing step", fontsize="medium")
    figure.supylabel("energy of the current state", fontsize="medium")
    save(figure, out, "energy_vs_step")
    outcome.finish(out)


if __name__ == "__main__":
    typer.run(main)
