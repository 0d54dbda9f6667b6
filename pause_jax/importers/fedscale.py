"""FedScale's devices: their capacity and their behaviour, two pickle files.

Format: ``benchmark/dataset/data/device_info/README.md`` and
``fedscale/cloud/internal/client_metadata.py`` of github.com/SymbioticLab/FedScale (Apache-2.0).
"""

from __future__ import annotations

from typing import Any

from pause_jax.importers import pickles, states
from pause_jax.importers.request import (
    DEVICES,
    Imported,
    Request,
    Rows,
    number,
    parsed,
    positive,
    refuse,
)
from pause_jax.importers.tables import PER_CLIENT

_CAPACITY, _BEHAVIOUR = {"computation", "communication"}, {"active", "inactive", "finish_time"}
# A gradient takes three times an inference: `augmentation_factor` of FedScale's own simulation.
_GRADIENT = 3.0


def read(request: Request) -> Imported:
    """The devices of ``client_device_capacity``, the intervals of ``client_behave_trace``, or both.

    With both, the client at place p of the first has the behaviour at place p of the second, and
    after the last the first again.

    Raises:
      ConfigError: if a file is neither, or is damaged.
    """
    capacity: dict[Any, Any] = {}
    traces: list[states.Trace] = []
    notes: list[str] = []
    of_capacity = request.paths[0]
    for path in request.paths:
        found = pickles.read(path)
        entry = next(iter(found.values()), None) if isinstance(found, dict) else None
        named = set(entry) if isinstance(entry, dict) else set()
        if named >= _CAPACITY:
            capacity, of_capacity = found, path
        elif named >= _BEHAVIOUR:
            rule = "active and inactive must be as many numbers, finish_time one > 0"
            traces = [each for each in parsed(path, found.items(), _trace, rule) if each[0]]
            if idle := len(found) - len(traces):
                notes.append(f"Left out: {idle} clients of {path.name}, which are never active.")
        else:
            refuse(
                path,
                "must be a dictionary of clients with computation and communication, or with "
                "active, inactive and finish_time",
            )
    places = request.places(len(capacity) or len(traces))
    tables: dict[str, Rows] = {}
    if capacity:
        clients = list(capacity.items())
        chosen = ((client, (client, entry)) for client, entry in map(clients.__getitem__, places))
        rule = "computation and communication must be numbers > 0"
        tables[DEVICES] = [PER_CLIENT, *parsed(of_capacity, chosen, _device, rule)]
    if traces:
        own = [traces[place] for place in places % len(traces)]
        states.add(tables, notes, request.names(len(own)), own)
    return Imported(tables, {}, tuple(notes))


def _device(client: tuple[Any, Any]) -> tuple[Any, ...]:
    """A row of the table of devices."""
    name, entry = client
    seconds = _GRADIENT * positive(entry["computation"]) / 1000
    rate = f"{positive(entry['communication']) / 1000:.6g}"
    return f"fedscale_{name}", f"{seconds:.6g}", 0, rate, 0, rate, 0


def _trace(entry: Any) -> states.Trace:
    """A client's intervals without those of no second, and when they repeat."""
    starts, stops = list(map(number, entry["active"])), list(map(number, entry["inactive"]))
    if len(starts) > len(stops):
        raise ValueError
    pairs = zip(starts, stops, strict=False)
    return [pair for pair in pairs if 0 <= pair[0] < pair[1]], positive(entry["finish_time"])
