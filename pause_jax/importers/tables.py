"""Importer for CSV files of devices, measured latencies or intervals, with any column names."""

from __future__ import annotations

import pathlib

import numpy as np
import pandas as pd

from pause_jax.base.checks import float32
from pause_jax.base.source_file import content_of, refuse_lines
from pause_jax.base.source_file import table as csv_table
from pause_jax.base.spelling import nearest, shown
from pause_jax.base.struct import ConfigError
from pause_jax.importers.request import (
    DEVICES,
    FLEET,
    INTERVALS,
    Imported,
    Request,
    refuse,
)
from pause_jax.world.latency.network import COLUMNS, MOST_SPREAD

# Columns of a device table that has one line per client.
PER_CLIENT = tuple(word for word in COLUMNS if word != "share")
# Network speed, in Mbit/s, at which transfers take almost no time.
NO_NETWORK = 1e6
# Seconds per sample for the median score, equal to the median of the bundled phones.
MEDIAN_SECONDS = 0.17
# Standard column and conversion factor for each column in another unit.
_UNITS = {
    "ms": ("seconds", 1e-3),
    "sample_ms": ("sample_seconds", 1e-3),
    "download_kbit": ("download_mbit", 1e-3),
    "upload_kbit": ("upload_mbit", 1e-3),
}
_COMPUTING = {"sample_seconds", "sample_ms", "score"}
_SPEEDS = {"download_mbit", "download_kbit"}
_KNOWN = (*COLUMNS, *_UNITS, "score", "client", "seconds", "round", "time", "start", "end")


def read(request: Request) -> Imported:
    """Read devices, measured latencies or intervals from a CSV file, depending on its columns.

    Seconds and intervals are copied as text. The models that read the output validate them.

    Raises:
      ConfigError: if a column is unknown or missing, or if a device has an invalid number.
    """
    path = request.path
    for ours in request.columns:
        if ours not in _KNOWN:
            raise ConfigError(
                f"--columns {ours}: must be one of {', '.join(_KNOWN)}.{nearest(ours, _KNOWN)}"
            )
    lines = _table(path)
    columns = request.columns or {word: word for word in lines if word in _KNOWN}
    for ours, theirs in columns.items():
        if theirs not in lines:
            fix = f"Select another column with --columns {ours}=THEIRS"
            refuse(path, f"has no column {shown(theirs)} (columns: {', '.join(lines)}). {fix}")
    table = lines[list(columns.values())].set_axis(list(columns), axis=1)
    if columns and table.empty:
        refuse(path, "must have at least one client")
    if "ms" in table and "seconds" not in table:
        seconds = 1e-3 * _numbers(table.ms)
        table["seconds"] = seconds.map("{:.15g}".format).where(seconds.notna(), table.ms)
    for name, needed, optional in (
        (INTERVALS, ["client", "start", "end"], []),
        (FLEET, ["client", "seconds"], ["round", "time"]),
    ):
        if set(needed) <= set(table):
            table = table[table.client.isin(request.kept(set(table.client)))]
            words = [*needed, *(word for word in optional if word in table)]
            return Imported({name: [words, *table[words].itertuples(index=False)]}, {})
    if set(columns) & (_COMPUTING | _SPEEDS):
        return _devices(request, table, lines)
    refuse(
        path,
        f"must have columns of devices ({', '.join(sorted(_COMPUTING | _SPEEDS))}), latencies "
        "(client, seconds) or intervals (client, start, end). Map columns with --columns "
        "OURS=THEIRS",
    )


def _table(path: pathlib.Path) -> pd.DataFrame:
    """Return the cells of a CSV file as text, indexed by line."""
    header, lines = csv_table(f"FILE = {str(path)!r}", content_of("FILE", path))
    if twice := [word for word in header if header.count(word) > 1]:
        refuse(
            path,
            f"has the column {shown(twice[0])} twice (columns: {', '.join(header)}). Rename one",
        )
    places, cells = zip(*lines, strict=True) if lines else ((), ())
    return pd.DataFrame(list(cells), places, header, dtype=str)


def _devices(request: Request, table: pd.DataFrame, texts: pd.DataFrame) -> Imported:
    if "score" in table:
        # Keep the first word without thousands separators. A decimal comma remains and is rejected.
        first = table.score.str.extract(r"(\S*)", expand=False)
        table["score"] = first.str.replace(r",(?=\d{3}(?:\D|$))", "", regex=True)
    numbers = table.drop(columns="device", errors="ignore").apply(_numbers)
    spreads = numbers.filter(like="_spread")
    others = numbers.drop(columns=spreads).astype(np.float32)
    fits = ((spreads >= 0) & (spreads <= MOST_SPREAD)).all(axis=1) & (others > 0).all(axis=1)
    if not fits.all():
        rule = f"must have numbers > 0 and spreads from 0 to {MOST_SPREAD:g}"
        bad = [(line, row, rule) for line, *row in texts[~fits].itertuples()]
        refuse_lines(f"FILE = {str(request.path)!r}", texts.columns.tolist(), bad)
    places = request.places(len(numbers))
    numbers = numbers.iloc[places].reset_index(drop=True)
    for word, (ours, unit) in _UNITS.items():
        if word in numbers:
            numbers[ours] = unit * numbers[word]
    if "score" in numbers:
        inverse = 1 / numbers.score
        numbers["sample_seconds"] = MEDIAN_SECONDS * inverse / inverse.median()
    notes = []
    if not _SPEEDS & set(table):
        notes.append("No network speeds found. Transfers take no time.")
        numbers["download_mbit"] = NO_NETWORK
    if not _COMPUTING & set(table):
        notes.append("No computing speeds found. Training takes no time.")
    if "upload_mbit" not in numbers:
        numbers["upload_mbit"] = numbers.download_mbit
    words = [word for word in COLUMNS if word in (*PER_CLIENT, *table)]
    lines = numbers.reindex(columns=words, fill_value=0.0).map("{:.6g}".format)
    names = table.device.iloc[places].tolist() if "device" in table else [""] * len(lines)
    lines["device"] = [name or f"device_{place}" for place, name in enumerate(names)]
    return Imported({DEVICES: [words, *lines.itertuples(index=False)]}, {}, tuple(notes))


def _numbers(texts: pd.Series) -> pd.Series:
    numbers = pd.to_numeric(texts, errors="coerce")
    return numbers.where(np.isfinite(float32(numbers)))
