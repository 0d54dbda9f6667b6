"""Client ids of data sets and fleet files, as strings in natural order."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pause_jax.base.struct import ConfigError

RULE = "a client id must be a whole number >= 0 or a name"
_DIGITS = re.compile(r"([0-9]+)")
_WHOLE = re.compile(r"([0-9]+)(\.0*)?")
# Invalid ids: missing values (as printed by pandas and NumPy), negative and fractional numbers,
# empty strings, and strings with characters that NumPy arrays or files cannot store.
_NO_ID = re.compile(
    r"nan|NaN|None|<NA>|NaT|-[0-9.]+|[0-9]*\.[0-9]+|.*[\x00-\x1f\ud800-\udfff].*|", re.DOTALL
)


def client_id(given: Any) -> str:
    """Convert a client id to a string. The ids 7, 7.0 and "7" all become "7".

    Raises:
      ValueError: if the id is missing, or is neither a name nor an integer >= 0.
    """
    if isinstance(given, bytes):
        given = given.decode()
    if isinstance(given, bool) or not isinstance(given, str | int | float):
        raise ValueError(RULE)
    text = str(given).strip()
    if whole := _WHOLE.fullmatch(text):
        return whole[1]
    if not isinstance(given, str) or _NO_ID.fullmatch(text):
        raise ValueError(RULE)
    return text


def natural_order(name: str) -> tuple[list[Any], str]:
    """Return a sort key that orders numbers within names by value (client2 before client10)."""
    parts: list[Any] = _DIGITS.split(name)
    for place in range(1, len(parts), 2):
        digits = parts[place].lstrip("0")
        parts[place] = len(digits), digits
    return parts, name


def numbered(name: str, given: NDArray[Any]) -> tuple[tuple[str, ...], NDArray[np.int32]]:
    """Map the N client ids in ``given`` to the numbers 0, 1, ... in natural order.

    Returns:
      The ids of clients 0, 1, ..., and the client number of each entry, int32 [N].

    Raises:
      ConfigError: if an id is invalid. The message contains ``name`` and the id's position.
    """
    entries = given.tolist()
    known: dict[Any, str] = {}
    for place, entry in enumerate(entries):
        if entry not in known:
            try:
                known[entry] = client_id(entry)
            except ValueError as error:
                raise ConfigError(
                    f"{name}[{place}] = {entry!r}: {error}. Remove the sample or correct its id."
                ) from None
    ids = sorted(set(known.values()), key=natural_order)
    number = {each: place for place, each in enumerate(ids)}
    return tuple(ids), np.asarray([number[known[entry]] for entry in entries], np.int32)


def plain(number: int) -> tuple[str, ...]:
    """Return the ids "0", "1", ... of ``number`` unnamed clients."""
    return tuple(map(str, range(number)))


def gap(ids: Sequence[str]) -> str:
    """Return the smallest missing number, or "" if no number is missing or any id is a name."""
    if not all(map(_DIGITS.fullmatch, ids)):
        return ""
    numbers = {each.lstrip("0") or "0" for each in ids}  # int() rejects more than 4,300 digits
    missing = next(k for k in range(len(ids) + 1) if str(k) not in numbers)
    return "" if missing == len(ids) else str(missing)


def check_enough(
    where: str, what: str, known: int, ids: Sequence[str], num_clients: int, fix: str
) -> None:
    """Raise ConfigError if ``known``, the number of clients with data, is below ``num_clients``."""
    if known >= num_clients:
        return
    rule = f"has {what}s for {known} clients, but num_clients = {num_clients}. {fix}"
    if missing := gap(ids):
        rule = f"has no {what} for client {missing}. Number clients 0, 1, ... without gaps"
        raise ConfigError(f"{where}: {rule}, or use names.")
    raise ConfigError(f"{where}: {rule}, or set num_clients <= {known}.")
