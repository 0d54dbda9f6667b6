"""Fashion-MNIST on clients with three budgets: how each policy uses strict clients.

python -m experiments.unequal_budgets.run --data-dir FOLDER
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
from experiments.unequal_budgets.settings import (
    MEANING,
    POLICIES,
    ROUNDS,
    TIERS,
    budgets,
    config_of,
    data_of,
)
from pause_jax import sweep

HERE = pathlib.Path(__file__).parent
RECORDED = ("test_accuracy", "eval_clock", "clock", "counts", "spent")
# Better policy, other policy, and column of the comparison.
CLAIMS = (
    ("pause, largest", "pause", "rounds"),
    ("random", "pause", "rounds"),
    ("noise_sampling", "random", "rounds"),
    ("noise_sampling", "pause, largest", "rounds"),
    ("tolerant_first", "noise_sampling", "rounds"),
    ("pause, largest", "random", "seconds"),
    ("pause, largest", "noise_sampling", "seconds"),
)


def accuracies(result: xr.Dataset, seconds: float) -> dict[str, xr.DataArray]:
    """Return accuracy in % [config, seed] after all rounds and at the last evaluation by a time."""
    accuracy = 100 * result.test_accuracy
    by_then = (result.eval_clock <= seconds).sum("eval_round")
    return {
        "rounds": accuracy.isel(eval_round=-1),
        "seconds": accuracy.isel(eval_round=(by_then - 1).clip(0)),
    }


def report(outcome: Outcome, setting: str, result: xr.Dataset, seconds: float) -> None:
    """Add the table of a setting."""
    rounds = result.sizes["round"]
    after, epsilon = accuracies(result, seconds), budgets()
    outcome.add("", f"{setting}: {MEANING[setting]}")
    outcome.add(
        f"  {'policy':26}{f'{rounds} rounds':>12}{f'{seconds:.0f} s':>12}{'all s':>8}"
        + "".join(f"{tier:>9}" for tier in TIERS)
        + f"{'epsilon':>9}{'of':>6}"
    )
    for name in map(str, result.config.values):
        own = result.sel(config=name)
        cells = [after[when].sel(config=name).values for when in ("rounds", "seconds")]
        counts, spent = own.counts.mean("seed").values, own.spent.mean("seed").values
        shares = [100 * counts[epsilon == eps].sum() / counts.sum() for eps, _ in TIERS.values()]
        outcome.add(
            f"  {name:26}"
            + "".join(f"{f'{each.mean():.1f}±{each.std(ddof=1):.1f}':>12}" for each in cells)
            + f"{float(own.clock.isel(round=-1).mean()):8.0f}"
            + "".join(f"{share:8.0f}%" for share in shares)
            + (
                f"{spent.mean():9.1f}{100 * (spent / epsilon).mean():5.0f}%"
                if name in POLICIES
                else ""
            )
        )


def draw(results: dict[str, xr.Dataset], out: pathlib.Path) -> None:
    """Draw ``out/figures/unequal_budgets.png``: accuracy by seconds, one panel per setting."""
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, len(results), figsize=(11, 4), sharey=True, squeeze=False)
    for axes, (setting, result) in zip(panels[0], results.items(), strict=True):
        for name, style in zip(result.config.values, 2 * ("-", "--", ":", "-."), strict=False):
            own = result.sel(config=name)
            mean = 100 * own.test_accuracy.mean("seed")
            axes.plot(own.eval_clock.mean("seed"), mean, ls=style, label=str(name), lw=1.4)
        axes.set(title=setting, xlabel="simulated seconds", xlim=(0, None))
    panels[0][0].set_ylabel("test accuracy in %")
    panels[0][-1].legend(fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    figure.tight_layout()
    figures.save(figure, out, "unequal_budgets")
    plt.close(figure)


def main(
    data_dir: Annotated[str | None, typer.Option(help="Prepared data sets, if not TFDS's.")] = None,
    seeds: Annotated[int, typer.Option(help="Of each setting.")] = 10,
    rounds: Annotated[int, typer.Option(help="Of each run.")] = ROUNDS,
    out: Annotated[pathlib.Path, typer.Option(help="Where output is written.")] = HERE,
) -> None:
    """Run, print and write. Exit with status 1 if a check fails."""
    keys = jax.random.split(jax.random.key(0), seeds)
    configs = {name: config_of(policy, rounds) for name, policy in POLICIES.items()}
    configs["random, no noise"] = config_of(POLICIES["random"], rounds, private=False)
    tiers = ", ".join(f"{share:.0%} {tier} {eps:g}" for tier, (eps, share) in TIERS.items())
    outcome = Outcome(f"Fashion-MNIST, budgets by client: {tiers}; {seeds} seeds")
    outcome.add(
        "accuracy in % after all rounds, and after the time of half as many random rounds;",
        "seconds of all rounds; share of the participations by tier; epsilon that a client spent",
        "in the mean, and its share of the client's budget",
    )
    family: list[claims.Claim] = []
    results = {}
    for setting in MEANING:
        result = sweep(configs, keys, data=data_of(setting, data_dir), record=RECORDED)
        seconds = float(result["clock"].sel(config="random").isel(round=rounds // 2 - 1).mean())
        results[setting], after = result, accuracies(result, seconds)
        report(outcome, setting, result, seconds)
        for one, other, when in CLAIMS:
            better, worse = (after[when].sel(config=name).values for name in (one, other))
            claim = f"{setting}, equal {when}: {one} above {other}"
            family.append(claims.larger(claim, better, worse, "points"))
        share = result.spent.sel(config=list(POLICIES)) / budgets()
        outcome.check(f"{setting}: nobody spends more than its budget", np.all(share < 1 + 1e-5))
        jax.clear_caches()
    outcome.add("")
    outcome.judge(family)
    draw(results, out)
    outcome.finish(out)


if __name__ == "__main__":
    typer.run(main)
