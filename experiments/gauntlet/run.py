"""Gauntlet: accuracy of every policy on every fleet after the same simulated time.

python -m experiments.gauntlet.run
"""

from __future__ import annotations

import hashlib
import math
import pathlib
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Any

import jax
import pandas as pd
import typer
import xarray as xr
from jax import Array

from experiments.common.curves import changes
from experiments.common.outcome import Outcome
from experiments.gauntlet.fleets import LEFT_OUT, MEANING, YARDSTICK, fleets, policies
from experiments.gauntlet.picture import draw
from experiments.gauntlet.verdicts import Judgement, best_of, judged
from pause_jax import SimConfig, sweep
from pause_jax.base.struct import ConfigError
from pause_jax.config import validate
from pause_jax.learning import Dataset
from pause_jax.policies import named

HERE = pathlib.Path(__file__).parent
# Times of the comparison, in rounds that the yardstick plays by then on average.
ROUNDS = {"early": 12, "late": 60}


def times_for(config: SimConfig, data: Dataset | None, keys: Array) -> dict[str, float]:
    """Return the mean simulated seconds in which the yardstick plays ``ROUNDS``, by name."""
    alone = config.replace(policy=named(YARDSTICK), num_rounds=max(ROUNDS.values()))
    clock = sweep(alone, keys[:4], data=data, record=("clock",), progress=False).clock
    return {when: float(clock.isel(round=rounds - 1).mean()) for when, rounds in ROUNDS.items()}


def accuracy_at(result: xr.Dataset, seconds: float, name: str = "test_accuracy") -> xr.DataArray:
    """Return accuracy in % [config, seed] at the last evaluation by then, or else at the first.

    ``name`` may be another accuracy, such as ``client_accuracy``.
    """
    by_then = (result.eval_clock <= seconds).sum("eval_round")
    last = result[name].isel(eval_round=(by_then - 1).clip(0))
    return 100 * last.drop_vars("eval_round")


def accuracies_at(result: xr.Dataset, times: Mapping[str, float]) -> xr.Dataset:
    """Return accuracy in % [config, seed] at each time."""
    return xr.Dataset({when: accuracy_at(result, at) for when, at in times.items()})


def scores(
    fleet: str,
    only: list[str],
    seeds: int,
    kept: pathlib.Path,
    measure: Callable[[xr.Dataset, Mapping[str, float]], xr.Dataset] = accuracies_at,
    recorded: Sequence[str] = ("test_accuracy",),
    changed: Mapping[str, Any] = MappingProxyType({}),
) -> pd.DataFrame:
    """Return the scores of policies on a fleet, after running policies missing from ``kept``.

    Args:
      fleet: name of the fleet.
      only: names of the policies.
      seeds: number of seeds.
      kept: file of the scores that are already known.
      measure: function that computes the scores [config, seed] from a result and the times.
      recorded: quantities that ``measure`` reads, besides the clock.
      changed: fields of the fleet's config to override, by dotted path.

    Returns:
      One row per run with policy, seed, made_by, and the scores (by default, the accuracy at each
      time). A policy that cannot run on the fleet has no rows.
    """
    config, data = fleets()[fleet]
    config = config.override(changed)
    configs = {name: config.replace(policy=policies()[name]) for name in only}
    made_by = {name: stamp(each, seeds) for name, each in configs.items()}
    table = pd.read_csv(kept) if kept.exists() else pd.DataFrame(columns=["policy", "made_by"])
    table = table[table.made_by.isin(made_by.values())]
    missing = {n: c for n, c in configs.items() if made_by[n] not in set(table.made_by)}
    for name in [name for name, each in missing.items() if not can_run(fleet, name, each)]:
        del missing[name]
    if missing:
        keys = jax.random.split(jax.random.key(0), seeds)
        times = times_for(config, data, keys)
        longest = {n: c.replace(max_seconds=max(times.values())) for n, c in missing.items()}
        new = measure(sweep(longest, keys, data=data, record=("eval_clock", *recorded)), times)
        rows = new.to_dataframe()[list(new)].reset_index().rename(columns={"config": "policy"})
        rows = rows.assign(made_by=rows.policy.map(made_by))
        table = rows if table.empty else pd.concat([table, rows])
        kept.parent.mkdir(parents=True, exist_ok=True)
        table.to_csv(kept, index=False, float_format="%.5g")
        # Kept scores are rounded. Unrounded new scores would turn ties with them into leads.
        table = pd.read_csv(kept)
        # A process can hold only a few hundred compiled programs.
        jax.clear_caches()
    return table


def stamp(config: SimConfig, seeds: int) -> str:
    """Return a hash of a config's fields that are not at their defaults, and of the seeds."""
    return hashlib.sha256(f"{seeds} {changes(config)}".encode()).hexdigest()[:16]


def can_run(fleet: str, name: str, config: SimConfig) -> bool:
    """Return whether a policy can run on a fleet, and print the reason if not."""
    try:
        validate(config)
    except ConfigError as error:
        typer.echo(f"{fleet}: {name} cannot run. {error}", err=True)
        return False
    return True


def main(
    seeds: Annotated[int, typer.Option(help="Of each fleet.")] = 16,
    only: Annotated[str, typer.Option(help="Fleets, with commas; all by default.")] = "",
    choose: Annotated[str, typer.Option(help="Policies, with commas; all by default.")] = "",
    out: Annotated[pathlib.Path, typer.Option(help="Where output is written.")] = HERE,
) -> None:
    """Run missing policies, and print and write the tables and the picture."""
    names = choose.split(",") if choose else list(policies())
    found: dict[str, pd.DataFrame] = {}
    for fleet in only.split(",") if only else fleets():
        found[fleet] = scores(fleet, names, seeds, out / "kept" / f"{fleet}.csv")
    verdicts = judged(found, list(ROUNDS), YARDSTICK)
    report(verdicts, best_first(verdicts["late"], names), seeds, out)


def best_first(now: dict[str, dict[str, Judgement]], names: list[str]) -> list[str]:
    """Sort policies by their mean lead over the yardstick, on the fleets where they can run."""

    def ahead(name: str) -> float:
        each = [by_policy[name].ahead for by_policy in now.values() if name in by_policy]
        return sum(each) / len(each) if each else -math.inf

    return sorted(names, key=ahead, reverse=True)


def report(
    verdicts: dict[str, dict[str, dict[str, Judgement]]],
    names: list[str],
    seeds: int,
    out: pathlib.Path,
) -> None:
    """Print and write the tables and the picture; ``verdicts`` are by time, fleet and policy."""
    first = next(iter(verdicts.values()))
    count = sum(len(each) - 1 for now in verdicts.values() for each in now.values())
    outcome = Outcome(f"test accuracy in % on digits after the same simulated time, {seeds} seeds")
    outcome.add(
        f"+ and -: ahead of and behind {YARDSTICK} in significantly more than half of the worlds",
        f"(exact sign tests; any false mark among {count} cells has a probability of at most 5 %)",
        f"times in which {YARDSTICK} plays about: "
        + ", ".join(f"{when} {rounds} rounds" for when, rounds in ROUNDS.items()),
        "",
        *(f"{fleet:8} {MEANING[fleet]}" for fleet in first),
        *(f"not run: {name}, {why}" for name, why in LEFT_OUT.items()),
    )
    for when, now in verdicts.items():
        outcome.add("", f"{when:24}" + "".join(f"{fleet:>11}" for fleet in now))
        for name in names:
            cells = (str(each[name]) if name in each else "cannot " for each in now.values())
            outcome.add(f"{name:24}" + "".join(f"{cell:>11}" for cell in cells))
        outcome.add("", f"{when}: best, and those that beat it in at least one world")
        outcome.add(*(f"  {fleet:8} {', '.join(best_of(each))}" for fleet, each in now.items()))
    draw(verdicts, names, out)
    outcome.finish(out)


if __name__ == "__main__":
    typer.run(main)
