"""What a plan shows its reader, before any form: sections of tables, plots and drawings.

A plan says once what is to be seen; the terminal and the HTML page draw the same sections. JSON is made of
the plan itself, whose numbers keep their units in their names.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

import msgspec

from milepost.planner.worksheet import Derivation

__all__ = ["Column", "Drawing", "Plot", "Report", "Section", "Series", "Table", "columns"]


class Column(msgspec.Struct, frozen=True):
    """A column of a table: its heading, and whether it holds numbers, which stand to the right."""

    name: str
    numeric: bool = True


def columns(*names: str, words: Collection[str] = ()) -> tuple[Column, ...]:
    """Columns of numbers but for those named in `words`."""
    return tuple(Column(name, numeric=name not in words) for name in names)


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of cells that are written out already, as many as there are columns.

    Attributes:
        title: of the table; "" where the section's is enough.
        columns: of each row.
        rows: from top to bottom.
        note: below it; "" for none.
        best: index of the row that is recommended; None for none.
    """

    title: str = ""
    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""
    best: int | None = None


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """Points of one name; `labels`, if any, are what a reader sees over each of them."""

    name: str
    x: tuple[float | str, ...]
    y: tuple[float, ...]
    labels: tuple[str, ...] = ()


class Plot(msgspec.Struct, frozen=True, kw_only=True):
    """Series over one pair of axes; "bars" stack."""

    title: str
    x_name: str
    y_name: str
    series: tuple[Series, ...]
    kind: Literal["lines", "points", "bars"] = "lines"
    log_x: bool = False
    log_y: bool = False


class Drawing(msgspec.Struct, frozen=True, kw_only=True):
    """A picture in both forms: text for a terminal, SVG (an ``<svg>`` element) for a page."""

    title: str
    text: str
    svg: str


class Section(msgspec.Struct, frozen=True, kw_only=True):
    """One part of a report.

    Attributes:
        title: of it.
        lead: a sentence or two before everything; "" for none.
        tables: shown on a terminal and on a page.
        drawings: the same.
        plots: on a page only.
    """

    title: str
    lead: str = ""
    tables: tuple[Table, ...] = ()
    drawings: tuple[Drawing, ...] = ()
    plots: tuple[Plot, ...] = ()


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a plan shows.

    Attributes:
        title: what was planned, of which model on what.
        headline: (name, value) of the few figures that answer the question.
        sections: from top to bottom.
        notes: what a reader must know: assumptions, limits, what is not modelled.
        derivations: of every number, for ``--explain`` and the page.
        brand: the command, in the page's corner.
    """

    title: str
    headline: tuple[tuple[str, str], ...]
    sections: tuple[Section, ...]
    notes: tuple[str, ...]
    derivations: tuple[Derivation, ...]
    brand: str = "plan"
