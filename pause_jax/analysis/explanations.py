"""Why a policy of a sweep did what it did, in sentences made from the data."""

from __future__ import annotations

from collections.abc import Iterator

import jax.numpy as jnp
import numpy as np
import xarray as xr

from pause_jax.analysis import metrics
from pause_jax.config import config_file
from pause_jax.run import contract


def explain(result: xr.Dataset, target: float) -> Iterator[str]:
    """The sentences, those of the comparison with random choice first, then config by config.

    Args:
      result: from ``sweep``.
      target: accuracy whose time is compared, in (0, 1].
    """
    yield from _faster_than_random(result, target)
    for name in result.config.values:
        one = result.sel(config=name)
        bad = one.first_nonfinite_round.values
        if (bad > 0).any():
            yield (
                f"{name}: the model was not finite from round {bad[bad > 0].min()} on "
                f"in {(bad > 0).sum()} of {bad.size} seeds."
            )
        if found := contract.finding(one.first_broken_round.values, one.broken_rules.values):
            yield f"{name}: WARNING: {found}"
        yield from _collapse(str(name), one)
        yield from _spent(str(name), one)
        waited = (one.query_seconds.sum("round") / one.latency.sum("round")).mean().item()
        if waited > 0:
            yield (
                f"{name}: asks clients before it chooses; that takes {100 * waited:.0f} % of its "
                "simulated seconds."
            )


def _faster_than_random(result: xr.Dataset, target: float) -> Iterator[str]:
    """How the soonest private policy compares with random choice, and why."""
    seconds = metrics.time_to_accuracy(result, target).mean("seed", skipna=False)
    private = seconds.where((result.epsilon_unit != "none") & seconds.notnull(), drop=True)
    if "random" not in private.config.values or private.size < 2:
        return
    first = str(private.idxmin().item())
    if first == "random":
        return
    per_round = result.latency.mean(("round", "seed"))
    fairness = metrics.participation_fairness(result).mean("seed")
    soonest, lasts, even = (
        (values.sel(config=first).item(), values.sel(config="random").item())
        for values in (seconds, per_round, fairness)
    )
    yield (
        f"{first} reached {100 * target:g} % after {soonest[0]:.0f} simulated seconds, random "
        f"after {soonest[1]:.0f}: a round of {first} lasts {lasts[0]:.2f} s on average, of random "
        f"{lasts[1]:.2f} s; fairness of participation {even[0]:.2f} and {even[1]:.2f}."
    )


def _collapse(name: str, one: xr.Dataset) -> Iterator[str]:
    """Whether privacy noise has destroyed a model that had learned."""
    curve = one.test_accuracy.mean("seed").dropna("eval_round")
    if curve.size == 0 or one.epsilon_unit.item() == "none":
        return
    best, last = curve.max().item(), curve[-1].item()
    if last < 0.7 * best:
        budget = config_file.loads(one.config_toml.item()).privacy.budget
        left = float(budget.remaining(jnp.asarray(one.counts.max().item())))
        why = "so its last updates drown in noise"
        if left > 0.25:
            why = "so it is the noise of every update that is too much, not that of the last ones"
        yield (
            f"{name}: fell from {100 * best:.0f} % (round {int(curve.idxmax())}) to "
            f"{100 * last:.0f} %. Its busiest client took part {int(one.counts.max())} times and "
            f"has {100 * left:.2g} % of its budget left, {why}."
        )


def _spent(name: str, one: xr.Dataset) -> Iterator[str]:
    """Whether the clients' budgets ended before the rounds did."""
    idle = (one.clients < 0).all(("slot", "seed")) & one.latency.notnull().all("seed")
    idle &= (one.latency == 0).all("seed")
    began = int(np.argmax(idle.values))
    if idle.any() and bool(idle[began:].all()):
        first = int(one["round"][began])
        yield (
            f"{name}: from round {first} on nobody took part in any seed: all budgets were spent, "
            "or nobody was available."
        )
