"""Report tables. Cells are plain text, which the page's template escapes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from pause_jax.analysis import ledger_table, metrics, summary
from pause_jax.analysis.comparison import Aim, Comparison, Difference, listed, quoted
from pause_jax.analysis.ledger import Ledger
from pause_jax.analysis.participation import Participation
from pause_jax.analysis.summary import Table

Places = NDArray[np.intp]

# Maximum number of budget columns. With more distinct budgets, split the clients into thirds.
_TIERS = 5


def merits(result: xr.Dataset, target: float) -> Table:
    """Return the results table, with the same cells as the terminal table."""
    found = summary.merits(summary.summary(result, target), target)
    title = f"{found.title[0].upper()}{found.title[1:]}"
    headings = ("config", *found.headings[1:])
    return Table("Results", headings, found.rows, f"{title}. {found.caption}")


def differing(result: xr.Dataset) -> Table:
    """Return the table of differing fields, listing the configs that use each value."""
    rows = []
    for path, values in summary.varied_fields(result).items():
        configs: dict[str, list[str]] = {}
        for name, value in zip(result.config.values, values.values.tolist(), strict=True):
            if text := _plain(value):
                configs.setdefault(text, []).append(quoted(str(name)))
        cells = [f"{text}: {listed(each, 20)}" for text, each in configs.items()]
        rows.append((path, "; ".join(cells)))
    words = "All other fields are the same." if rows else "No fields differ."
    return Table("Differing fields", ("field", "values"), tuple(rows), words)


def judged(result: xr.Dataset, comparison: Comparison) -> Table | None:
    """Return the table of differences from the reference config, or None if nothing is compared."""
    if not comparison.against or result.sizes["config"] == 1:
        return None
    headings = ("config", *(aim.title for aim in comparison.aims))
    pairs = list(zip(comparison.aims, comparison.differences, strict=True))
    rows = tuple(
        (name, *(_difference(others[name], aim) for aim, others in pairs))
        for name in map(str, result.config.values)
        if name != comparison.against
    )
    title = f"Differences from {quoted(comparison.against)}"
    return Table(title, headings, rows, _caption_of(result, comparison))


def _caption_of(result: xr.Dataset, comparison: Comparison) -> str:
    if result.sizes["seed"] == 1:
        return "With only one seed, any difference may be due to chance. Run more seeds."
    number = comparison.comparisons
    others = result.sizes["config"] - 1
    fixed = (
        f"With a reference fixed in advance (--against), only {others} comparisons are needed, and "
        "the intervals are narrower. "
    )
    return (
        "Mean paired difference [paired t-interval]. Paired runs use the same key. The "
        "intervals of a column hold jointly with 95 % confidence (Bonferroni correction for "
        f"{number} comparison{'s' * (number > 1)}). {fixed if number > others else ''}"
        "~: not significant, because the interval contains 0. A difference computed from only "
        "some seeds is never called significant, because the outcomes decide which seeds are used."
    )


def _difference(each: Difference, aim: Aim) -> str:
    if not each.pairs:
        return "no pairs"
    text = f"{each.mean:+,.{aim.digits}f}"
    if math.isfinite(each.low):
        text += f" [{each.low:+,.{aim.digits}f}, {each.high:+,.{aim.digits}f}]"
    if each.pairs < each.seeds:
        return f"{text} ({each.pairs} of {each.seeds} seeds)"
    return text if each.shown else f"{text} ~"


def privacy(books: dict[str, Ledger]) -> Table:
    """Return the ledger table, with one row per config. Values are maxima over clients."""
    _, *headings = ledger_table.HEADINGS
    titles = ("config", *(heading.replace("\n", " ") for heading in headings))
    rows = tuple(ledger_table.rows(books))
    return Table("Privacy ledger", titles, rows, ledger_table.caption(books))


def participation(result: xr.Dataset, found: dict[str, Participation]) -> Table:
    """Return a table of fairness metrics and, if speeds are known, participation by speed."""
    fairness, error = metrics.mean_and_error(metrics.participation_fairness(result))
    ordered = all(each.seconds is not None for each in found.values())
    rows = []
    names = ("fastest third", "middle third", "slowest third")
    for name, each in found.items():
        cells = [name]
        for group in np.array_split(np.arange(each.share.shape[1]), len(names)):
            if each.seconds is not None:
                share, seconds = each.share[:, group], each.seconds[group]
                text = f"{100 * share.mean():.1f} % ({seconds.mean():.3g} s)" if share.size else "-"
                cells.append(text)
        mean, spread = float(fairness.sel(config=name)), float(error.sel(config=name))
        cells.append(f"{mean:.2f}" + (f" ± {spread:.2f}" if np.isfinite(spread) else ""))
        rows.append(tuple(cells))
    caption = "Fairness: Jain's index (1 if all clients took part equally often)."
    if ordered:
        caption = (
            "Mean share of rounds in which a client in the group took part. In parentheses: the "
            f"group's mean expected latency. {caption}"
        )
    groups = names if ordered else ()
    return Table("Participation by speed", ("config", *groups, "fairness"), tuple(rows), caption)


def left_behind(result: xr.Dataset, found: dict[str, Participation]) -> Table | None:
    """Return the table of final accuracy by client group, or None if client accuracy is missing."""
    if "client_accuracy" not in result.variables:
        return None
    final = metrics.final(result, "client_accuracy").transpose("config", "seed", "client")
    headings, budgets = _by_budget(result) or ((), {})
    rows: list[tuple[str, ...]] = []
    for name, each in found.items():
        accuracy = final.sel(config=name).values
        worst = metrics.worst_share(final.sel(config=name)).values
        groups = {"all clients": accuracy, "worst tenth": worst}
        if each.clients is not None:
            fast, _, slow = np.array_split(each.clients, 3)
            groups |= {"fastest third": accuracy[:, fast], "slowest third": accuracy[:, slow]}
        counts = result.counts.sel(config=name).values[:, : each.share.shape[1]]
        rare, _, often = np.array_split(np.argsort(counts, axis=1, kind="stable"), 3, axis=1)
        groups["most active third"] = np.take_along_axis(accuracy, often, axis=1)
        groups["least active third"] = np.take_along_axis(accuracy, rare, axis=1)
        parts = (accuracy.ravel()[places] for places in budgets.get(name, ()))
        groups |= zip(headings, parts, strict=True)
        rows.append((name, *map(_percent, groups.values())))
    caption = (
        "Final accuracy on clients' held-out samples, in %. Activity is the number of "
        "participations. Only the simulator knows these accuracies. Clients do not send them."
    )
    return Table("Who is left behind", ("config", *groups), tuple(rows), caption)


def _percent(values: NDArray[np.floating]) -> str:
    known = values[np.isfinite(values)]
    return f"{100 * known.mean():.1f}" if known.size else "-"


def _by_budget(result: xr.Dataset) -> tuple[tuple[str, ...], dict[str, list[Places]]] | None:
    """Group clients by budget, or return None if budgets are unknown or do not vary in any config.

    Returns the group names and, for each config, the indices of each group's clients in a
    flattened [seed, client] array. Padding and clients with unlimited budgets are excluded.
    """
    if "budget" not in result.variables:
        return None
    budgets = {
        str(name): result.budget.sel(config=name).values.astype(np.float64).ravel()
        for name in result.config.values
    }
    finite = {name: budget[np.isfinite(budget)] for name, budget in budgets.items()}
    if all(np.ptp(budget) <= 1e-6 * np.max(budget) for budget in finite.values() if budget.size):
        return None
    every = np.unique(np.concatenate(list(finite.values())))
    tiers = np.unique([float(f"{value:.4g}") for value in every])
    if tiers.size <= _TIERS:
        return tuple(f"budget {tier:g}" for tier in tiers), {
            name: [np.flatnonzero(np.isclose(budget, tier, rtol=1e-3)) for tier in tiers]
            for name, budget in budgets.items()
        }
    return ("smallest budgets", "middle budgets", "largest budgets"), {
        # Non-finite budgets are sorted last.
        name: np.array_split(np.argsort(budget, kind="stable")[: finite[name].size], 3)
        for name, budget in budgets.items()
    }


def by_budget(result: xr.Dataset) -> Table | None:
    """Return the table of budget use by client group, or None if clients cannot be grouped."""
    if (found := _by_budget(result)) is None:
        return None
    headings, groups = found
    rows = []
    for name, places in groups.items():
        budget, spent = (
            result[what].sel(config=name).values.astype(np.float64).ravel()
            for what in ("budget", "spent")
        )
        rows.append((name, *(_share(budget[place], spent[place]) for place in places)))
    words = "Mean of spent / budget over clients. If a group's budgets differ, also their mean."
    return Table("Budget spent, by budget size", ("config", *headings), tuple(rows), words)


def _share(budget: np.ndarray, spent: np.ndarray) -> str:
    if not budget.size:
        return "-"
    share = f"{100 * float(np.mean(spent / budget)):.1f} %"
    return share if np.ptp(budget) <= 1e-3 * budget[0] else f"{share} of {budget.mean():.3g}"


def answers(result: xr.Dataset) -> Table:
    """Return the table of answer rates, staleness and waiting time."""
    seconds = metrics.simulated_seconds(result)
    answered = result.staleness >= 0
    columns = {
        "answers / s": answered.sum(("round", "slot")) / seconds,
        "useful updates / s": result.useful.sum("round") / seconds,
        "staleness": result.staleness.where(answered).mean(("round", "slot")),
        "wait, s": result.waiting.mean("round"),
    }
    means = [metrics.mean_and_error(values)[0] for values in columns.values()]
    rows = [
        (str(name), *(f"{float(mean.sel(config=name)):.3g}" for mean in means))
        for name in result.config.values
    ]
    words = (
        "Useful updates: sum of the staleness factors of averaged updates. Wait: mean time from a "
        "client's answer to the server step. Means over seeds."
    )
    return Table("Answers and staleness", ("config", *columns), tuple(rows), words)


def attributes(result: xr.Dataset) -> Table:
    """Return the table of the data set's attributes."""
    known = dict(result.attrs)
    first = {name: known.pop(name) for name in ("command", "seed") if name in known}
    rows = tuple((str(name), str(value)) for name, value in {**first, **known}.items())
    return Table("Provenance", ("attribute", "value"), rows, "")


def _plain(value: Any) -> str:
    if isinstance(value, float):
        return "" if math.isnan(value) else f"{value:g}"
    return str(value)
