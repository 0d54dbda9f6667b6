"""The one look of all tables that the command line prints."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Column, Table
from rich.text import Text

# Of a label at the least: long ones are folded before a number is cut.
_LABEL_WIDTH = 12
# Of prose at the least, where it has a word as long.
_PROSE_WIDTH = 20
# Blanks between two columns, and at both ends together.
_GAP, _ENDS = 3, 2


class Heading(NamedTuple):
    """A column: its heading, and how it is set."""

    text: str  # the heading
    # Columns of the terminal that it has at the least; None if no line of it is broken.
    least: int | None = None
    right: bool = False  # whether it is flush right


def label(heading: str) -> Heading:
    """A column of names that a user may have made as long as they like."""
    return Heading(heading, _LABEL_WIDTH)


def word(heading: str) -> Heading:
    """A column of words that are never broken."""
    return Heading(heading)


def number(heading: str) -> Heading:
    """A column of numbers, flush right and never broken; nor is its heading."""
    return Heading(heading, right=True)


class Sheet(NamedTuple):
    """A table where the terminal has room for it, else a list: nothing is ever cut."""

    headings: list[Heading]  # of the columns
    rows: list[list[Text]]  # their cells; in a list the first one heads a paragraph
    title: str | None  # above it
    caption: str | None  # below it

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
        """Of the columns, those of few words first; None if there is no room for a table."""
        wished, widths = [], []
        for place, heading in enumerate(self.headings):
            cells = [heading.text, *(row[place].plain for row in self.rows)]
            wished.append(max(cell_len(line) for cell in cells for line in cell.split("\n")))
            least = wished[-1] if heading.least is None else heading.least
            widths.append(min(least, wished[-1]))
        spare = room - _ENDS - _GAP * (len(widths) - 1) - sum(widths)
        if spare < 0:
            return None
        for _ in range(spare):
            short = [place for place, width in enumerate(widths) if width < wished[place]]
            if short:
                widths[min(short, key=lambda place: widths[place])] += 1
        return widths

    def _table(self, widths: list[int]) -> Table:
        columns = (
            Column(
                heading.text,
                justify="right" if heading.right else "left",
                overflow="fold",
                width=width,
            )
            for heading, width in zip(self.headings, widths, strict=True)
        )
        out = Table(
            *columns,
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
        for heading, cell in zip(self.headings[1:], others, strict=True):
            if cell.plain:
                out.add_row("  " + heading.text.replace("\n", " "), cell)
        yield out


def make_table(
    columns: Sequence[Heading | str],
    rows: Iterable[Sequence[str | Text]],
    *,
    title: str | None = None,
    caption: str | None = None,
) -> Sheet:
    """A table for the terminal, with a title above it and a caption below it.

    Columns are from :func:`label`, :func:`word` or :func:`number`; of a plain heading the cells are
    prose, which is wrapped. Cells are shown as they are (no markup); a ``Text`` may have a style.
    """
    cells = [[Text(cell) if isinstance(cell, str) else cell for cell in row] for row in rows]
    longest = [
        max((cell_len(part) for row in cells for part in row[place].plain.split()), default=1)
        for place in range(len(columns))
    ]
    headings = [
        Heading(column, max(min(most, _PROSE_WIDTH), *map(cell_len, column.split())))
        if isinstance(column, str)
        else column
        for column, most in zip(columns, longest, strict=True)
    ]
    return Sheet(headings, cells, title, caption)
