"""Formatting of values in messages, and suggestions for unknown names."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any

import numpy as np


def one_line(text: str) -> str:
    """Join the lines of a string with spaces, and escape unprintable characters."""
    line = " ".join(part.strip() for part in text.split("\n"))
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)


def shown(value: Any) -> str:
    """Return the repr of a value on one line of at most 200 characters."""
    try:
        text = one_line(repr(value))
    except ValueError:  # raised for integers with more than 4,300 digits
        text = f"{type(value).__name__} of thousands of digits"
    return text if len(text) <= 200 else f"{text[:197]}..."


def shortest(value: Any) -> float:
    """Return the shortest decimal that rounds to the same float32, such as 0.01 for 0.00999..."""
    return float(str(np.float32(value)))


def file_name(label: str) -> str:
    """Convert a label to a file name of letters, digits and ``-_.`` with at most 200 bytes."""
    name = "".join(c if c.isalnum() or c in "-_." else "_" for c in label)
    return name.encode()[:200].decode(errors="ignore")


def listed(entries: Iterable[str], separator: str = ", ", most: int = 5) -> str:
    """Join the first ``most`` entries for a message, and append the number of omitted entries."""
    entries = list(entries)
    more = f" and {len(entries) - most} more" if len(entries) > most else ""
    return separator.join(entries[:most]) + more


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a "Did you mean" hint with the closest known name, or an empty string."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f" Did you mean {close[0]!r}?" if close else ""
