"""Tables, explanations and files of a comparison."""

from __future__ import annotations

import csv
import json
import math
import pathlib
import platform
from collections.abc import Iterator
from importlib import metadata
from typing import Any

import jax
import jax.numpy as jnp
import xarray as xr
from rich import box
from rich.table import Table

from pause_jax import config_file
from pause_jax.analysis import metrics, privacy_report
from pause_jax.struct import ConfigError

_PACKAGES = ("pause_jax", "jax", "jaxlib", "flax", "optax", "numpy", "xarray")
# Of the first column at the least: long names are folded, numbers never cut.
_WIDTH_OF_NAMES = 12
_UNIT_WORDS = {"coordinate": "per coordinate", "update": "per update"}
_UNIT_MARKS = {"coordinate": "/coord", "update": "/update", "none": ""}


def summary(result: xr.Dataset, target: float) -> list[dict[str, Any]]:
    """One row a config: mean and standard error over seeds of every figure of merit.

    Args:
      result: from ``sweep``.
      target: accuracy whose time is asked for, in (0, 1].

    Returns:
      Rows with ``policy``, ``reached`` and ``seeds`` (seeds that reached the target, all seeds),
      ``epsilon_unit``, and for each figure of merit ``<name>`` and ``<name>_se``.
    """
    to_target = metrics.time_to_accuracy(result, target)
    columns = {
        "accuracy": metrics.final_accuracy(result),
        "best_accuracy": result.test_accuracy.max("eval_round"),
        "seconds_to_target": to_target,
        "seconds": metrics.simulated_seconds(result),
        "max_spent": metrics.final_spent(result),
        "fairness": metrics.participation_fairness(result),
        "regret": metrics.total_regret(result),
    }
    moments = {name: metrics.mean_and_error(values) for name, values in columns.items()}
    rows = []
    for config in result.config.values:
        row: dict[str, Any] = {
            "policy": str(config),
            "seeds": result.sizes["seed"],
            "reached": int(to_target.sel(config=config).notnull().sum()),
            "epsilon_unit": str(result.epsilon_unit.sel(config=config).item()),
        }
        for name, (mean, error) in moments.items():
            row[name] = float(mean.sel(config=config))
            row[f"{name}_se"] = float(error.sel(config=config))
        rows.append(row)
    return rows


def table(rows: list[dict[str, Any]], target: float) -> Table:
    """The summary for a terminal, soonest to the target first."""
    seeds = rows[0]["seeds"]
    units = {row["epsilon_unit"] for row in rows} - {"none"}
    one_unit = _UNIT_WORDS[units.pop()] if len(units) == 1 else None
    out = Table(
        title=f"mean ± standard error over {seeds} seed{'s' if seeds > 1 else ''}",
        title_justify="left",
        caption=(
            "end, best: test accuracy. s: simulated seconds. eps: most budget spent by any client"
            f"{', ' + one_unit if one_unit else ''}. fairness: Jain's index of participation."
        ),
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )
    learned = any(not math.isnan(row["best_accuracy"]) for row in rows)
    headings = (
        ("end, %", "best, %", f"s to {100 * target:g} %") if learned else ("s in all", "regret")
    )
    out.add_column("policy", overflow="fold", min_width=_WIDTH_OF_NAMES)
    for heading in (*headings, "spent eps", "fairness"):
        out.add_column(heading, justify="right", no_wrap=True, min_width=len(heading))

    def soonest_first(row: dict[str, Any]) -> tuple[int, float]:
        return -row["reached"], row["seconds_to_target"] if row["reached"] else 0.0

    for row in sorted(rows, key=soonest_first):
        reached = row["reached"]
        to_target = _pm(row, "seconds_to_target", 1) if reached else "never"
        if 0 < reached < seeds:
            to_target += f" ({reached}/{seeds})"
        spent = "no limit" if math.isinf(row["max_spent"]) else _pm(row, "max_spent", 1)
        if one_unit is None:
            spent += _UNIT_MARKS[row["epsilon_unit"]]
        if learned:
            cells = [_pm(row, "accuracy", 1, 100), _pm(row, "best_accuracy", 1, 100), to_target]
        else:
            cells = [_pm(row, "seconds", 1), _pm(row, "regret", 1)]
        out.add_row(row["policy"], *cells, spent, _pm(row, "fairness", 2))
    return out


def explanations(result: xr.Dataset, target: float) -> Iterator[str]:
    """Sentences that say why a policy did what it did, from the data."""
    yield from _faster_than_random(result, target)
    for name in result.config.values:
        one = result.sel(config=name)
        bad = one.first_nonfinite_round.values
        if (bad > 0).any():
            yield (
                f"{name}: the model was not finite from round {bad[bad > 0].min()} on "
                f"in {(bad > 0).sum()} of {bad.size} seeds."
            )
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
    if idle.any() and bool(idle[int(idle.argmax()) :].all()):
        first = int(one["round"][int(idle.argmax())])
        yield (
            f"{name}: from round {first} on nobody took part in any seed: all budgets were spent, "
            "or nobody was available."
        )


def _pm(row: dict[str, Any], name: str, digits: int, scale: float = 1.0) -> str:
    value, error = scale * row[name], scale * row[f"{name}_se"]
    if math.isnan(value):
        return "-"
    if math.isnan(error):
        return f"{value:.{digits}f}"
    return f"{value:.{digits}f}±{error:.{digits}f}"


def reserve(root: pathlib.Path, name: str, *, explicit: bool, force: bool) -> pathlib.Path:
    """The folder for a result, decided before the run so that nothing is lost after it.

    Args:
      root: folder of all results.
      name: of this one.
      explicit: whether the user gave the name; otherwise a number is added to a taken one.
      force: whether a taken folder may be written to.

    Returns:
      The folder, created.

    Raises:
      ConfigError: if an explicit name is taken and ``force`` is not set, or it cannot be made.
    """
    folder = root / name
    if folder.exists() and not force:
        if explicit:
            raise ConfigError(
                f"{folder} exists: results are not overwritten. Choose another --name, or --force."
            )
        folder = next(
            path for n in range(2, 100_000) if not (path := root / f"{name}-{n}").exists()
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be created ({error.strerror}).") from None
    return folder


def save(result: xr.Dataset, folder: pathlib.Path, target: float) -> None:
    """Write data, configs, summary and versions of a result into its folder.

    Files: ``data.nc``, ``configs/<config>.toml``, ``summary.csv``, ``ledger.csv`` and
    ``versions.json``.
    """
    result.to_netcdf(folder / "data.nc")
    configs = folder / "configs"
    configs.mkdir(exist_ok=True)
    for name in result.config.values:
        text = result.config_toml.sel(config=name).item()
        (configs / f"{_file_name(name)}.toml").write_text(text)
    rows = summary(result, target)
    with (folder / "summary.csv").open("w", newline="") as out:
        writer = csv.DictWriter(out, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    privacy_report.save(privacy_report.ledgers(result), folder / "ledger.csv")
    (folder / "versions.json").write_text(json.dumps(versions(), indent=2) + "\n")


def versions() -> dict[str, str]:
    """Versions of what a result depends on, and the devices."""
    return {
        "python": platform.python_version(),
        **{package: metadata.version(package) for package in _PACKAGES},
        "devices": ", ".join(str(device) for device in jax.devices()),
    }


def _file_name(label: str) -> str:
    return "".join(c if c.isalnum() or c in "-_." else "_" for c in label)
