"""What clients of small and of large budgets spent, where budgets differ."""

from __future__ import annotations

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from pause_jax.analysis.report.tables import Table

Floats = NDArray[np.float64]

# With more different budgets than these, clients are shown in thirds.
_TIERS = 5
_THIRDS = ("smallest third", "middle third", "largest third")


def show(result: xr.Dataset) -> Table | None:
    """The share of its budget that a client of each tier spent; None if all budgets are equal."""
    if "budget" not in result.variables:  # of a sweep that did not record it
        return None
    each = {
        str(name): _known(*(result[what].sel(config=name).values for what in ("budget", "spent")))
        for name in result.config.values
    }
    if all(np.ptp(budget) <= 1e-6 * np.max(budget) for budget, _ in each.values() if budget.size):
        return None
    every = np.concatenate([budget for budget, _ in each.values()])
    tiers = np.unique([float(f"{value:.4g}") for value in np.unique(every)])
    by_tier = tiers.size <= _TIERS
    rows = []
    for name, (budget, spent) in each.items():
        if by_tier:
            groups = [np.isclose(budget, tier, rtol=1e-3) for tier in tiers]
        else:
            order = np.argsort(budget, kind="stable")
            groups = np.array_split(order, len(_THIRDS))
        rows.append((name, *(_cell(budget[group], spent[group], by_tier) for group in groups)))
    headings = tuple(f"budget {tier:g}" for tier in tiers) if by_tier else _THIRDS
    words = "Mean share of its own budget that a client spent"
    words += "." if by_tier else ", by size of budget, and the mean budget."
    return Table("Budget spent by size of budget", ("config", *headings), tuple(rows), words)


def _known(budget: Floats, spent: Floats) -> tuple[Floats, Floats]:
    """Of all seeds and clients that exist and have a limit, flat."""
    there = np.isfinite(budget) & np.isfinite(spent)
    return budget[there].astype(np.float64), spent[there].astype(np.float64)


def _cell(budget: Floats, spent: Floats, by_tier: bool) -> str:
    if not budget.size:
        return "-"
    share = f"{100 * float(np.mean(spent / budget)):.1f} %"
    return share if by_tier else f"{share} of {budget.mean():.3g}"
