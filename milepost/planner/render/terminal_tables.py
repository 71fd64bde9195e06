"""A plan's tables for a terminal: one that is too wide is told in parts, each with its first column."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich import box
from rich.cells import cell_len
from rich.markup import escape
from rich.table import Table as RichTable

from milepost.planner.report import Table

__all__ = ["table_parts"]

_BETWEEN = 3
"""Blanks between two columns."""
_WORDS = 24
"""Characters of a column of words, which may be folded further."""


def table_parts(table: Table, width: int) -> Iterator[RichTable]:
    """Tables of rich's of at most `width` characters, as far as numbers need not be cut for that.

    The row that is chosen is bold and has a mark, which a pipe keeps.
    """
    needs = [_need(table, place) for place in range(len(table.columns))]
    if table.best is not None:
        width -= 1 + _BETWEEN
    for places in _split(needs, width):
        yield _part(table, places, needs)


def _split(needs: Sequence[int], width: int) -> Iterator[list[int]]:
    """Places of columns that fit beside the first one, in order; each part has one more at least."""
    if not needs:
        return
    part, used = [0], needs[0]
    for place, need in enumerate(needs[1:], 1):
        if used + _BETWEEN + need > width and len(part) > 1:
            yield part
            part, used = [0], needs[0]
        part.append(place)
        used += _BETWEEN + need
    yield part


def _need(table: Table, place: int) -> int:
    """Least width of a column: numbers are never folded, words and headings only between words."""
    column = table.columns[place]
    cells = [row[place] for row in table.rows]
    least = max(map(cell_len, column.name.split()), default=1)
    if column.numeric:
        return max([least, *map(cell_len, cells)])
    return max([least, *(min(cell_len(cell), _WORDS) for cell in cells)])


def _part(table: Table, places: Sequence[int], needs: Sequence[int]) -> RichTable:
    marked = table.best is not None
    headed = any(table.columns[place].name for place in places)
    shown = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, show_header=headed)
    if marked:
        shown.add_column("", min_width=1)
    for place in places:
        column = table.columns[place]
        shown.add_column(
            escape(column.name),
            justify="right" if column.numeric else "left",
            overflow="fold",
            min_width=needs[place],
        )
    for number, row in enumerate(table.rows):
        best = number == table.best
        mark = ["*" if best else ""] if marked else []
        cells = (escape(row[place]) for place in places)
        shown.add_row(*mark, *cells, style="bold" if best else None)
    return shown
