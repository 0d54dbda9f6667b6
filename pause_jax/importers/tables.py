"""Any CSV file of devices, of measured seconds or of intervals, by a mapping of its columns."""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np

from pause_jax.base import source_file
from pause_jax.base.client_ids import client_id
from pause_jax.base.spelling import nearest, shown
from pause_jax.base.struct import ConfigError
from pause_jax.importers.request import (
    DEVICES,
    FLEET,
    INTERVALS,
    Imported,
    Request,
    content_of,
    number,
    parsed,
    positive,
    refuse,
)
from pause_jax.world.latency.network import COLUMNS

Row = dict[str, Any]
# Columns of a table of devices in which a line is a client.
PER_CLIENT = tuple(word for word in COLUMNS if word != "share")
# Mbit/s of a network that takes no time.
NO_NETWORK = 1e6
# Seconds a sample of the device with the median score: the median of the library's own phones.
MEDIAN_SECONDS = 0.17
# What AI-Benchmark's table of phones calls its columns.
AI_BENCHMARK = {"device": "Model", "score": "AI_Score"}
# Columns of other units: the column that they stand for, and 1 of them in its unit.
_UNITS = {
    "sample_ms": ("sample_seconds", 1e-3),
    "download_kbit": ("download_mbit", 1e-3),
    "upload_kbit": ("upload_mbit", 1e-3),
}
_COMPUTING = {"sample_seconds", "sample_ms", "score"}
_SPEEDS = {"download_mbit", "download_kbit"}
_KNOWN = (*COLUMNS, *_UNITS, "score", "client", "seconds", "round", "time", "start", "end")


def read(request: Request) -> Imported:
    """Devices, a fleet's seconds or intervals of a CSV file, by the columns that are there.

    Raises:
      ConfigError: for a column that is not known or not there, and for an entry that is no number.
    """
    path = request.path
    for ours in request.columns:
        if ours not in _KNOWN:
            raise ConfigError(
                f"--columns {ours}: must be one of {', '.join(_KNOWN)}.{nearest(ours, _KNOWN)}"
            )
    header, *lines = source_file.table(f"FILE = {str(path)!r}", content_of(path)) or [[]]
    header = [word.strip() for word in header]
    columns = request.columns or {word: word for word in header if word in _KNOWN}
    for ours, theirs in columns.items():
        if theirs not in header:
            fix = f"Name another by --columns {ours}=THEIRS"
            refuse(path, f"has no column {shown(theirs)}; it has {', '.join(header)}. {fix}")
    kind, make, rule = _kind(path, set(columns))

    def row(line: list[str]) -> Row:
        entries = dict(zip(header, map(str.strip, line), strict=True))
        return make({ours: entries[theirs] for ours, theirs in columns.items()})

    numbered = ((f"line {place}", line) for place, line in enumerate(lines, 2) if line)
    rows = list(parsed(path, numbered, row, f"{rule}, {len(header)} entries in all"))
    if not rows:
        refuse(path, "must have a line of a client")
    if kind == DEVICES:
        return _devices(request, rows, set(columns))
    kept = request.kept({client["client"] for client in rows})
    lines = [list(client.values()) for client in rows if client["client"] in kept]
    return Imported({kind: [list(rows[0]), *lines]}, {})


def read_ai_benchmark(request: Request) -> Imported:
    """Devices of a table of scores, such as AI-Benchmark's: a higher score computes faster.

    Raises:
      ConfigError: as :func:`read`.
    """
    return read(request._replace(columns=AI_BENCHMARK | dict(request.columns)))


def _kind(path: pathlib.Path, columns: set[str]) -> tuple[str, Callable[[Row], Row], str]:
    """Which file the columns make, what makes a row of it, and the rule of a row."""
    if {"client", "start", "end"} <= columns:
        return INTERVALS, _interval, "must be a client's id and seconds, 0 <= start < end"
    if {"client", "seconds"} <= columns:
        return FLEET, _measured, "must be a client's id, seconds > 0 or nothing, a round or time"
    if columns & (_COMPUTING | _SPEEDS):
        return DEVICES, _device, "must have numbers > 0, spreads >= 0"
    refuse(
        path,
        f"must have columns of devices ({', '.join(sorted(_COMPUTING | _SPEEDS))}), of seconds "
        "(client, seconds) or of intervals (client, start, end). Name them by --columns "
        "OURS=THEIRS",
    )


def _interval(row: Row) -> Row:
    start, end = number(float(row["start"])), number(float(row["end"]))
    if not 0 <= start < end:
        raise ValueError
    return {"client": client_id(row["client"]), "start": start, "end": end}


def _measured(row: Row) -> Row:
    """A line of a fleet's file; without seconds the client dropped out."""
    seconds = positive(float(row["seconds"])) if row["seconds"] else ""
    order = {word: number(float(row[word])) for word in ("round", "time") if word in row}
    order = {word: int(value) if value.is_integer() else value for word, value in order.items()}
    return {"client": client_id(row["client"]), "seconds": seconds} | order


def _device(row: Row) -> Row:
    """A line of the table of devices; a score, whose unit is its own, becomes 1 / score."""
    device: Row = {"device": row.get("device", "")}
    device |= {word: 0 for word in COLUMNS if word.endswith("_spread")} | {"sample_seconds": 0}
    for ours, entry in row.items():
        if ours == "score":
            # The first word, without commas between thousands.
            device["sample_seconds"] = 1 / positive(float(entry.split()[0].replace(",", "")))
        elif ours.endswith("_spread"):
            device[ours] = number(float(entry))
            if device[ours] < 0:
                raise ValueError
        elif ours != "device":
            name, unit = _UNITS.get(ours, (ours, 1.0))
            device[name] = unit * positive(float(entry))
    device.setdefault("download_mbit", NO_NETWORK)
    device.setdefault("upload_mbit", device["download_mbit"])
    return device


def _devices(request: Request, rows: list[Row], columns: set[str]) -> Imported:
    rows = [rows[place] for place in request.places(len(rows))]
    if "score" in columns:
        median = float(np.median([row["sample_seconds"] for row in rows]))
        for row in rows:
            row["sample_seconds"] *= MEDIAN_SECONDS / median
    words = [word for word in COLUMNS if word != "share" or "share" in columns]
    lines = (
        [
            f"{row[word]:.6g}" if word != "device" else row[word] or f"device_{place}"
            for word in words
        ]
        for place, row in enumerate(rows)
    )
    notes = []
    if not columns & _SPEEDS:
        notes.append("No column of speeds: the network takes no time.")
    if not columns & _COMPUTING:
        notes.append("No column of computing: it takes no time.")
    return Imported({DEVICES: [words, *lines]}, {}, tuple(notes))
