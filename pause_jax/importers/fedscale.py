"""Importer for FedScale's device capacities and behaviour traces (two pickle files).

Format: ``benchmark/dataset/data/device_info/README.md`` and
``fedscale/cloud/internal/client_metadata.py`` in github.com/SymbioticLab/FedScale (Apache-2.0).
"""

from __future__ import annotations

import io
import math
import pathlib
import pickle
import pickletools
from collections.abc import Sequence
from typing import Any, NoReturn

from pause_jax.base.memory import check_memory
from pause_jax.base.source_file import content_of
from pause_jax.base.spelling import shown
from pause_jax.importers.request import (
    DEVICES,
    INTERVALS,
    WRONG,
    Imported,
    Request,
    Rows,
    parsed,
    refuse,
)
from pause_jax.world.latency.network import COLUMNS

# Columns of a device table with one row per client.
_PER_CLIENT = tuple(word for word in COLUMNS if word != "share")
# Approximate memory of one interval in the table, in bytes.
_LINE = 200
# A client's intervals, and the period after which they repeat, in seconds.
_Trace = tuple[list[tuple[float, float]], float]
_CAPACITY, _BEHAVIOUR = {"computation", "communication"}, {"active", "inactive", "finish_time"}
# Computing a gradient takes three times as long as inference (FedScale's `augmentation_factor`).
_GRADIENT = 3.0


def read(request: Request) -> Imported:
    """Read devices (``client_device_capacity``), intervals (``client_behave_trace``), or both.

    Traces without intervals are skipped. With both files, client p receives trace p mod n, where n
    is the number of remaining traces.

    Raises:
      ConfigError: if a file is damaged or in neither of the two formats.
    """
    capacity: dict[Any, Any] = {}
    traces: list[_Trace] = []
    notes: list[str] = []
    of_capacity = request.paths[0]
    for path in request.paths:
        content = _pickle_of(path)
        entry = next(iter(content.values()), None) if isinstance(content, dict) else None
        fields = set(entry) if isinstance(entry, dict) else set()
        if fields >= _CAPACITY:
            capacity, of_capacity = content, path
        elif fields >= _BEHAVIOUR:
            rule = (
                "inactive must have at least as many numbers as active, and finish_time must be > 0"
            )
            traces = [each for each in parsed(path, content.items(), _trace, rule) if each[0]]
            if idle := len(content) - len(traces):
                notes.append(f"Skipped clients that are never active: {idle} in {path.name}.")
        else:
            refuse(
                path,
                "must be a dictionary of clients, each with computation and communication, or "
                "with active, inactive and finish_time",
            )
    places = request.places(len(capacity) or len(traces))
    tables: dict[str, Rows] = {}
    if capacity:
        clients = list(capacity.items())
        chosen = ((client, (client, entry)) for client, entry in map(clients.__getitem__, places))
        rule = "computation and communication must be numbers > 0"
        tables[DEVICES] = [_PER_CLIENT, *parsed(of_capacity, chosen, _device, rule)]
    if traces:
        chosen_traces = [traces[place] for place in places % len(traces)]
        tables[INTERVALS], note = _intervals(request, chosen_traces)
        notes.append(note)
    return Imported(tables, {}, tuple(notes))


def _device(client: tuple[Any, Any]) -> tuple[Any, ...]:
    name, entry = client
    seconds = _GRADIENT * _number(entry["computation"], above=0) / 1000
    rate = f"{_number(entry['communication'], above=0) / 1000:.6g}"
    return f"fedscale_{name}", f"{seconds:.6g}", 0, rate, 0, rate, 0


def _trace(entry: Any) -> _Trace:
    starts, stops = list(map(_number, entry["active"])), list(map(_number, entry["inactive"]))
    if len(starts) > len(stops):
        raise ValueError
    pairs = zip(starts, stops, strict=False)
    intervals = [pair for pair in pairs if 0 <= pair[0] < pair[1]]
    return intervals, _number(entry["finish_time"], above=0)


def _intervals(request: Request, traces: Sequence[_Trace]) -> tuple[Rows, str]:
    """Return the table of intervals, and a note that states the period.

    The longest trace defines the period. Shorter traces repeat, as in FedScale's simulator.
    """
    period = max(repeats for _, repeats in traces)
    size = sum(_LINE * len(pairs) * (period / repeats) for pairs, repeats in traces)
    what = f"FILE = {str(request.paths[-1])!r}: repeating all traces for {period:g} s"
    check_memory(size, what, "Remove clients with a short finish_time.")
    names = request.ids or map(str, range(len(traces)))
    rows = (
        (name, start + turn * repeats, end + turn * repeats)
        for name, (pairs, repeats) in zip(names, traces, strict=True)
        for turn in range(math.ceil(period / repeats))
        for start, end in pairs
        if start + turn * repeats < period
    )
    return [("client", "start", "end"), *rows], f"Intervals repeat every {period:g} s (period)."


def _number(value: Any, above: float = -math.inf) -> float:
    """Return ``value`` as a float, or raise ValueError if it is not a finite number > ``above``."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not (is_number and math.isfinite(value) and value > above):
        raise ValueError
    return float(value)


class _NumbersOnly(pickle.Unpickler):
    """Unpickler that rejects all classes and functions."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"it names {module}.{name}")


def _pickle_of(path: pathlib.Path) -> Any:
    """Load a pickle file of lists, tuples, dictionaries, strings, ints and floats.

    Unpickling can call any class or function named in the file, so every name is rejected.
    """
    content = content_of("FILE", str(path))
    try:
        # The unpickler allocates a memo as large as the highest memo index in the file.
        for op, number, _ in pickletools.genops(content):
            if "PUT" in op.name and (number or 0) > len(content):
                raise ValueError("a memo index exceeds the file size")
        return _NumbersOnly(io.BytesIO(content)).load()
    except (*WRONG, pickle.UnpicklingError, EOFError, MemoryError, RecursionError) as error:
        rule = "must be a complete pickle file of numbers, strings and containers"
        refuse(path, f"{rule} ({shown(str(error))}). No code was run. Download the original file")
