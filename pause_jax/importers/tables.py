"""Any CSV file of devices, of measured seconds or of intervals, by a mapping of its columns."""

from __future__ import annotations

import io
import pathlib

import numpy as np
import pandas as pd

from pause_jax.base.source_file import content_of
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
from pause_jax.world.latency.network import COLUMNS

# Columns of a table of devices with one line per client.
PER_CLIENT = tuple(word for word in COLUMNS if word != "share")
# Mbit/s of a network that takes no time.
NO_NETWORK = 1e6
# Seconds a sample of the device with the median score: the median of the library's own phones.
MEDIAN_SECONDS = 0.17
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
    """Read devices, a fleet's seconds or intervals of a CSV file, by the columns that are there.

    Seconds and intervals keep their texts, which the models that read them check.

    Raises:
      ConfigError: for a column that is unknown or missing, and for devices that are not numbers.
    """
    path = request.path
    for ours in request.columns:
        if ours not in _KNOWN:
            raise ConfigError(
                f"--columns {ours}: must be one of {', '.join(_KNOWN)}.{nearest(ours, _KNOWN)}"
            )
    table = _table(path)
    columns = request.columns or {word: word for word in table if word in _KNOWN}
    for ours, theirs in columns.items():
        if theirs not in table:
            fix = f"Name another by --columns {ours}=THEIRS"
            refuse(path, f"has no column {shown(theirs)}; it has {', '.join(table)}. {fix}")
    table = table[list(columns.values())].set_axis(list(columns), axis=1)
    if columns and table.empty:
        refuse(path, "must have a line of a client")
    for name, needed, optional in (
        (INTERVALS, ["client", "start", "end"], []),
        (FLEET, ["client", "seconds"], ["round", "time"]),
    ):
        if set(needed) <= set(columns):
            table = table[table.client.isin(request.kept(set(table.client)))]
            words = [*needed, *(word for word in optional if word in columns)]
            return Imported({name: [words, *table[words].itertuples(index=False)]}, {})
    if set(columns) & (_COMPUTING | _SPEEDS):
        return _devices(request, table)
    refuse(
        path,
        f"must have columns of devices ({', '.join(sorted(_COMPUTING | _SPEEDS))}), of seconds "
        "(client, seconds) or of intervals (client, start, end). Name them by --columns "
        "OURS=THEIRS",
    )


def _table(path: pathlib.Path) -> pd.DataFrame:
    """Return the texts of a CSV file; NaN where a line is too short."""
    content = io.BytesIO(content_of("FILE", str(path)) or b"\n")
    try:
        table = pd.read_csv(
            content, dtype=str, keep_default_na=False, encoding="utf-8-sig", header=None
        )
    except pd.errors.EmptyDataError:
        return pd.DataFrame()
    except ValueError as error:
        refuse(path, f"must be a CSV file in UTF-8 ({error})")
    header = table.iloc[0].str.strip()
    if header.duplicated().any():
        twice = header[header.duplicated()].iloc[0]
        refuse(path, f"has the column {shown(twice)} twice; it has {', '.join(header)}")
    table = table.iloc[1:].set_axis(header.tolist(), axis=1)
    return table.rename(columns=str.strip).apply(lambda column: column.str.strip())


def _devices(request: Request, table: pd.DataFrame) -> Imported:
    if "score" in table:
        # The first word, without commas between thousands; a decimal comma stays, and is refused.
        first = table.score.str.split().str[0]
        table["score"] = first.str.replace(r",(?=\d{3}(?:\D|$))", "", regex=True)
    numbers = table.drop(columns="device", errors="ignore").apply(_numbers)
    spreads = [word for word in numbers if word.endswith("_spread")]
    fits = (numbers[spreads] >= 0).all(axis=1) & (numbers.drop(columns=spreads) > 0).all(axis=1)
    if not fits.all():
        # Pandas skips blank lines.
        lines = enumerate(content_of("FILE", str(request.path)).splitlines(), 1)
        line = [n for n, text in lines if text.strip()][1 + int(fits.argmin())]
        refuse(request.path, f"line {line}: must have numbers > 0, spreads >= 0")
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
        notes.append("No column of speeds: the network takes no time.")
        numbers["download_mbit"] = NO_NETWORK
    if not _COMPUTING & set(table):
        notes.append("No column of computing: it takes no time.")
    if "upload_mbit" not in numbers:
        numbers["upload_mbit"] = numbers.download_mbit
    words = [word for word in COLUMNS if word in (*PER_CLIENT, *table)]
    lines = numbers.reindex(columns=words, fill_value=0.0).map("{:.6g}".format)
    names = table.device.iloc[places].tolist() if "device" in table else [""] * len(lines)
    lines["device"] = [name or f"device_{place}" for place, name in enumerate(names)]
    return Imported({DEVICES: [words, *lines.itertuples(index=False)]}, {}, tuple(notes))


def _numbers(texts: pd.Series) -> pd.Series:
    numbers = pd.to_numeric(texts, errors="coerce")
    return numbers.where(np.isfinite(numbers))
