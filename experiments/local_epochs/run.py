"""Local epochs: do they pay, and do they change the order of the policies?

python -m experiments.local_epochs.run
"""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import jax
import numpy as np
import typer
import xarray as xr
from jax import Array
from numpy.typing import NDArray

from experiments.common import claims, figures
from experiments.common.claims import Claim
from experiments.common.outcome import Outcome
from experiments.gauntlet.run import accuracy_at
from pause_jax import Learning, SimConfig, metrics, sweep
from pause_jax.learning import Digits, DirichletLabels, Mlp
from pause_jax.policies import NAMED
from pause_jax.privacy import NoPrivacy, PerCoordinateLaplace, Uniform
from pause_jax.world.latency import Network

HERE = pathlib.Path(__file__).parent
POLICIES = ("random", "pause", "oort", "fastest")
EPOCHS = (1, 2, 5, 10)
# Networks by where a client's time goes, and seconds that a client needs for sending at least.
# `sending` transfers a megabyte each way, the size of 250,000 weights.
NETWORKS = {
    "computing": (Network(), 0.0),
    "sending": (Network(download_bytes=1e6, upload_bytes=1e6), 0.4),
}
# Times of the comparison, in rounds that `random` plays by then with one epoch on average.
ROUNDS = {"early": 20, "late": 100}
BUDGET = "budget"
BASE = SimConfig(
    num_clients=30, num_selected=5, num_rounds=2000, eval_every=1, track_regret=False,
    privacy=NoPrivacy(),
    learning=Learning(
        data=Digits(), model=Mlp(hidden=(32,)), max_steps=200,
        partition=DirichletLabels(concentration=0.3),
    ),
)  # fmt: skip
# Each client has 12 releases, which 72 rounds of five clients spend.
PRIVATE = PerCoordinateLaplace(sensitivity=0.02, budget=Uniform(total_epsilon=24.0, horizon=12.0))
# Network and time, policy and epochs of the better run and of the other run. Fixed before the runs.
CLAIMS = (
    ("computing late", ("random", 1), ("random", 5)),
    ("computing late", ("pause", 1), ("random", 1)),
    ("computing late", ("random", 1), ("fastest", 1)),
    ("computing early", ("oort", 10), ("random", 10)),
    ("sending early", ("random", 5), ("random", 1)),
    ("sending late", ("pause", 1), ("random", 1)),
    ("sending late", ("random", 10), ("fastest", 10)),
    (BUDGET, ("random", 5), ("random", 1)),
)
# Settings in which PAUSE's lead over random is claimed to be larger with 1 epoch than with 10.
LARGER_LEAD = ("computing late", "sending late")


def config_of(policy: str, epochs: int, network: str) -> SimConfig:
    """Return the config of a policy; tau_min grows with the work, as the fastest latency does."""
    latency, sending = NETWORKS[network]
    latency = latency.replace(min_latency=sending + 0.05 * epochs)
    config = BASE.replace(policy=NAMED[policy], latency=latency)
    return config.override({"learning.epochs": float(epochs)})


def play(
    network: str, changed: Mapping[str, Any], keys: Array, recorded: tuple[str, ...]
) -> xr.Dataset:
    """Run all policies with all epochs and the changed fields."""
    configs = {
        f"{policy}, {epochs} epochs": config_of(policy, epochs, network).replace(**changed)
        for policy in POLICIES
        for epochs in EPOCHS
    }
    return sweep(configs, keys, record=(*recorded, "eval_clock"))


def by_epochs(values: xr.DataArray) -> xr.DataArray:
    """Return values [config, seed] of :func:`play` as [policy, epochs, seed]."""
    each = values.to_numpy().reshape(len(POLICIES), len(EPOCHS), -1)
    return xr.DataArray(
        each, {"policy": [*POLICIES], "epochs": [*EPOCHS]}, ("policy", "epochs", "seed")
    )


def at_equal_seconds(network: str, keys: Array, outcome: Outcome) -> dict[str, xr.DataArray]:
    """Return accuracy in % at both times."""
    alone = config_of("random", 1, network).replace(num_rounds=max(ROUNDS.values()))
    clock = sweep(alone, keys, record=("clock",), progress=False).clock
    times = {when: float(clock.isel(round=rounds - 1).mean()) for when, rounds in ROUNDS.items()}
    late = max(times.values())
    result = play(network, {"max_seconds": late}, keys, ("test_accuracy", "clock", "played"))
    outcome.add("", f"{network}: early {times['early']:.0f} s, late {late:.0f} s; rounds by then:")
    add_table(outcome, by_epochs(result.played.sum("round")), lambda own: f"{own.mean():.0f}")
    enough = (result.clock.max("round") >= late).all()
    outcome.check(f"{network}: every run lasts until the late time", enough)
    return {f"{network} {when}": by_epochs(accuracy_at(result, at)) for when, at in times.items()}


def at_equal_budget(keys: Array, outcome: Outcome) -> xr.DataArray:
    """Return accuracy in % when all budgets are spent."""
    changed = {"privacy": PRIVATE, "num_rounds": 120}
    result = play("computing", changed, keys, ("test_accuracy", "counts"))
    outcome.check("every client releases 12 updates", (result.counts == 12).all())
    return by_epochs(100 * metrics.final_accuracy(result))


def add_table(
    outcome: Outcome, values: xr.DataArray, cell: Callable[[NDArray[np.float64]], str]
) -> None:
    """Add one row per policy, with one cell per number of epochs from its values [seed]."""
    for name, row in zip(POLICIES, values.to_numpy(), strict=True):
        outcome.add(f"  {name:16}" + "".join(f"{cell(each):>12}" for each in row))


def mean_and_error(each: NDArray[np.float64]) -> str:
    """Return the mean over seeds and its standard error as text."""
    return f"{each.mean():.1f}±{each.std(ddof=1) / each.size**0.5:.1f}"


def report(outcome: Outcome, found: Mapping[str, xr.DataArray]) -> None:
    """Add the accuracies, the best number of epochs, and the order of the policies."""
    for setting, each in found.items():
        outcome.add("", f"{setting:18}" + "".join(f"{f'E = {epochs}':>12}" for epochs in EPOCHS))
        add_table(outcome, each, mean_and_error)
        mean = each.mean("seed")
        best = mean.idxmax("epochs").to_series()
        outcome.add("  best E: " + ", ".join(f"{name} {epochs:g}" for name, epochs in best.items()))
        for epochs in EPOCHS:
            order = mean.sel(epochs=epochs).to_series().sort_values(ascending=False).index
            outcome.add(f"  order at E = {epochs}: {', '.join(order)}")


def family_of(found: Mapping[str, xr.DataArray]) -> list[Claim]:
    """Return all claims, with the measured differences."""
    family = []
    for setting, (better, epochs), (worse, than) in CLAIMS:
        text = f"{setting}: {better} at E = {epochs} above {worse} at E = {than}"
        one = found[setting].sel(policy=better, epochs=epochs)
        other = found[setting].sel(policy=worse, epochs=than)
        family.append(claims.larger(text, one, other, "points"))
    for setting in LARGER_LEAD:
        lead = found[setting].sel(policy="pause") - found[setting].sel(policy="random")
        text = f"{setting}: pause leads random by more at E = 1 than at E = 10"
        family.append(claims.larger(text, lead.sel(epochs=1), lead.sel(epochs=10), "points"))
    return family


def draw(found: Mapping[str, xr.DataArray], out: pathlib.Path) -> None:
    """Draw ``out/figures/local_epochs.png``: accuracy by epochs, one panel per setting."""
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, len(found), figsize=(2.7 * len(found), 3.4), sharey=True)
    for axes, (setting, each) in zip(panels, found.items(), strict=True):
        for policy, means in zip(POLICIES, each.mean("seed").to_numpy(), strict=True):
            axes.plot(EPOCHS, means, marker="o", ms=3, label=policy)
        axes.set(title=setting, xlabel="local epochs E", xscale="log")
        axes.set_xticks(EPOCHS, EPOCHS)
        axes.minorticks_off()
    panels[0].set_ylabel("test accuracy in %")
    panels[-1].legend(fontsize=8)
    figure.tight_layout()
    figures.save(figure, out, "local_epochs")
    plt.close(figure)


def main(
    seeds: Annotated[int, typer.Option(help="Of each setting.")] = 16,
    out: Annotated[pathlib.Path, typer.Option(help="Where output is written.")] = HERE,
) -> None:
    """Run, print and write. Exit with status 1 if a check fails."""
    keys = jax.random.split(jax.random.key(0), seeds)
    outcome = Outcome(f"test accuracy in % on non-i.i.d. digits by local epochs E, {seeds} seeds")
    early, late = ROUNDS.values()
    outcome.add(
        f"early and late: {early} and {late} rounds of random at E = 1; {BUDGET}: all spent"
    )
    found: dict[str, xr.DataArray] = {}
    for network in NETWORKS:
        found |= at_equal_seconds(network, keys, outcome)
    found[BUDGET] = at_equal_budget(keys, outcome)
    report(outcome, found)
    outcome.add("")
    outcome.judge(family_of(found))
    draw(found, out)
    outcome.finish(out)


if __name__ == "__main__":
    typer.run(main)
