"""Privacy ledgers of a sweep, as a terminal table or a per-client CSV file."""

from __future__ import annotations

import math
import pathlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from pause_jax.analysis.ledger import HINT, Ledger, ledger
from pause_jax.analysis.table import Sheet, label, make_table, number, word

COLUMNS = (
    "policy", "seed", "client", "client_id", "mechanism", "unit", "participations", "releases",
    "budget", "spent", "eps_whole_update", "exhausted", "last_release",
    "tight_of_the_busiest", "tight_at_most", "delta", "unnoised", "warning",
)  # fmt: skip
_UNITS = {"coordinate": "coord", "update": "update", "none": "-"}


def ledgers(result: xr.Dataset) -> dict[str, Ledger]:
    """Return the ledger of each config of a ``sweep``, covering all seeds."""
    return {str(name): ledger(result.sel(config=name)) for name in result.config.values}


HEADINGS = (
    "policy", "unit", "eps/coord\nbasic", "eps/update\nbasic", "eps/unit\nPLD", "PLD,\nat most",
    "times\nchosen",
)  # fmt: skip


def rows(books: dict[str, Ledger]) -> Iterator[tuple[str, ...]]:
    """Yield one row per config with the columns ``HEADINGS``. Values are maxima over clients."""
    for name, book in books.items():

        def of_update(epsilon: float, book: Ledger = book) -> str:
            # An infinite epsilon ("no limit") needs no warning mark.
            return _epsilon(epsilon) + " (!)" * (bool(book.warning) and math.isfinite(epsilon))

        of_unit = of_update if book.unit == "update" else _epsilon
        yield (
            name,
            _UNITS[book.unit],
            _epsilon(book.spent.max(), digits=6),
            of_update(book.whole_update.max()),
            of_unit(book.tight),
            of_unit(book.tight_at_most),
            str(book.participations.max()),
        )


def caption(books: dict[str, Ledger]) -> str:
    """Return a caption that explains the table's columns."""
    delta = next(iter(books.values())).delta
    return (
        "Values are maxima over clients and seeds. basic: sum over the client's releases. If "
        "the unit is a coordinate, an update's epsilon is d times this sum. PLD: tight total "
        f"epsilon at delta {delta:g}, if participation does not depend on the data. at most: this "
        "total for a client chosen every round. Report 'at most' if selection depends on releases."
    )


def table(books: dict[str, Ledger]) -> Sheet:
    """Build the table of each config's largest epsilons, per coordinate and per update."""
    policy, unit, *numbers = HEADINGS
    return make_table(
        [label(policy), word(unit), *map(number, numbers)],
        list(rows(books)),
        title="privacy",
        caption=caption(books),
    )


def notes(books: dict[str, Ledger]) -> Iterator[str]:
    """Yield notes on the ledgers, such as warnings about data sent without noise."""
    warnings: dict[str, list[str]] = {}
    for name, book in books.items():
        if book.warning:
            warnings.setdefault(book.warning, []).append(name)
    for warning, names in warnings.items():
        yield f"(!) {', '.join(names)}: {warning}"
    if clean := [name for name, book in books.items() if not book.warning and book.num_parameters]:
        where = "any config" if len(clean) == len(books) else ", ".join(map(repr, clean))
        yield f"Nothing is sent without noise in {where} (data sizes are considered public)."
    for name, book in books.items():
        if book.basic_delta:
            yield (
                f"{name}: basic epsilon holds at delta {book.basic_delta:.2g}, the sum of the "
                "deltas of a client's releases."
            )
        if book.exhausted.any():
            rounds = book.last_release[book.last_release > 0]
            last = f"rounds {rounds.min()} to {rounds.max()}" if rounds.size else "not recorded"
            yield (
                f"{name}: {book.exhausted.sum()} of {book.exhausted.size} clients, over all seeds, "
                f"spent their budget. Last releases: {last}."
            )
    if started := [name for name, book in books.items() if book.overlaps]:
        yield (
            f"{', '.join(started)}: a release is charged when its client starts training. Clients "
            "that are still training at the end are included."
        )
    if any(math.isnan(book.tight) for book in books.values()):
        yield f"No PLD totals: {HINT}"


def save(books: dict[str, Ledger], path: pathlib.Path) -> None:
    """Write a CSV file with one row per config, seed and client."""
    pd.DataFrame(_clients(books), columns=COLUMNS).to_csv(path, index=False)


def _clients(books: dict[str, Ledger]) -> Iterator[tuple[Any, ...]]:
    for name, book in books.items():
        for where in np.ndindex(book.participations.shape):
            seed, client = where if len(where) == 2 else (0, *where)
            client_id = book.client_ids[client] if book.client_ids else client
            counts = (book.participations[where], book.releases[where])
            spent = (book.budget, book.spent, book.whole_update)
            yield (
                *(name, seed, client, client_id, book.mechanism, book.unit, *counts),
                *(f"{epsilon[where]:.7g}" for epsilon in spent),
                *(bool(book.exhausted[where]), int(book.last_release[where]) or ""),
                *(f"{epsilon:.7g}" for epsilon in (book.tight, book.tight_at_most)),
                book.delta,
                *(", ".join(book.unnoised), book.warning),
            )


def _epsilon(value: float, digits: int = 4) -> str:
    if math.isnan(value):
        return "-"
    if math.isinf(value):
        return "no limit"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.{digits}g}"
