"""Measured latencies from a file: CSV or Parquet, a line for each time that a client took part."""

from __future__ import annotations

import io
import pathlib
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pause_jax.base import source_file
from pause_jax.base.client_ids import client_id, numbered
from pause_jax.base.struct import ConfigError

LARGEST = float(np.finfo(np.float32).max)
_COLUMNS = ("client", "seconds")
# What may say the order of a client's measurements; without it, it is that of the file.
_ORDERS = ("round", "time")
_RULE = "must have the columns client, seconds and perhaps round or time"


class Measured(NamedTuple):
    """Measurements, in the order of time if that is known, else of the file."""

    client: NDArray[np.int64]  # int [N], 0, 1, ... in the natural order of the ids
    # Float [N], finite and > 0; NaN where the client did not answer (a drop-out).
    seconds: NDArray[np.float64]
    when: NDArray[np.float64] | None  # float [N], round or time; None if the file does not say
    ids: tuple[str, ...] = ()  # of clients 0, 1, ...; empty if there are none
    by_round: bool = False  # whether ``when`` is the column ``round``


def parse(content: bytes, path: str, where: str = "latency.path") -> Measured:
    """The measurements of a file's content, Parquet if its path ends in ``.parquet``, else CSV.

    ``where`` is what asked for it, for messages.

    Raises:
      ConfigError: naming the first line that is wrong.
    """
    name = f"{where} = {path!r}"
    if pathlib.Path(path).suffix == ".parquet":
        columns = _parquet(content, name)
    else:
        columns = _csv(content, name)
    if not len(columns["client"]):
        raise ConfigError(f"{name}: has no measurement of client 0, nor of any other.")
    ids, number = numbered("client", columns["client"])
    client, seconds = number.astype(np.int64), columns["seconds"]
    answered = np.bincount(client, weights=np.isfinite(seconds))
    if not answered.all():
        raise ConfigError(
            f"{name}: has only empty seconds of client {ids[np.argmin(answered)]}. Give each "
            "client at least one measurement."
        )
    when = next((columns[word] for word in _ORDERS if word in columns), None)
    if when is None:
        return Measured(client, seconds, None, ids)
    order = np.argsort(when, kind="stable")
    return Measured(client[order], seconds[order], when[order], ids, "round" in columns)


def _check_columns(header: list[str], wrong: str) -> None:
    order = [word for word in header if word in _ORDERS]
    if sorted(header) != sorted([*_COLUMNS, *order]) or len(order) > 1:
        raise ConfigError(f"{wrong}: {_RULE}.")


def _csv(content: bytes, name: str) -> dict[str, NDArray[Any]]:
    def wrong(line: int, row: list[str], rule: str) -> ConfigError:
        return ConfigError(f"{name}, line {line}, {','.join(row)!r}: {rule}.")

    rows = source_file.table(name, content)
    header = [word.strip() for word in (rows or [[]])[0]]
    _check_columns(header, f"{name}, line 1, {','.join(header)!r}")
    values: list[dict[str, Any]] = []
    for place, row in enumerate(rows[1:], 2):
        if not row:
            continue
        try:
            texts = dict(zip(header, row, strict=True))
            empty = not texts["seconds"].strip()
            numbers = texts | ({"seconds": "nan"} if empty else {})
            entry = {k: text if k == "client" else float(text) for k, text in numbers.items()}
        except ValueError:
            rule = f"must be {', '.join(header)}, all but the client numbers"
            raise wrong(place, row, rule) from None
        if rule := _broken(entry | {"seconds": 1.0} if empty else entry):
            raise wrong(place, row, rule)
        values.append(entry)
    return {word: np.asarray([entry[word] for entry in values]) for word in header}


def _broken(entry: dict[str, Any]) -> str:
    """The rule that a line breaks, or nothing."""
    try:
        client_id(entry["client"])
    except ValueError as error:
        return str(error)
    if not 0 < entry["seconds"] <= LARGEST:
        return "seconds must be finite and > 0"
    if not all(np.isfinite(value) for word, value in entry.items() if word != "client"):
        return "round or time must be finite"
    if entry.get("round", 0) % 1:
        return "round must be a whole number; the column of times is time"
    return ""


def _parquet(content: bytes, name: str) -> dict[str, NDArray[Any]]:
    try:
        import pandas as pd
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise ConfigError(f"{name}: reading Parquet needs pip install 'pause_jax[io]'.") from error
    try:
        table = pd.read_parquet(io.BytesIO(content))
        _check_columns([str(word) for word in table.columns], f"{name}: {list(table.columns)}")
        columns = {
            str(word): table[word].to_numpy(object if word == "client" else np.float64)
            for word in table.columns
        }
    except ConfigError:
        raise
    except Exception as error:  # pyarrow and pandas raise many types
        short = str(error).splitlines()[0]
        raise ConfigError(f"{name}: must be a Parquet file of numbers ({short}).") from None
    for place in range(len(table)):
        entry = {
            word: values[place] if word == "client" else float(values[place])
            for word, values in columns.items()
        }
        empty = np.isnan(entry["seconds"])
        if rule := _broken(entry | {"seconds": 1.0} if empty else entry):
            raise ConfigError(f"{name}, row {place}, {entry}: {rule}.")
    return columns
