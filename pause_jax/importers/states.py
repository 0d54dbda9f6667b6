"""Traces of clients' states as a table of intervals that repeat together."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from pause_jax.importers.request import INTERVALS, Rows

# A client's intervals, in seconds, and the seconds after which they repeat.
Trace = tuple[list[tuple[float, float]], float]


def add(
    tables: dict[str, Rows], notes: list[str], names: Iterable[str], traces: Sequence[Trace]
) -> None:
    """Add the table of intervals and its period, that of the longest trace.

    A shorter one is repeated until the longest ends, as its owner's simulation repeats it.
    """
    period = max(repeats for _, repeats in traces)
    rows = (
        (name, *pair)
        for name, trace in zip(names, traces, strict=True)
        for pair in _repeated(trace, period)
    )
    tables[INTERVALS] = [("client", "start", "end"), *rows]
    notes.append(f"The intervals repeat every {period:g} s (period).")


def _repeated(trace: Trace, period: float) -> Iterator[tuple[float, float]]:
    own, repeats = trace
    for time in range(math.ceil(period / repeats)):
        for start, end in own:
            if start + time * repeats < period:
                yield start + time * repeats, end + time * repeats
