"""Which policy for which fleet: accuracy after the same simulated time, early and late.

python -m experiments.which_policy.run
"""

from __future__ import annotations

import math
import pathlib
from typing import Annotated, NamedTuple

import jax
import numpy as np
import typer
import xarray as xr

from experiments import claims, figures
from experiments.outcome import Outcome
from experiments.which_policy.fleets import MEANING, POLICIES, YARDSTICK, fleets
from pause_jax import SimConfig, sweep
from pause_jax.learning import Dataset
from pause_jax.policies import named

HERE = pathlib.Path(__file__).parent


class Judgement(NamedTuple):
    """Of a policy on a fleet at a time, in percentage points.

    Attributes:
      mean, error: of its accuracy, and the standard error.
      ahead, half: of the yardstick in the same worlds, and half of the 95 % interval.
    """

    mean: float
    error: float
    ahead: float
    half: float

    def __str__(self) -> str:
        mark = "+" if self.ahead > self.half else "-" if self.ahead < -self.half else " "
        return f"{self.mean:.1f}±{self.error:.1f}{mark}"


# The times at which all are compared: in them the yardstick plays about so many rounds.
ROUNDS = {"early": 12, "late": 60}


def times_for(config: SimConfig, data: Dataset | None, keys: jax.Array) -> dict[str, float]:
    """Simulated seconds in which the yardstick plays ``ROUNDS``, the mean of some runs."""
    alone = config.replace(policy=named(YARDSTICK), num_rounds=max(ROUNDS.values()))
    clock = sweep(alone, keys[:4], data=data, record=("clock",), progress=False).clock
    return {when: float(clock.isel(round=rounds - 1).mean()) for when, rounds in ROUNDS.items()}


def play(
    config: SimConfig, data: Dataset | None, keys: jax.Array
) -> dict[str, dict[str, Judgement]]:
    """Every policy on a fleet, judged at each of the times."""
    times = times_for(config, data, keys)
    config = config.replace(max_seconds=max(times.values()))
    configs = {policy: config.replace(policy=named(policy)) for policy in POLICIES}
    record = "eval_clock", "test_accuracy"
    result = sweep(configs, keys, data=data, record=record)
    return {when: judged(accuracy_at(result, seconds)) for when, seconds in times.items()}


def accuracy_at(result: xr.Dataset, seconds: float) -> xr.DataArray:
    """Accuracy in %, [config, seed], at the last evaluation by then, or at the first of all."""
    by_then = (result.eval_clock <= seconds).sum("eval_round")
    return 100 * result.test_accuracy.isel(eval_round=(by_then - 1).clip(0))


def judged(accuracy: xr.DataArray) -> dict[str, Judgement]:
    """Of each policy, over seeds that meet the same world."""
    found = {}
    seeds = math.sqrt(accuracy.sizes["seed"])
    for policy in POLICIES:
        own = accuracy.sel(config=policy)
        ahead = own - accuracy.sel(config=YARDSTICK)
        found_ahead = claims.mean("ahead", ahead.values, "points")
        low, high = claims.interval(found_ahead)
        error = float(own.std("seed", ddof=1)) / seeds
        found[policy] = Judgement(float(own.mean()), error, found_ahead.found, (high - low) / 2)
    return found


def main(
    seeds: Annotated[int, typer.Option(help="Of each fleet.")] = 16,
    only: Annotated[str, typer.Option(help="Fleets to play, with commas; all by default.")] = "",
    out: Annotated[pathlib.Path, typer.Option(help="Where output is written.")] = HERE,
) -> None:
    """Play, print and write the table."""
    keys = jax.random.split(jax.random.key(0), seeds)
    outcome = Outcome(f"test accuracy in % on digits after the same simulated time, {seeds} seeds")
    outcome.add(
        f"+ and -: better and worse than {YARDSTICK} at 95 %; times in which it plays about"
    )
    outcome.add(", ".join(f"{when}: {rounds} rounds" for when, rounds in ROUNDS.items()), "")
    every = fleets()
    names = only.split(",") if only else list(every)
    outcome.add(*(f"{name:8} {MEANING[name]}" for name in names))
    found = {}
    for name in names:
        found[name] = play(*every[name], keys)
        typer.echo(f"{name}: {best_of(found[name]['late'])[0]}", err=True)
        # A process has room for some hundred compiled programs.
        jax.clear_caches()
    for when in ROUNDS:
        now = {name: each[when] for name, each in found.items()}
        outcome.add("", f"{when:17}" + "".join(f"{name:>11}" for name in now))
        for policy in POLICIES:
            cells = "".join(f"{each[policy]!s:>11}" for each in now.values())
            outcome.add(f"{policy:17}{cells}")
        outcome.add("", f"{when}: best, and those that cannot be told from it")
        outcome.add(*(f"  {name:8} {', '.join(best_of(each))}" for name, each in now.items()))
        draw(now, out, when)
    outcome.finish(out)


def best_of(each: dict[str, Judgement]) -> list[str]:
    """The policies within two standard errors of the best, best first."""
    order = sorted(each, key=lambda policy: -each[policy].mean)
    top = each[order[0]]
    within = {p: 2 * math.hypot(top.error, each[p].error) for p in order}
    return [p for p in order if top.mean - each[p].mean <= within[p]]


def draw(found: dict[str, dict[str, Judgement]], out: pathlib.Path, when: str) -> None:
    """The differences to the yardstick, with their intervals."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(
        1, len(found), figsize=(1.6 * len(found) + 1.5, 4.2), sharey=True, squeeze=False
    )
    places = np.arange(len(POLICIES))
    for panel, (name, each) in zip(axes[0], found.items(), strict=True):
        ahead, half = np.array([each[policy][2:] for policy in POLICIES]).T
        panel.errorbar(ahead, places, xerr=half, fmt="o", ms=3, lw=1.2)
        panel.axvline(0, color="black", lw=0.8, ls=":")
        panel.set_title(name, fontsize=9)
        panel.tick_params(labelsize=7)
    axes[0, 0].set_yticks(places, POLICIES)
    axes[0, 0].invert_yaxis()
    figure.supxlabel(f"{when}: accuracy ahead of {YARDSTICK}, percentage points", fontsize=9)
    figure.tight_layout()
    figures.save(figure, out, when)
    plt.close(figure)


if __name__ == "__main__":
    typer.run(main)
