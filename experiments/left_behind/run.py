"""Worst clients under every policy of the gauntlet, after the same simulated time.

python -m experiments.left_behind.run
"""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import Annotated

import numpy as np
import pandas as pd
import scipy.stats
import typer
import xarray as xr

from experiments.common import claims, figures
from experiments.common.claims import Claim
from experiments.common.outcome import Outcome
from experiments.gauntlet.fleets import LEFT_OUT, MEANING, YARDSTICK, policies
from experiments.gauntlet.run import accuracy_at, scores
from experiments.gauntlet.verdicts import Judgement, judged
from pause_jax import metrics

HERE = pathlib.Path(__file__).parent
FLEETS = ("labels", "shy")
HELD_OUT = {"learning.holdout": 0.2}
# Shares of the clients. On `shy`, a third of the clients has little budget and its own labels.
WORST = {"worst tenth": 0.1, "worst third": 1 / 3}
# Scores that are compared with the yardstick. The table also has the spread.
COMPARED = (*WORST, "mean")
# Fleet, score, policy with the higher score, other policy. Fixed before the runs.
CLAIMS = (
    ("labels", "worst tenth", "power_of_choice", "random"),
    ("labels", "worst third", "power_of_choice", "random"),
    ("labels", "worst third", "random", "oort"),
    ("labels", "worst third", "pause", "fastest"),
    ("labels", "worst third", "all", "pause"),
    ("shy", "worst third", "power_of_choice", "random"),
)
# Policies whose names the picture shows.
NAMED_IN_PICTURE = ("all", "fastest", "oort", "pause", "power_of_choice", "random", "round_robin")


def at_clients(result: xr.Dataset, times: Mapping[str, float]) -> xr.Dataset:
    """Return the scores in % [config, seed] over the clients at the late time."""
    each = accuracy_at(result, times["late"], "client_accuracy")
    worst = {name: metrics.worst_share(each, share) for name, share in WORST.items()}
    return xr.Dataset({**worst, "mean": each.mean("client"), "spread": each.std("client")})


def family_of(found: Mapping[str, pd.DataFrame]) -> list[Claim]:
    """Return the claims on the fleets that ran."""
    family = []
    for fleet, table in found.items():
        score = {
            name: table.pivot(index="seed", columns="policy", values=name) for name in COMPARED
        }
        for claimed, name, one, other in CLAIMS:
            if claimed == fleet:
                text = f"{fleet}: {name} of {one} above {other}"
                family.append(claims.larger(text, score[name][one], score[name][other], "points"))
        pairs = zip(score["mean"].to_numpy(), score["worst third"].to_numpy(), strict=True)
        tau = [scipy.stats.kendalltau(*pair).statistic for pair in pairs]
        text = f"{fleet}: policies with a higher mean have a higher worst third"
        family.append(claims.mean(text, np.array(tau), "Kendall's tau", above=0))
    return family


def report(
    outcome: Outcome,
    fleet: str,
    table: pd.DataFrame,
    now: Mapping[str, Mapping[str, Judgement]],
) -> None:
    """Add the table of a fleet, sorted by the worst third."""
    spread = table.groupby("policy").spread.mean()
    worst = now["worst third"]
    outcome.add("", f"{fleet}: {MEANING[fleet]}")
    outcome.add(" " * 24 + "".join(f"{score:>13}" for score in (*COMPARED, "spread")))
    for name in sorted(worst, key=lambda name: -worst[name].mean):
        cells = "".join(f"{now[score][name]!s:>13}" for score in COMPARED)
        outcome.add(f"{name:24}{cells}{spread[name]:12.1f}")
    missing = [name for name in policies() if name not in worst]
    outcome.add(*(f"{name:24}cannot run on this fleet" for name in missing))


def draw(found: Mapping[str, pd.DataFrame], out: pathlib.Path) -> None:
    """Draw ``out/figures/left_behind.png``: worst third by mean, one point per policy."""
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, len(found), figsize=(5 * len(found), 4), squeeze=False)
    for axes, (fleet, table) in zip(panels[0], found.items(), strict=True):
        each = table.groupby("policy")[list(COMPARED)].mean()
        axes.scatter(each["mean"], each["worst third"], s=14)
        for name in each.index.intersection(NAMED_IN_PICTURE):
            at = each.loc[name, "mean"], each.loc[name, "worst third"]
            axes.annotate(name, at, (-4, 3), textcoords="offset points", fontsize=7, ha="right")
        axes.set(title=fleet, xlabel="mean accuracy over clients in %")
    panels[0][0].set_ylabel("accuracy at the worst third in %")
    figure.tight_layout()
    figures.save(figure, out, "left_behind")
    plt.close(figure)


def main(
    seeds: Annotated[int, typer.Option(help="Of each fleet.")] = 16,
    only: Annotated[str, typer.Option(help="Fleets, with commas; both by default.")] = "",
    choose: Annotated[str, typer.Option(help="Policies, with commas; all by default.")] = "",
    out: Annotated[pathlib.Path, typer.Option(help="Where output is written.")] = HERE,
) -> None:
    """Run missing policies, and print and write the tables, verdicts and picture."""
    names = choose.split(",") if choose else list(policies())
    recorded = ("client_accuracy",)
    found = {
        fleet: scores(
            fleet, names, seeds, out / "kept" / f"{fleet}.csv", at_clients, recorded, HELD_OUT
        )
        for fleet in (only.split(",") if only else FLEETS)
    }
    verdicts = judged(found, COMPARED, YARDSTICK)
    cells = len(COMPARED) * sum(table.policy.nunique() - 1 for table in found.values())
    outcome = Outcome(f"accuracy in % at the clients' held-out digits, late, {seeds} seeds")
    outcome.add(
        "worst tenth, worst third: mean over the 3 and the 10 worst of 30 clients",
        "spread: standard deviation over clients",
        f"+ and -: above and below {YARDSTICK} in significantly more than half of the worlds",
        f"(exact sign tests; any false mark among {cells} cells has at most 5 %)",
        *(f"not run: {name}, {why}" for name, why in LEFT_OUT.items()),
    )
    for fleet, table in found.items():
        report(outcome, fleet, table, {score: verdicts[score][fleet] for score in COMPARED})
    outcome.add("")
    outcome.judge(family_of(found))
    draw(found, out)
    outcome.finish(out)


if __name__ == "__main__":
    typer.run(main)
