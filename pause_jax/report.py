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
import numpy as np
import xarray as xr
from rich.table import Table

from pause_jax import config_file, metrics
from pause_jax.struct import ConfigError

_PACKAGES = ("pause_jax", "jax", "jaxlib", "flax", "optax", "numpy", "xarray")
_UNIT_WORDS = {
    "coordinate": "per coordinate",
    "update": "per update",
    "none": "no guarantee",
}


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
    """The summary for a terminal."""
    seeds = rows[0]["seeds"]
    out = Table(
        title=f"mean +- standard error over {seeds} seed{'s' if seeds > 1 else ''}",
        title_justify="left",
    )
    out.add_column("policy")
    for heading in (
        "accuracy at the end, %",
        "best, %",
        f"simulated s to {100 * target:g} %",
        "simulated s in all",
        "max spent eps",
        "fairness",
        "regret",
    ):
        out.add_column(heading, justify="right")
    for row in rows:
        reached = row["reached"]
        to_target = "never" if reached == 0 else _pm(row, "seconds_to_target", 1)
        if 0 < reached < seeds:
            to_target += f" ({reached}/{seeds})"
        unit = _UNIT_WORDS[row["epsilon_unit"]]
        spent = "inf" if math.isinf(row["max_spent"]) else _pm(row, "max_spent", 1)
        out.add_row(
            row["policy"],
            _pm(row, "accuracy", 1, 100),
            _pm(row, "best_accuracy", 1, 100),
            to_target,
            _pm(row, "seconds", 1),
            f"{spent} {unit}",
            _pm(row, "fairness", 2),
            _pm(row, "regret", 1),
        )
    return out


def explanations(result: xr.Dataset) -> Iterator[str]:
    """Sentences that say why a policy did what it did, from the data."""
    final = metrics.final_accuracy(result).mean("seed")
    for name in result.config.values:
        one = result.sel(config=name)
        config = config_file.loads(one.config_toml.item())
        bad = one.first_nonfinite_round.values
        if (bad > 0).any():
            yield (
                f"{name}: the model was not finite from round {bad[bad > 0].min()} on "
                f"in {(bad > 0).sum()} of {bad.size} seeds."
            )
        curve = one.test_accuracy.mean("seed")
        if not np.isfinite(curve).any():
            continue
        best = curve.max().item()
        if final.sel(config=name) < 0.7 * best and one.epsilon_unit.item() != "none":
            most = int(one.counts.max())
            left = 1 - one.spent.max().item() / float(np.max(_total_epsilon(config)))
            yield (
                f"{name}: collapsed from {100 * best:.0f} % (round "
                f"{curve.idxmax().item()}) to {100 * final.sel(config=name).item():.0f} %. Its "
                f"busiest client took part {most} times and has {100 * left:.2g} % of its budget "
                "left, so its last updates drown in noise."
            )
        if one.unnoised.item():
            yield f"{name}: leaves the clients without noise: {one.unnoised.item()}."
    units = set(result.epsilon_unit.values.tolist())
    if "coordinate" in units:
        yield (
            "Budgets are per coordinate (the papers' practice): for a whole update of d parameters "
            "the guarantee is d times weaker."
        )


def _total_epsilon(config: Any) -> float:
    return float(config.privacy.budget.total_epsilon)


def _pm(row: dict[str, Any], name: str, digits: int, scale: float = 1.0) -> str:
    value, error = scale * row[name], scale * row[f"{name}_se"]
    if math.isnan(value):
        return "-"
    if math.isnan(error):
        return f"{value:.{digits}f}"
    return f"{value:.{digits}f} +- {error:.{digits}f}"


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

    Files: ``data.nc``, ``configs/<config>.toml``, ``summary.csv``, ``versions.json``.
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
