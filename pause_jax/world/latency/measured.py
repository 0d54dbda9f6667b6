"""Measured latencies from a file: CSV or Parquet, a line for each time that a client took part."""

from __future__ import annotations

import io
import pathlib
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pause_jax.base import source_file
from pause_jax.base.checks import float32
from pause_jax.base.client_ids import client_id, numbered
from pause_jax.base.struct import ConfigError

LARGEST = float(np.finfo(np.float32).max)
_COLUMNS = ("client", "seconds")
# What may say the order of a client's measurements; without it, it is that of the file.
_ORDERS = ("round", "time")
# Names of the columns, and each line with its place in the file.
_Rows = tuple[list[str], list[tuple[str, list[Any]]]]


class Measured(NamedTuple):
    """Measurements, in the order of time if that is known, else of the file."""

    client: NDArray[np.int64]  # int [N], 0, 1, ... in the natural order of the ids
    # Float [N], finite and > 0; NaN where the client did not answer (a drop-out).
    seconds: NDArray[np.float64]
    when: NDArray[np.float64] | None  # float [N], round or time; None if the file does not say
    ids: tuple[str, ...] = ()  # of clients 0, 1, ...; empty if there are none
    by_round: bool = False  # whether ``when`` is the column ``round``


def parse(content: bytes, path: str, where: str = "latency.path") -> Measured:
    """Parse the measurements of a file.

    Args:
      content: what the file holds: Parquet if its path ends in ``.parquet``, else CSV.
      path: of the file.
      where: the field that names the file, for messages.

    Raises:
      ConfigError: naming the first line that is wrong.
    """
    name = f"{where} = {path!r}"
    read_rows = _parquet if pathlib.Path(path).suffix == ".parquet" else _csv
    header, rows = read_rows(content, name)
    order = [word for word in header if word in _ORDERS]
    if sorted(header) != sorted([*_COLUMNS, *order]) or len(order) > 1:
        raise ConfigError(
            f"{name}, line 1, {','.join(header)!r}: must have the columns client, seconds and "
            "perhaps round or time."
        )
    if not rows:
        raise ConfigError(f"{name}: has no measurement of client 0, nor of any other.")
    entries = []
    for line, row in rows:
        try:
            entries.append(_entry(header, row))
        except ValueError as error:
            text = ",".join(map(str, row))
            raise ConfigError(f"{name}, {line}, {text!r}: {error}.") from None
    columns = {word: np.asarray([entry[word] for entry in entries]) for word in header}
    ids, number = numbered("client", columns["client"])
    client, seconds = number.astype(np.int64), columns["seconds"]
    answered = np.bincount(client, weights=np.isfinite(seconds))
    if not answered.all():
        raise ConfigError(
            f"{name}: has only empty seconds of client {ids[np.argmin(answered)]}. Give each "
            "client at least one measurement."
        )
    if not order:
        return Measured(client, seconds, None, ids)
    when = columns[order[0]]
    by_time = np.argsort(when, kind="stable")
    return Measured(client[by_time], seconds[by_time], when[by_time], ids, order == ["round"])


def _entry(header: list[str], row: list[Any]) -> dict[str, Any]:
    """Return the values of a line by column; empty seconds are NaN.

    Raises:
      ValueError: saying which rule the line breaks.
    """
    try:
        values = dict(zip(header, row, strict=True))
        is_empty = not str(values["seconds"]).strip()
        values["seconds"] = "nan" if is_empty else values["seconds"]
        numbers = {word: float(value) for word, value in values.items() if word != "client"}
    except (TypeError, ValueError):
        raise ValueError(f"must be {', '.join(header)}, all but the client numbers") from None
    client_id(values["client"])
    if not (is_empty or 0 < float32(numbers["seconds"]) < np.inf):
        raise ValueError("seconds must be a float32 number > 0")
    if not all(np.isfinite(numbers.get(word, 0)) for word in _ORDERS):
        raise ValueError("round or time must be finite")
    if numbers.get("round", 0) % 1:
        raise ValueError("round must be a whole number; the column of times is time")
    return {"client": values["client"], **numbers}


def _csv(content: bytes, name: str) -> _Rows:
    header, *rows = source_file.table(name, content) or [[]]
    numbered_rows = [(f"line {place}", row) for place, row in enumerate(rows, 2) if row]
    return [word.strip() for word in header], numbered_rows


def _parquet(content: bytes, name: str) -> _Rows:
    try:
        import pandas as pd
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise ConfigError(f"{name}: reading Parquet needs pip install 'pause_jax[io]'.") from error
    try:
        table = pd.read_parquet(io.BytesIO(content))
    except Exception as error:  # pyarrow and pandas raise many types
        short = str(error).splitlines()[0]
        raise ConfigError(f"{name}: must be a Parquet file of numbers ({short}).") from None
    for column, kind in table.dtypes.items():
        if kind.kind == "m":  # a duration, in ticks of whatever unit
            table[column] = table[column].dt.total_seconds()
        elif kind.kind == "M":
            raise ConfigError(f"{name}: column {column} holds dates; must be numbers, in seconds.")
    rows = table.astype(object).mask(table.isna(), "").to_numpy().tolist()
    return list(map(str, table.columns)), [(f"row {place}", row) for place, row in enumerate(rows)]
