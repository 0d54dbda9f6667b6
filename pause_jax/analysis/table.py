"""Layout of the tables that the command line prints."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

# Limits of a prose column's minimum width. In a narrow terminal, longer words are broken.
_MOST, _LEAST = 20, 6
# Number of spaces between two columns, and in total at the two ends of a row.
_GAP, _ENDS = 2, 2


def word(heading: str) -> Column:
    """Return a column of names, which wrap only at spaces."""
    return Column(heading, no_wrap=True)


def number(heading: str) -> Column:
    """Return a right-aligned column of numbers, which wrap only at spaces."""
    return Column(heading, justify="right", no_wrap=True)


def make_table(
    columns: Sequence[Column | str],
    rows: Iterable[Sequence[str | Text]],
    *,
    title: str | None = None,
    caption: str | None = None,
) -> Table:
    """Build a table for the terminal, with a title above it and a caption below it.

    Create columns with :func:`word` or :func:`number`. A plain string is the heading of a column
    of prose or of user-defined labels. Cells are not parsed as markup. Pass ``Text`` for styled
    cells. The terminal's width determines the widths of the columns. No cell is truncated.
    """
    layout = [Column(column) if isinstance(column, str) else column for column in columns]
    cells = [[Text(cell) if isinstance(cell, str) else cell for cell in row] for row in rows]
    table = Table(
        title=title,
        title_justify="left",
        caption=caption,
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    widths = _widths(layout, cells, Console().width)
    for column, width in zip(layout, widths, strict=True):
        table.add_column(column.header, justify=column.justify, width=width, overflow="fold")
    for row in cells:
        table.add_row(*row)
    return table


def _widths(columns: list[Column], cells: list[list[Text]], room: int) -> Sequence[int | None]:
    """Return the column widths, or only None if the terminal is too narrow for unbroken numbers."""
    room -= _ENDS + _GAP * (len(columns) - 1)
    wished, longest = [], []
    for place, column in enumerate(columns):
        texts = [str(column.header), *(row[place].plain for row in cells)]
        wished.append(max(cell_len(line) for text in texts for line in text.split("\n")))
        longest.append(max((cell_len(each) for text in texts for each in text.split()), default=1))
    for most in range(_MOST, _LEAST - 1, -1):
        widths = [
            width if column.no_wrap else min(width, most)
            for column, width in zip(columns, longest, strict=True)
        ]
        if sum(widths) <= room:
            break
    else:
        return [None] * len(columns)
    for _ in range(room - sum(widths)):
        short = [place for place, width in enumerate(widths) if width < wished[place]]
        if short:
            widths[min(short, key=lambda place: widths[place])] += 1
    return widths
