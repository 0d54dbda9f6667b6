"""Parser for measured latencies in a CSV file with one line per participation."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pause_jax.base import source_file
from pause_jax.base.checks import float32
from pause_jax.base.client_ids import client_id, numbered
from pause_jax.base.spelling import shown
from pause_jax.base.struct import ConfigError

LARGEST = float(np.finfo(np.float32).max)
_COLUMNS = ("client", "seconds")
# Optional columns by which measurements are sorted (default: line order).
_ORDERS = ("round", "time")


class Measured(NamedTuple):
    """Measurements, ordered by the ``round`` or ``time`` column if present, otherwise by line."""

    client: NDArray[np.int64]  # int [N], client numbers (assigned in natural id order)
    # Float [N], finite and > 0, or NaN where the client did not answer (a drop-out).
    seconds: NDArray[np.float64]
    when: NDArray[np.float64] | None  # float [N], round or time (None if the file has neither)
    ids: tuple[str, ...] = ()  # ids of clients 0, 1, ...
    by_round: bool = False  # whether ``when`` is the ``round`` column
    dropped: tuple[str, ...] = ()  # rule that each skipped line violates


def parse(
    content: bytes, path: str, where: str = "latency.path", *, drop_bad_lines: bool = False
) -> Measured:
    """Parse the contents of a CSV file.

    Error messages start with the config field ``where``. With ``drop_bad_lines``, invalid lines are
    skipped, and ``Measured.dropped`` lists the violated rules.

    Raises:
      ConfigError: if the file is invalid (apart from skipped lines) or has no valid lines.
    """
    name = f"{where} = {path!r}"
    header, rows = source_file.table(name, content, full=False)
    order = [word for word in header if word in _ORDERS]
    if sorted(header) != sorted([*_COLUMNS, *order]) or len(order) > 1:
        raise ConfigError(
            f"{name}, line 1, {shown(','.join(header))}: must have the columns client and "
            "seconds, and optionally round or time. Rename or remove columns."
        )
    entries, bad = _entries(header, rows)
    if bad and not drop_bad_lines:
        also = ", or skip them with pause-jax fit --drop-bad-lines"
        source_file.refuse_lines(name, header, bad, also)
    if not entries:
        raise ConfigError(f"{name}: has no measurements. Add at least one line per client.")
    if order:
        entries.sort(key=lambda entry: entry[order[0]])
    columns = {word: np.asarray([entry[word] for entry in entries]) for word in header}
    ids, number = numbered("client", columns["client"])
    when = columns[order[0]] if order else None
    dropped = tuple(rule for *_, rule in bad)
    is_round = order == ["round"]
    return Measured(number.astype(np.int64), columns["seconds"], when, ids, is_round, dropped)


def _entries(
    header: list[str], rows: list[tuple[str, list[str]]]
) -> tuple[list[dict[str, Any]], list[source_file.BadLine]]:
    """Return (valid lines as dicts keyed by column, invalid lines)."""
    good: dict[tuple[str, float], tuple[int, dict[str, Any]]] = {}
    broken: dict[int, str] = {}
    for place, (_, row) in enumerate(rows):
        try:
            entry = _entry(header, row)
            cell = entry["client"], entry.get("round", place)
            if cell in good:
                raise ValueError(
                    "an earlier line has the same client and round (if the column contains times, "
                    "rename it to 'time')"
                )
            good[cell] = place, entry
        except ValueError as error:
            broken[place] = str(error)
    answered = {entry["client"] for _, entry in good.values() if np.isfinite(entry["seconds"])}
    for place, entry in good.values():
        if entry["client"] not in answered:
            broken[place] = "the client must have a latency (seconds) on at least one line"
    kept = [entry for place, entry in good.values() if place not in broken]
    return kept, [(*rows[place], broken[place]) for place in sorted(broken)]


def _entry(header: list[str], row: list[str]) -> dict[str, Any]:
    """Parse a line into a dict, with NaN for an empty ``seconds`` cell, or raise ValueError."""
    try:
        values = dict(zip(header, row, strict=True))
        client = values.pop("client")
        is_empty = not values["seconds"]
        values["seconds"] = values["seconds"] or "nan"
        numbers = {word: float(value) for word, value in values.items() if word != "time"}
        if "time" in values:
            numbers["time"] = _time(values["time"])
    except (ArithmeticError, ValueError):
        rule = "all numeric except client (time may also be ISO 8601)"
        raise ValueError(f"must be {', '.join(header)}, {rule}") from None
    if not (is_empty or 0 < float32(numbers["seconds"]) < np.inf):
        raise ValueError("seconds must be a float32 number > 0")
    if not all(np.isfinite(numbers.get(word, 0)) for word in _ORDERS):
        raise ValueError("round or time must be finite")
    if numbers.get("round", 0) % 1:
        raise ValueError("round must be a whole number (rename a column of times to 'time')")
    return {"client": client_id(client), **numbers}


def _time(text: str) -> float:
    """Convert a number or an ISO 8601 time (UTC if it has no time zone) to seconds."""
    try:
        return float(text)
    except ValueError:
        moment = datetime.fromisoformat(text)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
