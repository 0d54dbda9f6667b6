"""Summary of a sweep: a table of each config's metrics, and notes on the runs."""

from __future__ import annotations

import math
import pathlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import pandas as pd
import xarray as xr

from pause_jax.analysis import metrics
from pause_jax.analysis.table import Sheet, label, make_table, number
from pause_jax.run import contract

# Coordinates along ``config`` that are not config fields.
_NO_FIELDS = (
    *("config", "epsilon_unit", "num_parameters", "unnoised", "config_toml", "data_digest"),
)
_UNIT_WORDS = {"coordinate": "per coordinate", "update": "per update"}
_UNIT_MARKS = {"coordinate": "/coord", "update": "/update", "none": ""}


def summary(result: xr.Dataset, target: float) -> list[dict[str, Any]]:
    """Return one row per config, with the mean and standard error of each metric over seeds.

    Args:
      result: data set from ``sweep``.
      target: accuracy for ``seconds_to_target``, in (0, 1].

    Returns:
      Rows with the keys ``config`` (the label), ``epsilon_unit`` and the dotted paths of differing
      config fields. ``seeds`` and ``reached`` are the numbers of all seeds and of seeds that
      reached the target. ``rounds`` and ``empty_rounds`` are the numbers of all rounds and of
      rounds without clients, summed over seeds. Each metric adds ``<name>`` and ``<name>_se``. If
      client accuracies were recorded, ``worst_tenth`` is the mean final accuracy of the worst tenth
      of clients, and ``spread`` is the standard deviation over clients. If any key starts with
      ``reward``, the rewards differ, so the regrets are not comparable.
    """
    to_target = metrics.time_to_accuracy(result, target)
    columns = {
        "accuracy": metrics.final_accuracy(result),
        "best_accuracy": result.test_accuracy.max("eval_round"),
        "loss": metrics.final_loss(result),
        "best_loss": result.test_loss.min("eval_round"),
        "seconds_to_target": to_target,
        "seconds": metrics.simulated_seconds(result),
        "max_spent": metrics.final_spent(result),
        "fairness": metrics.participation_fairness(result),
        "regret": metrics.total_regret(result),
        "gigabytes": metrics.gigabytes(result),
    }
    if "client_accuracy" in result.variables:
        at_clients = metrics.final(result, "client_accuracy")
        columns["worst_tenth"] = metrics.worst_share(at_clients)
        columns["spread"] = at_clients.std("client")
    empty = metrics.empty_rounds(result).sum(("seed", "round"))
    rounds = result.played.sum(("seed", "round"))
    moments = {name: metrics.mean_and_error(values) for name, values in columns.items()}
    varied = varied_fields(result)
    rows = []
    for config in result.config.values:
        row: dict[str, Any] = {
            "config": str(config),
            **{name: values.sel(config=config).item() for name, values in varied.items()},
            "seeds": result.sizes["seed"],
            "reached": int(to_target.sel(config=config).notnull().sum()),
            "epsilon_unit": str(result.epsilon_unit.sel(config=config).item()),
            "rounds": int(rounds.sel(config=config)),
            "empty_rounds": int(empty.sel(config=config)),
        }
        for name, (mean, error) in moments.items():
            row[name] = float(mean.sel(config=config))
            row[f"{name}_se"] = float(error.sel(config=config))
        rows.append(row)
    return rows


def varied_fields(result: xr.Dataset) -> dict[str, xr.DataArray]:
    """Return the values [config] of fields that differ between configs, keyed by dotted path."""
    return {
        str(name): values
        for name, values in result.coords.items()
        if values.dims == ("config",) and name not in _NO_FIELDS
    }


class Table(NamedTuple):
    """Text table for a terminal or a report."""

    title: str
    headings: tuple[str, ...]  # the first column contains row labels
    rows: tuple[tuple[str, ...], ...]
    caption: str


def merits(rows: list[dict[str, Any]], target: float) -> Table:
    """Build the table of main metrics, sorted by ``reached`` and then by ``seconds_to_target``."""
    seeds = rows[0]["seeds"]
    units = {row["epsilon_unit"] for row in rows} - {"none"}
    one_unit = _UNIT_WORDS[units.pop()] if len(units) == 1 else None
    some_empty = any(row["empty_rounds"] for row in rows)
    kind = _kind(rows)
    tails = ("worst_tenth", "spread") if "worst_tenth" in rows[0] else ()
    headings = {
        "accuracy": ("final, %", "best, %", f"s to {100 * target:g} %"),
        "loss": ("final loss", "best loss", "total s"),
        "bandit": ("total s", "regret"),
    }[kind]

    def cells(row: dict[str, Any]) -> tuple[str, ...]:
        spent = "no limit" if math.isinf(row["max_spent"]) else _pm(row, "max_spent", 1)
        if one_unit is None:
            spent += _UNIT_MARKS[row["epsilon_unit"]]
        seconds = _pm(row, "seconds", 1)
        each = {
            "accuracy": (
                _pm(row, "accuracy", 1, 100),
                _pm(row, "best_accuracy", 1, 100),
                _to_target(row),
            ),
            "loss": (_pm(row, "loss", 3), _pm(row, "best_loss", 3), seconds),
            "bandit": (seconds, _pm(row, "regret", 1)),
        }[kind]
        empty = (f"{row['empty_rounds']}/{row['rounds']}",) if some_empty else ()
        at_clients = (_pm(row, name, 1, 100) for name in tails)
        return row["config"], *each, *at_clients, spent, _pm(row, "fairness", 2), *empty

    def soonest_first(row: dict[str, Any]) -> tuple[int, float]:
        return -row["reached"], row["seconds_to_target"] if row["reached"] else 0.0

    marks = ("spent eps", "fairness", "empty") if some_empty else ("spent eps", "fairness")
    return Table(
        f"mean ± standard error over {seeds} seed{'s' if seeds > 1 else ''}",
        ("policy", *headings, *(f"{name.replace('_', ' ')}, %" for name in tails), *marks),
        tuple(cells(row) for row in sorted(rows, key=soonest_first)),
        f"final, best: test {kind}. "
        * (kind != "bandit")
        + "s: simulated seconds. eps: largest budget spent by any client"
        f"{', ' + one_unit if one_unit else ''}. fairness: Jain's index of participation."
        + " worst tenth: the worst clients' mean accuracy. spread: standard deviation over clients."
        * bool(tails)
        + " empty: number of rounds without clients, summed over seeds." * some_empty
        + " These rounds add 0 to the regret." * (some_empty and kind == "bandit")
        + _incomparable(rows) * (kind == "bandit"),
    )


def table(rows: list[dict[str, Any]], target: float) -> Sheet:
    """Build the summary table for a terminal."""
    shown = merits(rows, target)
    first, *others = shown.headings
    columns = [label(first), *map(number, others)]
    return make_table(columns, shown.rows, title=shown.title, caption=shown.caption)


def save(rows: list[dict[str, Any]], path: pathlib.Path) -> None:
    """Write the summary to a CSV file."""
    pd.DataFrame(rows).to_csv(path, index=False, na_rep="nan")


def notes(result: xr.Dataset) -> Iterator[str]:
    """Yield notes on each config's invalid runs, accuracy drop, unscored clients and query time."""
    for name in map(str, result.config.values):
        one = result.sel(config=name)
        if found := contract.not_finite(one.first_nonfinite_round.values):
            yield f"{name}: {found}"
        if found := contract.finding(one.first_broken_round.values, one.broken_rules.values):
            yield f"{name}: WARNING: {found}"
        yield from _collapse(name, one)
        if "client_accuracy" in one:
            scored = one.client_accuracy.notnull().any("eval_round")
            # A run without any client accuracies never had a finite model.
            unscored = ~scored & (one.data_size >= 0) & scored.any("client")
            if most := int(unscored.sum("client").max()):
                yield f"{name}: no accuracy for clients with one sample (up to {most} per seed)."
        waited = (one.query_seconds.sum("round") / one.latency.sum("round")).mean().item()
        if waited > 0:
            yield f"{name}: queries take {100 * waited:.0f} % of the simulated time."


def _collapse(name: str, one: xr.Dataset) -> Iterator[str]:
    """Yield a note if a private model's last mean accuracy is below 70 % of its best."""
    curve = one.test_accuracy.mean("seed").dropna("eval_round")
    if curve.size == 0 or one.epsilon_unit.item() == "none":
        return
    best, last = curve.max().item(), curve[-1].item()
    if last < 0.7 * best:
        yield (
            f"{name}: test accuracy fell from {100 * best:.0f} % (round {int(curve.idxmax())}) to "
            f"{100 * last:.0f} %. The busiest client took part {int(one.counts.max())} times."
        )


def _kind(rows: list[dict[str, Any]]) -> str:
    """Return the table type: ``accuracy``, ``loss`` (regression) or ``bandit`` (no learning)."""
    for kind, name in (("accuracy", "best_accuracy"), ("loss", "best_loss")):
        if any(not math.isnan(row[name]) for row in rows):
            return kind
    return "bandit"


def _incomparable(rows: list[dict[str, Any]]) -> str:
    """Return a warning if the configs' rewards differ, else an empty string."""
    differing = [name for name in rows[0] if name.partition(".")[0] == "reward"]
    if not differing:
        return ""
    return f" Regrets are not comparable, because the configs differ in {', '.join(differing)}."


def _to_target(row: dict[str, Any]) -> str:
    reached, seeds = row["reached"], row["seeds"]
    if not reached:
        return "never"
    seconds = _pm(row, "seconds_to_target", 1)
    return seconds if reached == seeds else f"{seconds} ({reached}/{seeds})"


def _pm(row: dict[str, Any], name: str, digits: int, scale: float = 1.0) -> str:
    value, error = scale * row[name], scale * row[f"{name}_se"]
    if math.isnan(value):
        return "-"
    if math.isnan(error):
        return f"{value:.{digits}f}"
    return f"{value:.{digits}f}±{error:.{digits}f}"
