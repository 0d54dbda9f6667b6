"""Measured latencies from a file: CSV or Parquet, a line for each time that a client took part."""

from __future__ import annotations

import io
import pathlib
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pause_jax import source_file
from pause_jax.struct import ConfigError

LARGEST = float(np.finfo(np.float32).max)
_COLUMNS = ("client", "seconds")
# What may say the order of a client's measurements; without it, it is that of the file.
_ORDERS = ("round", "time")
_RULE = "must have the columns client, seconds and perhaps round or time"


class Measured(NamedTuple):
    """Measurements, in the order of time if that is known, else of the file.

    Attributes:
      client: int [N], 0, 1, ... without gaps.
      seconds: float [N], finite and > 0.
      when: float [N], round or time; None if the file does not say.
    """

    client: NDArray[np.int64]
    seconds: NDArray[np.float64]
    when: NDArray[np.float64] | None


def parse(content: bytes, path: str, where: str = "latency.path") -> Measured:
    """The measurements of a file's content.

    Args:
      content: of the file.
      path: its name; ``.parquet`` is read as Parquet, anything else as CSV.
      where: what asked for it, for messages.

    Raises:
      ConfigError: naming the first line that is wrong.
    """
    name = f"{where} = {path!r}"
    if pathlib.Path(path).suffix == ".parquet":
        columns = _parquet(content, name)
    else:
        columns = _csv(content, name)
    client, seconds = columns["client"].astype(np.int64), columns["seconds"]
    known = np.unique(client)
    if not np.array_equal(known, np.arange(known.size)) or not known.size:
        gap = next((place for place, number in enumerate(known) if place != number), known.size)
        raise ConfigError(
            f"{name}: has no measurement of client {gap}. Clients are numbered 0, 1, ... without "
            "gaps."
        )
    when = next((columns[word] for word in _ORDERS if word in columns), None)
    if when is None:
        return Measured(client, seconds, None)
    order = np.argsort(when, kind="stable")
    return Measured(client[order], seconds[order], when[order])


def _check_columns(header: list[str], wrong: str) -> None:
    order = [word for word in header if word in _ORDERS]
    if sorted(header) != sorted([*_COLUMNS, *order]) or len(order) > 1:
        raise ConfigError(f"{wrong}: {_RULE}.")


def _csv(content: bytes, name: str) -> dict[str, NDArray[np.float64]]:
    def wrong(line: int, row: list[str], rule: str) -> ConfigError:
        return ConfigError(f"{name}, line {line}, {','.join(row)!r}: {rule}.")

    rows = source_file.table(name, content)
    header = [word.strip() for word in (rows or [[]])[0]]
    _check_columns(header, f"{name}, line 1, {','.join(header)!r}")
    values: list[list[float]] = []
    for place, row in enumerate(rows[1:], 2):
        if not row:
            continue
        try:
            numbers = [float(text) for text in row]
            entry = dict(zip(header, numbers, strict=True))
        except ValueError:
            rule = f"must be {len(header)} numbers, {', '.join(header)}"
            raise wrong(place, row, rule) from None
        if rule := _broken(entry):
            raise wrong(place, row, rule)
        values.append(numbers)
    table = np.asarray(values, np.float64).reshape(-1, len(header))
    return {word: table[:, place] for place, word in enumerate(header)}


def _broken(entry: dict[str, float]) -> str:
    """The rule that a line breaks, or nothing."""
    client = entry["client"]
    if not np.isfinite(client) or client != int(client):
        return "must be a whole number (the client)"
    if client < 0:
        return "clients are numbered 0, 1, ..."
    if not 0 < entry["seconds"] <= LARGEST:
        return "seconds must be finite and > 0"
    if not all(map(np.isfinite, entry.values())):
        return "round or time must be finite"
    return ""


def _parquet(content: bytes, name: str) -> dict[str, NDArray[np.float64]]:
    try:
        import pandas as pd
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise ConfigError(f"{name}: reading Parquet needs pip install 'pause_jax[io]'.") from error
    try:
        table = pd.read_parquet(io.BytesIO(content))
        _check_columns([str(word) for word in table.columns], f"{name}: {list(table.columns)}")
        columns = {str(word): table[word].to_numpy(np.float64) for word in table.columns}
    except ConfigError:
        raise
    except Exception as error:  # pyarrow and pandas raise many types
        short = str(error).splitlines()[0]
        raise ConfigError(f"{name}: must be a Parquet file of numbers ({short}).") from None
    for place in range(len(table)):
        entry = {word: float(values[place]) for word, values in columns.items()}
        if rule := _broken(entry):
            raise ConfigError(f"{name}, row {place}, {entry}: {rule}.")
    return columns
