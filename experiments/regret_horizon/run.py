"""Horizon at which PAUSE's regret becomes logarithmic: bandit-only runs to a million rounds.

python -m experiments.regret_horizon.run
"""

from __future__ import annotations

import json
import math
import pathlib
from typing import Annotated

import jax
import numpy as np
import typer
import xarray as xr

from experiments.common import regret_setting
from experiments.common.claims import Claim
from experiments.common.outcome import Outcome
from pause_jax import regret
from pause_jax.policies import Pause, Thompson, Ucb, UcbV

HERE = pathlib.Path(__file__).parent


def median_gaps(rounds: int) -> tuple[list[int], list[float]]:
    """Return the gap between the best and second best cohort along the genie's history.

    Returns:
      Rounds t, and the median gap over the 25 rounds from t on.
    """
    times = np.unique(np.geomspace(100, rounds, 12).astype(int))
    gaps = regret_setting.second_best((times[:, None] + np.arange(25)).ravel())
    return times.tolist(), np.median(gaps.reshape(-1, 25), axis=1).tolist()


def decade_ratios(curves: np.ndarray) -> dict[int, float]:
    """Return the ratios of the regret of a decade of rounds to the previous decade's regret.

    (R(10 n) - R(n)) / (R(n) - R(n / 10)) of the mean curve is 1 for a logarithm, 10^p for n^p and
    10 for a line, and tends to 0 for bounded regret. Unlike an exponent, it does not depend on the
    first rounds.

    Args:
      curves: cumulative regret [seeds, T]; rounds that not all seeds played are dropped.

    Returns:
      The ratio by n, for the powers of ten n with 10 <= n <= T / 10.
    """
    mean = curves[..., ~np.isnan(curves).any(axis=0)].mean(axis=0)
    ratios = {}
    n = 10
    while 10 * n <= mean.size:
        last = mean[n - 1] - mean[n // 10 - 1]
        ratios[n] = float((mean[10 * n - 1] - mean[n - 1]) / last) if last > 0 else math.nan
        n *= 10
    return ratios


def references(rounds: int) -> list[str]:
    """Return the last decade ratio of known growth rates, as lines of text."""
    n = np.arange(1.0, rounds + 1)
    growths = {"ln n": np.log(n), "sqrt(n)": np.sqrt(n), "sqrt(n ln n)": np.sqrt(n * np.log(n))}
    ratios = {
        name: list(decade_ratios(curve[None]).items())[-1]
        for name, curve in {**growths, "n": n}.items()
    }
    return [f"{name}: {ratio:.2f} from n = {at:,}" for name, (at, ratio) in ratios.items()]


def family(curves: xr.DataArray) -> list[Claim]:
    """Return the claims of Theorem 3 for each index, with and without g."""
    return [
        regret_setting.logarithmic(
            f"Theorem 3: {name}: nearer to a logarithm than to a square root",
            curves.sel(config=name),
        )
        for name in curves.config.values
    ]


def main(
    rounds: int = 1_000_000,
    seeds: int = 20,
    out: Annotated[pathlib.Path, typer.Option(help="Where output is written.")] = HERE,
) -> None:
    """Run, print and write growth by decade. Exit with status 1 if a check fails."""
    rules = json.loads((HERE / "expected.json").read_text())
    configs = {
        rule.name: regret_setting.config(Pause(index=rule()), rounds)
        for rule in (Ucb, UcbV, Thompson)
    }
    # Controls: without g, the best cohort is the same in every round, and its gap is constant.
    for name in ("ucb", "thompson"):
        configs[f"{name}, alpha = 0"] = configs[name].override({"reward.alpha": 0.0})
    curves = regret.measure(configs, jax.random.split(jax.random.key(0), seeds))
    outcome = Outcome(f"{seeds} seeds, {rounds} rounds, K = 20, m = 5, two_groups")
    for name in configs:
        values = curves.sel(config=name).values
        outcome.add(f"-- {name}")
        for end in (10**k for k in range(3, 10) if 10**k <= rounds):
            fit = regret.growth(values[:, :end])
            outcome.add(
                f"n = {end:>9,}: R = {values[:, end - 1].mean():8.1f}, exponent over the last "
                f"decade {fit.exponent:.3f} +- {fit.exponent_error:.3f}"
            )
        ratios = decade_ratios(values)
        outcome.add(
            "regret of a decade over that of the decade before: "
            + ", ".join(f"{r:.2f} from n = {n:,}" for n, r in ratios.items())
        )
        if name not in rules["last_ratio"]:
            continue
        least, most = rules["last_ratio"][name]
        last = list(ratios.values())[-1]
        outcome.check(
            f"{name}: last ratio {last:.2f}, from {least} to {most}", least <= last <= most
        )
    outcome.add("-- the last of these ratios for", *references(rounds))
    outcome.judge(family(curves))
    times, gaps = median_gaps(min(rounds, 100_000))
    slope = np.polyfit(np.log(times), np.log(gaps), 1)[0]
    outcome.add("-- gap between the best and the second best cohort, along the genie's history")
    outcome.add(*(f"t = {t:>7,}: {gap:.2e}" for t, gap in zip(times, gaps, strict=True)))
    least, most = rules["gap_slope"]
    outcome.check(
        f"it shrinks like t^{slope:.2f}, exponent from {least} to {most}: no constant delta",
        least <= slope <= most,
    )
    regret_setting.draw({"PAUSE, two_groups": curves}, out)
    outcome.finish(out)


if __name__ == "__main__":
    typer.run(main)
