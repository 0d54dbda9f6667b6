"""Ids of clients: what a data set or a file of a fleet calls them, as texts in natural order."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pause_jax.base.struct import ConfigError

RULE = "a client must be a whole number >= 0 or a name"
_DIGITS = re.compile(r"([0-9]+)")
_WHOLE = re.compile(r"([0-9]+)(\.0*)?")
# What pandas and NumPy write for a missing id, numbers that count nothing, and control characters
# and lone surrogates, which NumPy or a file would not keep.
_NO_ID = re.compile(
    r"nan|NaN|None|<NA>|NaT|-[0-9.]+|[0-9]*\.[0-9]+|.*[\x00-\x1f\ud800-\udfff].*|", re.DOTALL
)


def client_id(given: Any) -> str:
    """The id of a client as a text: 7, 7.0 and "7" are the same.

    Raises:
      ValueError: for a missing id, or a number that is not whole or below 0.
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
    """Sort key by which numbers within a text count by their value: client2 before client10."""
    parts: list[Any] = _DIGITS.split(name)
    for place in range(1, len(parts), 2):
        digits = parts[place].lstrip("0")
        parts[place] = len(digits), digits
    return parts, name


def numbered(name: str, given: NDArray[Any]) -> tuple[tuple[str, ...], NDArray[np.int32]]:
    """Number clients 0, 1, ... in the natural order of their ids, [N], of the array ``name``.

    Returns:
      (ids of clients 0, 1, ...; int [N], the client of each entry).

    Raises:
      ConfigError: naming the first entry that is no id.
    """
    entries = given.tolist()
    known: dict[Any, str] = {}
    for place, entry in enumerate(entries):
        if entry not in known:
            try:
                known[entry] = client_id(entry)
            except ValueError as error:
                raise ConfigError(
                    f"{name}[{place}] = {entry!r}: {error}. Leave such samples out, or name their "
                    "client."
                ) from None
    ids = sorted(set(known.values()), key=natural_order)
    number = {each: place for place, each in enumerate(ids)}
    return tuple(ids), np.asarray([number[known[entry]] for entry in entries], np.int32)


def plain(number: int) -> tuple[str, ...]:
    """The ids of clients that are called by their numbers."""
    return tuple(map(str, range(number)))


def gap(ids: Sequence[str]) -> str:
    """The first number that is missing, if all ids are numbers; empty without a gap."""
    if not all(map(_DIGITS.fullmatch, ids)):
        return ""
    numbers = {each.lstrip("0") or "0" for each in ids}  # int() takes 4,300 digits at most
    missing = next(k for k in range(len(ids) + 1) if str(k) not in numbers)
    return "" if missing == len(ids) else str(missing)


def check_enough(
    where: str, what: str, known: int, ids: Sequence[str], num_clients: int, fix: str
) -> None:
    """Raise ConfigError if a file of ``known`` clients has no ``what`` of some of K clients."""
    if known >= num_clients:
        return
    rule = f"has {what}s of {known} clients, and num_clients = {num_clients}. {fix}"
    if missing := gap(ids):
        rule = f"has no {what} of client {missing}. Number clients 0, 1, ... without gaps"
        raise ConfigError(f"{where}: {rule}, or name them.")
    raise ConfigError(f"{where}: {rule}, or simulate at most {known}.")


def listed(ids: Sequence[str], most: int = 5) -> str:
    """Some ids in words, and how many more there are."""
    more = f" and {len(ids) - most} more" if len(ids) > most else ""
    return ", ".join(map(repr, ids[:most])) + more
