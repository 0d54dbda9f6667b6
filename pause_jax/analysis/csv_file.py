"""CSV files whose cells a spreadsheet shows as they are, and never runs."""

from __future__ import annotations

import csv
import pathlib
from collections.abc import Iterable
from typing import Any

# A spreadsheet takes a cell that begins like this for a formula (OWASP, "CSV Injection").
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")


def write(path: pathlib.Path, rows: Iterable[Iterable[Any]]) -> None:
    """Write rows of numbers and texts; a text that begins like a formula gets an apostrophe.

    Args:
      path: of the file.
      rows: their cells, the headings first. A text that is a number, such as ``-1.5``, stays.
    """
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(map(_safe, row) for row in rows)


def _safe(cell: Any) -> Any:
    if not isinstance(cell, str) or not cell.startswith(_FORMULA):
        return cell
    try:
        float(cell)
    except ValueError:
        return f"'{cell}"
    return cell
