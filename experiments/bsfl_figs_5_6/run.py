"""Reproduce BSFL Figs. 5 and 6: participation of clients in ten latency groups.

python -m experiments.bsfl_figs_5_6.run
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterable
from typing import Annotated, Any

import jax
import numpy as np
import typer
import xarray as xr
from matplotlib import colormaps
from matplotlib.cm import ScalarMappable
from matplotlib.colors import BoundaryNorm
from matplotlib.figure import Figure

from experiments.common import claims
from experiments.common.claims import Claim
from experiments.common.outcome import Outcome
from pause_jax import metrics, presets, sweep

HERE = pathlib.Path(__file__).parent
GROUPS = 10
# "Selects clients from all groups almost equally": the margin is ours.
ALMOST = 1.25
ALPHAS = {f"alpha = {alpha:g}": {"reward.alpha": alpha} for alpha in (0.0, 1.0, 2.0, 10.0)}
BETAS = {f"beta = {beta:g}": {"reward.beta": beta} for beta in (0.1, 0.8, 1.2, 5.0)}


def simulate(clients: int, selected: int, rounds: int, every: int, seeds: int) -> xr.DataArray:
    """Count mean observations per client [config, seed, round, group] in every ``every`` rounds."""
    base = presets.bsfl_groups().replace(
        num_clients=clients, num_selected=selected, num_rounds=rounds, track_regret=False
    )
    configs = {name: base.override(changes) for name, changes in (ALPHAS | BETAS).items()}
    chosen = sweep(configs, jax.random.split(jax.random.key(0), seeds)).clients
    group = xr.DataArray(np.arange(GROUPS), dims="group")
    size = xr.DataArray(np.bincount(np.arange(clients) * GROUPS // clients), dims="group")
    hits = (chosen * GROUPS // clients == group).sum("slot")
    return hits.coarsen(round=every, coord_func="max").sum() / size


def fairness(observations: xr.DataArray) -> xr.DataArray:
    """Compute Jain's index over groups: 1 if all take part equally often, 1/10 if only one does."""
    counts = observations.rename(group="client")
    return metrics.participation_fairness(xr.Dataset({"counts": counts}))


def compare(observations: xr.DataArray, rules: dict[str, Any], outcome: Outcome) -> None:
    """Add a table, the verdicts and the checks."""
    jain = fairness(observations.sum("round")).mean("seed")
    mean = observations.mean("seed")
    shown = [0, 1, GROUPS - 1]
    outcome.add(
        "mean observations of a client in the first and the last period, by latency of its group;",
        "Jain's index over groups, of all rounds",
        f"{'':10}" + 2 * (" |" + "".join(f"{(i + 1) / 10:6.1f} s" for i in shown)) + " |  Jain",
    )
    for name in mean.config.values:
        periods = mean.sel(config=name).values[[0, -1]]
        cells = "".join(" |" + "".join(f"{period[i]:8.1f}" for i in shown) for period in periods)
        outcome.add(f"{name:10}{cells} | {jain.sel(config=name).item():.3f}")

    alone = observations.sel(config="alpha = 0")
    fastest, last = alone.mean("seed").values[:, 0], alone.mean("seed").values[-1]
    measured = {
        "nearly_equal_at_first": fairness(alone.isel(round=0)).mean("seed"),
        "fastest_gains_each_period": np.diff(fastest).min(),
        "fastest_last_over_first": fastest[-1] / fastest[0],
        "others_explored": last.min(),
        "alpha_slowest": mean.sum("round").sel(config=list(ALPHAS)).diff("config")[:, -1].min(),
        "alpha_equalises": jain.sel(config=list(ALPHAS)).diff("config").min(),
        "beta_equalises": jain.sel(config=list(BETAS)[::-1]).diff("config").min(),
    }
    for figure in ("Fig. 5", "Fig. 6"):
        outcome.judge(family(figure, observations))
    for name, rule in rules.items():
        value, bound = float(measured[name]), rule["at_least"]
        outcome.check(f"{rule['claim']}: {value:.3f}, at least {bound}", value >= bound)


def family(figure: str, observations: xr.DataArray) -> list[Claim]:
    """Return the paper's claims about a figure, where "almost equally" is up to ``ALMOST``."""
    jain = fairness(observations.sum("round"))
    if figure == "Fig. 6":
        gain = jain.sel(config=list(BETAS)[::-1]).diff("config").min("config")
        return [claims.mean(f"{figure}: lower beta: more equal", gain, "Jain's index", above=0)]
    alone = observations.sel(config="alpha = 0")
    first, last = alone.isel(round=0), alone.isel(round=-1)
    slowest = observations.sum("round").isel(group=-1).sel(config=list(ALPHAS))
    text = f"{figure}: alpha = 0: first period: no group is {100 * (ALMOST - 1):g} % above the mean"
    return [
        claims.mean(text, first.max("group") / first.mean("group"), "of the mean", below=ALMOST),
        *(
            claims.mean(f"{figure}: {what}", values, unit, above=0)
            for what, values, unit in (
                (
                    "alpha = 0: the fastest group gains in every period",
                    alone.isel(group=0).diff("round").min("round"),
                    "observations, least gain",
                ),
                (
                    "alpha = 0: every group is still explored in the last period",
                    last.min("group"),
                    "observations",
                ),
                (
                    "higher alpha: more of the slowest group",
                    slowest.diff("config").min("config"),
                    "observations, least gain",
                ),
                (
                    "higher alpha: more equal",
                    jain.sel(config=list(ALPHAS)).diff("config").min("config"),
                    "Jain's index, least gain",
                ),
            )
        ),
    ]


def draw(observations: xr.DataArray, names: Iterable[str], file: pathlib.Path) -> None:
    """Write a figure of 2 x 2 panels, with one bar per group and one colour per period."""
    periods = observations["round"].values
    shades = ScalarMappable(BoundaryNorm([0, *periods], colormaps["viridis"].N), "viridis")
    groups = np.arange(1, GROUPS + 1) / 10
    figure = Figure(figsize=(8, 6), layout="constrained")
    panels = figure.subplots(2, 2, sharex=True, sharey=True)
    for name, axes in zip(names, panels.flat, strict=True):
        bottom = np.zeros(GROUPS)
        for period in periods:
            height = observations.mean("seed").sel(config=name, round=period).values
            axes.bar(groups, height, 0.08, bottom, color=shades.to_rgba(period - 1))
            bottom += height
        axes.set(title=name, xticks=groups)
    figure.supxlabel("mean latency of the group, s")
    figure.supylabel("mean observations of a client")
    figure.colorbar(shades, ax=panels, label="until round")
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=130)


def main(
    clients: int = 500,
    selected: int = 25,
    rounds: int = 10_000,
    every: Annotated[int, typer.Option(help="Rounds of a period; divides rounds.")] = 500,
    seeds: int = 20,
    out: Annotated[pathlib.Path, typer.Option(help="Where output is written.")] = HERE,
) -> None:
    """Run, draw and check. Exit with status 1 if a check fails."""
    observations = simulate(clients, selected, rounds, every, seeds)
    outcome = Outcome(f"K = {clients}, m = {selected}, {rounds} rounds, {seeds} seeds")
    compare(observations, json.loads((HERE / "expected.json").read_text())["checks"], outcome)
    draw(observations, ALPHAS, out / "figures" / "fig_5_alpha.png")
    draw(observations, BETAS, out / "figures" / "fig_6_beta.png")
    outcome.finish(out)


if __name__ == "__main__":
    typer.run(main)
