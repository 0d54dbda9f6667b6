"""Layout of tables printed by the command-line interface."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Column, Table
from rich.text import Text

# Minimum width of a label column. Long labels wrap, but numbers never do.
_LABEL_WIDTH = 12
# Prose columns split only words that are longer than this limit.
_PROSE_WIDTH = 20
# Number of spaces between adjacent columns, and total number of spaces at the ends of a row.
_GAP, _ENDS = 3, 2


def label(heading: str) -> Column:
    """Return a column of user-defined labels, which wrap if too long."""
    return Column(heading, min_width=_LABEL_WIDTH)


def word(heading: str) -> Column:
    """Return a text column whose cells wrap only if the table does not fit."""
    return Column(heading)


def number(heading: str) -> Column:
    """Return a right-aligned column of numbers that never wrap."""
    return Column(heading, justify="right")


class Sheet(NamedTuple):
    """Table that becomes one paragraph per row on a narrow terminal, so no cell is truncated."""

    columns: list[Column]  # a column without a minimum width never wraps
    rows: list[list[Text]]
    title: str | None
    caption: str | None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        widths = self._widths(options.max_width)
        if widths is not None:
            yield self._table(widths)
            return
        yield ""
        if self.title:
            yield Text(self.title, "table.title")
        for row in self.rows:
            yield from self._paragraph(row)
        if self.caption:
            yield Text(self.caption, "table.caption")
        yield ""

    def _widths(self, room: int) -> list[int] | None:
        """Return column widths, widening narrow columns first, or None if the table is too wide."""
        wished, widths = [], []
        for place, column in enumerate(self.columns):
            cells = [str(column.header), *(row[place].plain for row in self.rows)]
            wished.append(max(cell_len(line) for cell in cells for line in cell.split("\n")))
            widths.append(min(column.min_width or wished[-1], wished[-1]))
        spare = room - _ENDS - _GAP * (len(widths) - 1) - sum(widths)
        if spare < 0:
            return None
        for _ in range(spare):
            short = [place for place, width in enumerate(widths) if width < wished[place]]
            if short:
                widths[min(short, key=lambda place: widths[place])] += 1
        return widths

    def _table(self, widths: list[int]) -> Table:
        pairs = zip(self.columns, widths, strict=True)
        out = Table(
            *(replace(column, width=w, min_width=None, overflow="fold") for column, w in pairs),
            title=self.title,
            title_justify="left",
            caption=self.caption,
            caption_justify="left",
            box=box.SIMPLE_HEAD,
            pad_edge=False,
        )
        for row in self.rows:
            out.add_row(*row)
        return out

    def _paragraph(self, row: list[Text]) -> RenderResult:
        first, *others = row
        yield first
        out = Table.grid(Column(no_wrap=True), Column(overflow="fold"), padding=(0, 2))
        for column, cell in zip(self.columns[1:], others, strict=True):
            if cell.plain:
                out.add_row("  " + str(column.header).replace("\n", " "), cell)
        yield out


def make_table(
    columns: Sequence[Column | str],
    rows: Iterable[Sequence[str | Text]],
    *,
    title: str | None = None,
    caption: str | None = None,
) -> Sheet:
    """Build a table for the terminal, with a title above it and a caption below it.

    Create columns with :func:`label`, :func:`word` or :func:`number`. A plain string creates a
    column of wrapped text. Cells are not parsed as markup. Pass ``Text`` for styled cells.
    """
    cells = [[Text(cell) if isinstance(cell, str) else cell for cell in row] for row in rows]
    layout = []
    for place, column in enumerate(columns):
        if isinstance(column, str):
            words = [cell_len(part) for row in cells for part in row[place].plain.split()]
            longest = max(words, default=1)
            least = max(min(longest, _PROSE_WIDTH), *map(cell_len, column.split()))
            column = Column(column, min_width=least)
        layout.append(column)
    return Sheet(layout, cells, title, caption)
