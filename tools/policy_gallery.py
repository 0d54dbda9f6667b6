"""Generator of the policy gallery: one card per named policy, with the curve of ``random``.

    python -m tools.policy_gallery    # recompute docs/figures/gallery.csv: ten minutes on 2 cores
    python -m tools.policy_gallery NAME ...    # recompute these policies only

The site build generates cards from the code (``write``), and curves from the stored numbers.
"""

from __future__ import annotations

import csv
import functools
import inspect
import math
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import pandas as pd
from matplotlib.figure import Figure

from pause_jax import metrics, presets, sweep
from pause_jax.analysis.gauntlet import board, fleets
from pause_jax.bandit.search import Annealing, Exhaustive
from pause_jax.policies import (
    NAMED,
    ClusteredSimilarity,
    DivFl,
    FedCor,
    GreedyFed,
    HicsFl,
    PolicyConfig,
)

ROOT = Path(__file__).resolve().parents[1]
NUMBERS = ROOT / "docs" / "figures" / "gallery.csv"
SEEDS = 8
EVAL_EVERY = 10
BESIDE = "random"
SETTING = presets.digits_small().replace(eval_every=EVAL_EVERY)
# Test samples that the server holds for GreedyFed; other policies are scored on the whole test set.
HELD = 60
COSTS: dict[type[PolicyConfig], str] = {
    ClusteredSimilarity: "clustering of all clients' last updates on the host",
    DivFl: "distances from the cohort's updates to all last updates",
    FedCor: "gradient descent on a model of the clients' loss changes",
    GreedyFed: "validation losses of subsets of the cohort at the server",
    HicsFl: "clustering of all clients' last output layers on the host",
}
HEAD = """# Policy gallery

The library has {number} named policies. `pause-jax policies` lists them, and `named("pause")` or
`--policies pause` selects one. [Which policy?](../guides/which_policy.md) compares 45 of them
on 14 fleets.

All curves come from **one setting**, `digits_small`: {K} clients, {m} a round, {T} rounds, the
papers' noise, `two_groups` latencies, {seeds} seeds. The line is the mean test accuracy against
simulated seconds, and the band its standard error. The grey line is `{beside}`. On other fleets the
policies rank differently, so do not choose one by these curves.

"""


class Point(NamedTuple):
    """Means over the seeds after a round.

    Attributes:
      round: round number, from 1.
      seconds: simulated time.
      accuracy: test accuracy, %.
      error: standard error of the accuracy.
      asking: part of ``seconds`` spent on answers to the policy's questions.
      regret: cumulative regret.
    """

    round: int
    seconds: float
    accuracy: float
    error: float
    asking: float
    regret: float


def play(names: Sequence[str]) -> None:
    """Simulate the named policies, or all, in one setting with equal seeds; store the means."""
    configs = {name: SETTING.replace(policy=NAMED[name]) for name in names or NAMED}
    for name in configs:
        if isinstance(NAMED[name], GreedyFed):
            configs[name] = configs[name].override({"learning.validation": HELD})
    record = ("clock", "eval_clock", "test_accuracy", "query_seconds", "regret")
    result = sweep(configs, jax.random.split(jax.random.key(0), SEEDS), record=record)
    accuracy, error = metrics.mean_and_error(100 * result.test_accuracy)
    seconds = result.eval_clock.mean("seed")
    asking, regret = (
        result[name].cumsum("round").mean("seed").sel(round=result.eval_round.values)
        for name in ("query_seconds", "regret")
    )
    found = kept()
    for name in configs:
        columns = (a.sel(config=name).values for a in (seconds, accuracy, error, asking, regret))
        each = zip(result.eval_round.values.tolist(), *columns, strict=True)
        found[name] = [Point(*values) for values in each]
    with NUMBERS.open("w", encoding="utf-8", newline="") as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow(("policy", *Point._fields))
        for name in NAMED:
            for round, *values in found[name]:
                out.writerow((name, round, *(f"{value:.4g}" for value in values)))


def kept() -> dict[str, list[Point]]:
    """Return the stored numbers of each policy."""
    found: dict[str, list[Point]] = {}
    with NUMBERS.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            name = row.pop("policy")
            values = (float(row[field]) for field in Point._fields[1:])
            found.setdefault(name, []).append(Point(int(row["round"]), *values))
    return found


def draw(points: list[Point], beside: list[Point], path: Path) -> None:
    """Draw the curve of a policy as SVG, and the curve ``beside`` it in grey."""
    figure = Figure(figsize=(4.2, 2.2), layout="constrained")
    axes = figure.subplots()
    for line, colour, order in ((beside, "0.55", 1), (points, "#4477AA", 2)):
        seconds, mean, error = ([p[i] for p in line] for i in (1, 2, 3))
        axes.plot(seconds, mean, color=colour, lw=1.6, zorder=order)
        low, high = ([m + s * e for m, e in zip(mean, error, strict=True)] for s in (-1, 1))
        axes.fill_between(seconds, low, high, color=colour, alpha=0.25, lw=0)
    axes.set(xlim=(0, 1.6 * beside[-1].seconds), ylim=(0, 100))
    axes.set_xlabel("simulated seconds", fontsize=8, color="0.5")
    axes.set_ylabel("accuracy, %", fontsize=8, color="0.5")
    axes.tick_params(labelsize=8, colors="0.5")
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("0.5")
    figure.savefig(path, transparent=True, metadata={"Date": None})


def choice(policy: PolicyConfig) -> str:
    """Return the server's cost of a choice, in words."""
    search = getattr(policy, "search", None)
    if isinstance(search, Annealing):
        return (
            f"{search.steps} annealing steps per round, as in the papers. The exact search of "
            "`pause` and `bsfl` is faster and never finds a smaller reward"
        )
    if isinstance(search, Exhaustive):
        cohorts = math.comb(SETTING.num_clients, SETTING.num_selected)
        return f"evaluation of all {cohorts:,} cohorts"
    for kind, cost in COSTS.items():
        if isinstance(policy, kind):
            return cost
    return "at most one sort of the clients"


def facts(policy: PolicyConfig, points: list[Point]) -> Iterator[tuple[str, str]]:
    """Yield the lines of a policy's section, as (label, text)."""
    kind, last = type(policy), points[-1]
    module = f"{kind.__module__}.{kind.__qualname__}"
    yield "class", f"{{py:class}}`{kind.__name__} <{module}>`: `{policy!r}`"
    yield "observes", policy.observes
    yield "assumes known", policy.assumes
    if policy.releases:
        yield "released without noise", "; ".join(policy.releases)
    asking = ""
    if last.asking > 0:
        asking = f"; queries take {last.asking / last.seconds:.0%} of the simulated time"
    yield "costs", choice(policy) + asking
    if asking:
        yield "event clock", "rejected, because the event clock does not wait for queries"
    elif any(word in policy.observes for word in ("loss", "updates")):
        yield "event clock", "receives losses and updates only at server steps"
    yield "source", policy.reference
    best = max(point.accuracy for point in points)
    yield (
        "result",
        (
            f"{last.accuracy:.1f} ± {last.error:.1f} % after {last.seconds:.0f} s, "
            f"best {best:.1f} %; regret {last.regret:.0f}"
        ),
    )


@functools.cache
def late_ranks() -> pd.DataFrame:
    """Return the ranks [policy, fleet] on the gauntlet's board at the late time."""
    means = board.read(fleets.fleets(), "digits").late.mean("seed").to_pandas()
    return means.rank(ascending=False, method="min")


def standing(name: str) -> str:
    """Return a policy's ranks on the board in words, or why it has none."""
    if name not in late_ranks().index:
        return "not on the board"
    ranks = late_ranks().loc[name].dropna()
    best, worst = ranks.idxmin(), ranks.idxmax()
    return (
        f"median rank {ranks.median():g} of {len(late_ranks())} at the late time "
        f"({ranks[best]:g} on `{best}`, {ranks[worst]:g} on `{worst}`)"
    )


def write(folder: Path) -> None:
    """Write the page and its pictures into an empty folder."""
    numbers = kept()
    parts = [HEAD.format(number=len(NAMED), K=SETTING.num_clients, m=SETTING.num_selected,
                         T=SETTING.num_rounds, seeds=SEEDS, beside=BESIDE)]  # fmt: skip
    parts.append("::::{grid} 1 2 3 3\n:gutter: 2\n")
    for name, policy in NAMED.items():
        last = numbers[name][-1]
        parts.append(
            f":::{{grid-item-card}} {name}\n:img-top: {name}.svg\n"
            f':link: "#{name}"\n:link-type: url\n'
            f"Observes {policy.observes}. {last.accuracy:.1f}\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}"
            f"{last.error:.1f}\N{NO-BREAK SPACE}% after {last.seconds:.0f}\N{NO-BREAK SPACE}s.\n:::"
        )
    parts.append("::::\n")
    for name, policy in NAMED.items():
        points = numbers[name]
        draw(points, numbers[BESIDE], folder / f"{name}.svg")
        first = inspect.cleandoc(type(policy).__doc__ or policy.summary).partition("\n\n")[0]
        told = (*facts(policy, points), ("[gauntlet](../guides/gauntlet.md)", standing(name)))
        lines = "\n".join(f"- **{what}**: {text}" for what, text in told)
        parts.append(
            f"## {name}\n\n{first.replace('``', '`')}\n\n{lines}\n\n"
            f"![Accuracy of {name} compared with {BESIDE}]({name}.svg)\n\n"
            f"*`digits_small`, {SEEDS} seeds; grey: `{BESIDE}`.*\n"
        )
    (folder / "index.md").write_text("\n".join(parts), "utf-8")


if __name__ == "__main__":
    play(sys.argv[1:])
