"""Texts of messages: values in short, and suggestions for unknown names."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any

import numpy as np


def one_line(text: str) -> str:
    """Return a text without line breaks, unprintable characters escaped."""
    line = " ".join(part.strip() for part in text.split("\n"))
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)


def shown(value: Any) -> str:
    """Return a value in one line of at most 200 characters."""
    try:
        text = one_line(repr(value))
    except ValueError:  # Python prints at most 4,300 digits
        text = f"{type(value).__name__} of thousands of digits"
    return text if len(text) <= 200 else f"{text[:197]}..."


def shortest(value: Any) -> float:
    """Return the shortest decimal of a float32: 0.01 stays 0.01."""
    return float(str(np.float32(value)))


def file_name(label: str) -> str:
    """Return a label as a file name: letters, digits, ``-_.``, and at most 200 bytes."""
    name = "".join(c if c.isalnum() or c in "-_." else "_" for c in label)
    return name.encode()[:200].decode(errors="ignore")


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a question that suggests a known name; empty if none is close."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f" Did you mean {close[0]!r}?" if close else ""
