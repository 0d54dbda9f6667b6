"""Accuracy at equal epsilon of whole updates, if clients train all weights, the head or LoRA.

python -m experiments.few_parameters.run --data-dir FOLDER
"""

from __future__ import annotations

import pathlib
from typing import Annotated

import jax
import numpy as np
import typer
import xarray as xr

from experiments.common import claims, figures
from experiments.common.outcome import Outcome
from experiments.few_parameters import settings
from experiments.few_parameters.settings import EPSILONS, MECHANISMS, Point, Start
from pause_jax import sweep
from pause_jax.privacy import NoPrivacy

HERE = pathlib.Path(__file__).parent
START = Point("start")
NOISE_FREE, AT_100 = Point("all"), ("priv_unit_g", 100.0)
# Setting, claim, and two points of which the first exceeds this share of the second.
CLAIMS = (
    ("new", "head above all at 100", Point("head", *AT_100), Point("all", *AT_100), 1.0),
    ("new", "LoRA 1 above all at 100", Point("LoRA 1", *AT_100), Point("all", *AT_100), 1.0),
    ("new", "LoRA 1 above LoRA 10 at 100", Point("LoRA 1", *AT_100), Point("LoRA 10", *AT_100), 1),
    ("new", "head above LoRA 1 at 100", Point("head", *AT_100), Point("LoRA 1", *AT_100), 1.0),
    ("new", "head at 100 above 90 % of all, no noise", Point("head", *AT_100), NOISE_FREE, 0.9),
    ("new", "all above head, no noise", NOISE_FREE, Point("head"), 1.0),
    ("new", "l1_vector: head above all at 5,000", Point("head", "l1_vector", 5e3),
     Point("all", "l1_vector", 5e3), 1.0),
    ("same", "head at 100 above the start", Point("head", *AT_100), START, 1.0),
)  # fmt: skip
Found = dict[Point, np.ndarray]  # accuracy in % [seeds]


def accuracy(result: xr.Dataset) -> np.ndarray:
    """Return the final accuracy in % [config, seed], or 0 if a model is not finite."""
    return np.nan_to_num(100 * result.test_accuracy.isel(eval_round=-1).values)


def play(outcome: Outcome, setting: str, start: Start, seeds: int, rounds: int) -> Found:
    """Run a setting, and add its table and its check. Two other seeds select the clips."""
    keys = jax.random.split(jax.random.key(0), seeds)
    others = jax.random.split(jax.random.key(1), 2)
    parts = (*settings.PARTS, *settings.HIDDEN_ONLY)
    plain = [settings.tuning(part, start, NoPrivacy(), rounds) for part in parts]
    result = sweep(plain, keys, data=start.data)
    found = {Point(part): row for part, row in zip(parts, accuracy(result), strict=True)}
    found[START] = np.full(seeds, start.accuracy)
    sizes = dict(zip(parts, map(int, result.num_parameters), strict=True))

    points = settings.mechanisms(sizes, rounds)
    trials = [
        settings.tuning(point.part, start, mechanism, rounds)
        for point, with_clips in points.items()
        for mechanism in with_clips
    ]
    scores = accuracy(sweep(trials, others, data=start.data)).mean(1)
    best = scores.reshape(len(points), -1).argmax(1)
    chosen = [trials[number * len(settings.CLIPS) + place] for number, place in enumerate(best)]
    result = sweep(chosen, keys, data=start.data, record=("test_accuracy", "spent"))
    found |= dict(zip(points, accuracy(result), strict=True))
    report(outcome, setting, found, sizes)
    outcome.add(f"  points with the best clip, by clip: {np.bincount(best).tolist()}")
    spent = result.spent.transpose("config", ...).values.reshape(len(points), -1).max(1)
    within = np.all(spent <= np.asarray([point.epsilon for point in points]) * (1 + 1e-5))
    outcome.check(f"{setting}: nobody spends more than its budget", within)
    return found


def report(outcome: Outcome, setting: str, found: Found, sizes: dict[str, int]) -> None:
    """Add the table of a setting."""

    def cell(point: Point) -> str:
        return f"{f'{found[point].mean():.1f}±{found[point].std(ddof=1):.1f}':>11}"

    start, free = found[START].mean(), found[NOISE_FREE].mean()
    goals = 0.9 * free, (start + free) / 2
    outcome.add("", f"{setting}: {settings.MEANING[setting]}; start {start:.1f}")
    for part, size in sizes.items():
        outcome.add(f"  {part:18}{f'd = {size:,}':>12}, no noise{cell(Point(part))}")
    for name in (cls.name for cls in MECHANISMS):
        outcome.add(
            f"  {name:15}"
            + "".join(f"{epsilon:>11,g}" for epsilon in EPSILONS)
            + "".join(f"{f'to {goal:.1f}':>11}" for goal in goals)
        )
        for part in settings.PARTS:
            row = [Point(part, name, epsilon) for epsilon in EPSILONS]
            reached = [[p.epsilon for p in row if found[p].mean() >= goal] for goal in goals]
            least = "".join(f"{f'{each[0]:,g}' if each else '-':>11}" for each in reached)
            outcome.add(f"  {part:15}{''.join(map(cell, row))}{least}")


def draw(results: dict[str, Found], out: pathlib.Path) -> None:
    """Draw ``out/figures/few_parameters.png``: accuracy by epsilon, one panel per mechanism."""
    import matplotlib.pyplot as plt

    size = 11, 3.4 * len(results)
    figure, panels = plt.subplots(
        len(results), len(MECHANISMS), figsize=size, sharey="row", squeeze=False
    )
    for row, (setting, found) in zip(panels, results.items(), strict=True):
        for axes, name in zip(row, (cls.name for cls in MECHANISMS), strict=True):
            for part in settings.PARTS:
                each = np.stack([found[Point(part, name, epsilon)] for epsilon in EPSILONS])
                spread = each.std(1, ddof=1)
                axes.errorbar(EPSILONS, each.mean(1), spread, label=part, marker="o", ms=3, lw=1.2)
            axes.axhline(found[NOISE_FREE].mean(), color="black", ls=":", label="all, no noise")
            axes.axhline(found[START].mean(), color="gray", ls="--", label="start")
            axes.set(xscale="log", title=f"{setting}, {name}", xlabel="eps_bar of whole updates")
        row[0].set_ylabel("test accuracy in %")
    panels[0][-1].legend(fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    figure.tight_layout()
    figures.save(figure, out, "few_parameters")
    plt.close(figure)


def main(
    data_dir: Annotated[str | None, typer.Option(help="Prepared data sets, if not TFDS's.")] = None,
    seeds: Annotated[int, typer.Option(help="Of each setting.")] = 10,
    rounds: Annotated[int, typer.Option(help="Of each run.")] = settings.ROUNDS,
    out: Annotated[pathlib.Path, typer.Option(help="Where output is written.")] = HERE,
) -> None:
    """Run, print and write. Exit with status 1 if a check fails."""
    outcome = Outcome(f"Fashion-MNIST, epsilon of whole updates, {rounds} rounds, {seeds} seeds")
    outcome.add(
        "accuracy in % after all rounds ± standard deviation over seeds, by epsilon; then the",
        "smallest epsilon to 90 % of all weights without noise, and to half of their gain",
    )
    results = {}
    for setting in settings.MEANING:
        start = settings.start_of(setting, data_dir)
        results[setting] = play(outcome, setting, start, seeds, rounds)
    outcome.add("")
    family = [
        claims.larger(
            f"{setting}: {claim}",
            results[setting][one],
            share * results[setting][other],
            "points",
        )
        for setting, claim, one, other, share in CLAIMS
    ]
    outcome.judge(family)
    draw(results, out)
    outcome.finish(out)


if __name__ == "__main__":
    typer.run(main)
