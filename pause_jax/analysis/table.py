"""The one look of all tables that the command line prints."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich import box
from rich.table import Column, Table

# Of a label at the least: long ones are folded before a number is cut.
_LABEL_WIDTH = 12


def label(heading: str) -> Column:
    """A column of names that a user may have made as long as they like."""
    return Column(heading, overflow="fold", min_width=_LABEL_WIDTH)


def word(heading: str) -> Column:
    """A column of words that are never broken."""
    return Column(heading, no_wrap=True)


def number(heading: str) -> Column:
    """A column of numbers, flush right and never broken; nor is its heading."""
    width = max(map(len, heading.split("\n")))
    return Column(heading, justify="right", no_wrap=True, min_width=width)


def make_table(
    columns: Sequence[Column | str],
    rows: Iterable[Sequence[str]],
    *,
    title: str | None = None,
    caption: str | None = None,
) -> Table:
    """A table for the terminal.

    Args:
      columns: from :func:`label`, :func:`word` or :func:`number`; of a plain heading the cells are
        prose, which is wrapped.
      rows: their cells, which may hold rich's markup.
      title: above it.
      caption: below it.
    """
    out = Table(
        *columns,
        title=title,
        title_justify="left",
        caption=caption,
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )
    for cells in rows:
        out.add_row(*cells)
    return out
