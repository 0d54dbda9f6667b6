"""FedScale's devices: their capacity and their behaviour, two pickle files.

Format: ``benchmark/dataset/data/device_info/README.md`` and
``fedscale/cloud/internal/client_metadata.py`` of github.com/SymbioticLab/FedScale (Apache-2.0).
"""

from __future__ import annotations

import io
import pathlib
import pickle
from typing import Any, NoReturn

from pause_jax.base.source_file import content_of
from pause_jax.base.spelling import shown
from pause_jax.importers import request as requests
from pause_jax.importers.request import (
    DEVICES,
    INTERVALS,
    WRONG,
    Imported,
    Request,
    Rows,
    Trace,
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
    """Read devices of ``client_device_capacity``, intervals of ``client_behave_trace``, or both.

    With both, the client at place p of the first has the behaviour at place p of the second, and
    after the last the first again.

    Raises:
      ConfigError: if a file is neither, or is damaged.
    """
    capacity: dict[Any, Any] = {}
    traces: list[Trace] = []
    notes: list[str] = []
    of_capacity = request.paths[0]
    for path in request.paths:
        content = _pickle_of(path)
        entry = next(iter(content.values()), None) if isinstance(content, dict) else None
        fields = set(entry) if isinstance(entry, dict) else set()
        if fields >= _CAPACITY:
            capacity, of_capacity = content, path
        elif fields >= _BEHAVIOUR:
            rule = "active and inactive must be as many numbers, finish_time one > 0"
            traces = [each for each in parsed(path, content.items(), _trace, rule) if each[0]]
            if idle := len(content) - len(traces):
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
        chosen_traces = [traces[place] for place in places % len(traces)]
        tables[INTERVALS], note = requests.intervals(request, chosen_traces)
        notes.append(note)
    return Imported(tables, {}, tuple(notes))


def _device(client: tuple[Any, Any]) -> tuple[Any, ...]:
    name, entry = client
    seconds = _GRADIENT * positive(entry["computation"]) / 1000
    rate = f"{positive(entry['communication']) / 1000:.6g}"
    return f"fedscale_{name}", f"{seconds:.6g}", 0, rate, 0, rate, 0


def _trace(entry: Any) -> Trace:
    """Return a client's intervals that are not empty, and when they repeat."""
    starts, stops = list(map(number, entry["active"])), list(map(number, entry["inactive"]))
    if len(starts) > len(stops):
        raise ValueError
    pairs = zip(starts, stops, strict=False)
    return [pair for pair in pairs if 0 <= pair[0] < pair[1]], positive(entry["finish_time"])


class _NamedError(Exception):
    """A pickle names a class or a function."""


class _NumbersOnly(pickle.Unpickler):
    """Unpickler of containers, texts and numbers, which a pickle writes without naming a class."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise _NamedError(f"{module}.{name}")


def _pickle_of(path: pathlib.Path) -> Any:
    """Return the lists, tuples, dictionaries, sets, texts and numbers of a pickle file.

    A pickle calls what it names, so every name is refused: of a class, of a function, and of
    NumPy's arrays as well.

    Raises:
      ConfigError: if it names anything, or is damaged.
    """
    content = content_of("FILE", str(path))
    try:
        return _NumbersOnly(io.BytesIO(content)).load()
    except _NamedError as error:
        refuse(
            path,
            f"names {shown(str(error))}. Of a pickle only numbers, texts and containers are read, "
            "and nothing was run. Take the file from its owner",
        )
    except (*WRONG, pickle.UnpicklingError, EOFError, MemoryError, RecursionError) as error:
        refuse(path, f"must be a whole pickle file ({shown(str(error))})")
