"""Regret bound without gaps, compared with measured regret and the papers' bound.

python -m experiments.regret_bound.run
"""

from __future__ import annotations

import pathlib
from typing import Annotated, NamedTuple

import jax
import numpy as np
import typer
from jax import Array
from matplotlib.figure import Figure

from experiments.common import figures, regret_setting
from experiments.common.outcome import Outcome
from experiments.regret_policies.run import SAME, policies
from pause_jax import SimConfig, quantity, regret, simulate
from pause_jax.policies import NAMED, Fastest, Genie, Pause, PolicyConfig, Ucb
from pause_jax.run.rounds.state import Round

HERE = pathlib.Path(__file__).parent
POLICIES: dict[str, PolicyConfig] = {"pause": Pause(index=Ucb()), "fastest": Fastest()}
# Policies with the papers' index and an exact search, for which the inequality is derived.
DERIVED = ("pause", "bsfl")
STEPS = 200


@quantity("round", "slot", unit="s")
def slot_latency(r: Round) -> Array:
    """Latency of each chosen client."""
    return r.latency[r.selection.clients]


# Bound on the rounding error of a round's regret in float32.
ROUNDING = 1e-5


class Measured(NamedTuple):
    """Measurements of a run, each of shape [n].

    Attributes:
      regret: regret of each round, given the policy's history.
      width: sqrt((m + 1) ln t / T_j(t - 1)) of the cohort's slowest client in expectation, j;
        infinite if j is untried.
      sure: whether every client's mean speed is within its width.
    """

    regret: np.ndarray
    width: np.ndarray
    sure: np.ndarray


def measure(config: SimConfig, key: Array) -> Measured:
    """Run a bandit-only config, and compute its widths in float64 from its observations."""
    result = simulate(config, key, record=("clients", "regret", slot_latency))
    clients, latency = np.asarray(result.clients), np.asarray(result.slot_latency, np.float64)
    expected = np.asarray(config.latency.expected_speed(config.num_clients), np.float64)
    counts, total = np.zeros((2, config.num_clients))
    width, sure = np.empty(len(clients)), np.empty(len(clients), bool)
    for t, (slots, seconds) in enumerate(zip(clients, latency, strict=True), start=1):
        cohort, seconds = slots[slots >= 0], seconds[slots >= 0]
        with np.errstate(divide="ignore", invalid="ignore"):
            widths = np.sqrt((config.cohort_size + 1) * np.log(t) / counts)
        widths[counts == 0] = np.inf
        tried = counts > 0
        off = np.abs(total[tried] / counts[tried] - expected[tried])
        width[t - 1] = widths[cohort[np.argmin(expected[cohort])]]
        sure[t - 1] = np.all(off <= widths[tried])
        counts[cohort] += 1
        total[cohort] += float(config.latency.min_latency) / seconds
    return Measured(np.asarray(result.regret, np.float64), width, sure)


def broken(run: Measured) -> np.ndarray:
    """Return whether regret exceeds two widths with all means within their widths, by round."""
    return run.sure & (run.regret > 2 * run.width + ROUNDING)


def main(
    rounds: int = 100_000,
    seeds: int = 4,
    only: Annotated[str, typer.Option(help="Policies of the table; all if left out.")] = "",
    out: Annotated[pathlib.Path, typer.Option(help="Where output is written.")] = HERE,
) -> None:
    """Run, print, check and draw."""
    names = only.split(",") if only else [name for name in NAMED if name not in SAME]
    table = policies(names, STEPS)
    outcome = Outcome(f"{seeds} seeds, {rounds} rounds, K = 20, m = 5, two_groups")
    keys, n = jax.random.split(jax.random.key(0), seeds), np.arange(1, rounds + 1)
    runs = {
        name: [measure(regret_setting.config(policy, rounds), key) for key in keys]
        for name, policy in POLICIES.items()
    }
    bounds = regret.bounds_of(regret_setting.config(Genie(), rounds), n)
    curves = {name: np.stack([each.regret.cumsum() for each in runs[name]]) for name in runs}
    widths = np.stack([two_widths(each).cumsum() for each in runs["pause"]])
    for name, curve in curves.items():
        outcome.add(f"R({rounds}) of {name}: {curve[:, -1].mean():.4g}")
    outcome.add(f"two widths, summed over the rounds of pause: {widths[:, -1].mean():.4g}")
    outcome.add(*(f"bound {name}: {bound[-1]:.4g}" for name, bound in bounds.items()))
    unsure = sum(int(np.sum(~each.sure)) for each in runs["pause"])
    outcome.add(f"rounds of pause in which some mean is outside its width: {unsure}")
    outcome.check(
        "pause: no round exceeds two widths while all means are within theirs",
        not any(broken(each).any() for each in runs["pause"]),
    )
    outcome.check(
        "fastest, the control: some rounds do", any(broken(each).any() for each in runs["fastest"])
    )
    outcome.check(
        "pause is below the bound without gaps", (curves["pause"] <= bounds["gap_free"]).all()
    )
    add_policies(outcome, table, rounds // 10, keys[0])
    add_gaps(outcome, rounds, least_width=min(each.width[-1] for each in runs["pause"]))
    draw(n, curves, widths, bounds, out)
    outcome.finish(out)


def add_policies(outcome: Outcome, table: dict[str, PolicyConfig], rounds: int, key: Array) -> None:
    """Add how often each policy of a table violates the inequality of a round."""
    bound = regret.bounds_of(regret_setting.config(Genie(), rounds), np.arange(1, rounds + 1))
    last = bound["gap_free"][-1]
    outcome.add(
        f"one seed, {rounds} rounds, bound {last:.4g}",
        f"{'policy':24}{'breaks it':>12}{'regret':>10}",
    )
    held = []
    for name, policy in table.items():
        run = measure(regret_setting.config(policy, rounds), key)
        share, total = broken(run).mean(), run.regret.sum()
        held += [name] if not share and total <= last else []
        outcome.add(f"{name:24}{share:12.2%}{total:10.4g}")
    outcome.check(
        f"{', '.join(DERIVED)}: no round breaks it, and regret is below the bound",
        set(DERIVED) <= set(held),
    )
    outcome.check("the control: some policies break it", len(held) < len(table))


def add_gaps(outcome: Outcome, rounds: int, least_width: float) -> None:
    """Add the distribution of the gap to the second best cohort in the last decade of rounds."""
    sampled = np.unique(np.geomspace(rounds / 10, rounds, 1000).astype(int))
    gaps = regret_setting.second_best(sampled)
    outcome.add(f"gap to the second best cohort, {sampled.size} rounds of the genie's last decade")
    at = 10.0 ** np.arange(-8, 0)
    shares = [np.mean(gaps < x) for x in at]
    outcome.add(
        ", ".join(f"{share:.1%} below {x:.0e}" for x, share in zip(at, shares, strict=True))
    )
    low, high = np.quantile(gaps, [0.02, 0.2])
    outcome.add(
        f"share below x between {low:.1e} and {high:.1e}: x^{np.log(10) / np.log(high / low):.2f}"
    )
    outcome.check(
        f"every gap is below the width, {least_width:.3g} at the end: exponent a = 0 there",
        (gaps < least_width).all(),
    )


def two_widths(run: Measured) -> np.ndarray:
    """Return twice the width of each round; 0 for untried clients, in at most K rounds."""
    return np.where(np.isfinite(run.width), 2 * run.width, 0.0)


def draw(
    n: np.ndarray,
    curves: dict[str, np.ndarray],
    widths: np.ndarray,
    bounds: dict[str, np.ndarray],
    out: pathlib.Path,
) -> None:
    """Draw measured regret, summed widths and bounds as ``out/figures/regret_bound.png``."""
    figure = Figure(figsize=(6.4, 4.4), layout="constrained")
    axes, at = figure.subplots(), np.unique(np.geomspace(20, n[-1], 200).astype(int)) - 1
    for name, curve in curves.items():
        axes.plot(n[at], curve.mean(0)[at], label=f"R(n) of {name}")
    axes.plot(n[at], widths.mean(0)[at], ls="--", label="two widths of each round, pause")
    axes.plot(n[at], bounds["gap_free"][at], ls="-.", label="bound without gaps")
    axes.plot(n[at], bounds["pause"][at], ls=":", label="Theorem 3, (17)")
    axes.set(xscale="log", yscale="log", xlabel="round n", ylabel="cumulative regret")
    axes.legend(fontsize="small")
    figures.save(figure, out, "regret_bound")


if __name__ == "__main__":
    typer.run(main)
