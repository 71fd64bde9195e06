"""A report on a terminal: its figures, tables and drawings; plots are for the page."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.constrain import Constrain
from rich.markup import escape
from rich.table import Table as RichTable
from rich.text import Text

from milepost.planner.render.terminal_tables import table_parts
from milepost.planner.report import Drawing, Report, Section, Table

__all__ = ["rendered"]

_TEXT_WIDTH = 100
"""Characters of a line of sentences, on however wide a terminal."""
_BEST = "chosen"


def rendered(report: Report, *, width: int) -> Iterator[RenderableType]:
    """What rich prints, from top to bottom: the figures that answer, then each section, then the notes.

    Args:
        report: what is shown.
        width: characters of a line, into which tables are made to fit.
    """
    yield Text(report.title, style="bold")
    if report.headline:
        yield _headline(report)
    for section in report.sections:
        yield from _section(section, width)
    if report.notes:
        yield from _heading("Notes", "")
        yield from (_sentence(note, bullet="- ") for note in report.notes)


def _headline(report: Report) -> RichTable:
    table = RichTable(show_header=False)
    table.add_column(overflow="fold")
    table.add_column(justify="right", overflow="fold")
    for name, value in report.headline:
        table.add_row(escape(name), escape(value))
    return table


def _section(section: Section, width: int) -> Iterator[RenderableType]:
    if not (section.lead or section.tables or section.drawings):
        return  # plots alone, which a terminal can't show
    yield from _heading(section.title, section.lead)
    for place, table in enumerate(section.tables):
        if place or section.lead:
            yield ""
        yield from _table(table, width)
    for drawing in section.drawings:
        yield from _drawing(drawing)


def _heading(title: str, lead: str) -> Iterator[RenderableType]:
    yield Text(f"\n{title}", style="bold")
    if lead:
        yield _sentence(lead)


def _sentence(text: str, *, bullet: str = "") -> RenderableType:
    if not bullet:
        return Constrain(Text(text), _TEXT_WIDTH)
    grid = RichTable.grid()
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_row(bullet, Text(text))
    return Constrain(grid, _TEXT_WIDTH)


def _table(table: Table, width: int) -> Iterator[RenderableType]:
    if table.title:
        yield Text(table.title, style="italic")
    for place, part in enumerate(table_parts(table, width)):
        if place:
            yield ""
        yield part
    marked = f"* {_BEST}." if table.best is not None else ""
    if note := " ".join(filter(None, (marked, table.note))):
        yield _sentence(note)


def _drawing(drawing: Drawing) -> Iterator[RenderableType]:
    if drawing.title:
        yield Text(f"\n{drawing.title}", style="italic")
    yield Text(drawing.text.rstrip("\n"), no_wrap=True, overflow="crop")
