"""A report as one HTML file: figures, tables, drawings, plots, and where every number comes from.

It loads nothing from anywhere and can be read without scripts, but for the plots.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

from milepost.planner.render.derivations import derivations_html
from milepost.planner.render.drawings import drawing_html
from milepost.planner.render.plot_data import plot_data
from milepost.planner.report import Report, Section, Table
from milepost.sim.reports.files import save
from milepost.sim.reports.page_frame import Page, notes_html, page_html, tiles_html

__all__ = ["to_html", "write_html"]

_NOTHING = ("", "-", "—", "·")
_WORD = 30
"""Characters of a cell that is not folded."""
_FEW_COLUMNS = 2
"""Cells of so few columns would stand too far apart on a wide page."""
_LEAD = "Every number below can be asked where it comes from: see the end of the page."


def write_html(report: Report, path: Path, *, command: str = "") -> None:
    """Write `to_html` to `path`.

    Raises:
        ConfigError: plotly is not installed and there are plots.
        InputError: the file can't be written.
    """
    save(path, to_html(report, command=command).encode())


def to_html(report: Report, *, command: str = "") -> str:
    """The page.

    Args:
        report: what is shown; any text of it may hold markup, which is shown as text.
        command: the command line that made it.

    Raises:
        ConfigError: plotly is not installed and there are plots.
    """
    plots = [plot for section in report.sections for plot in section.plots]
    places = iter(range(len(plots)))
    sections = [_section(place, section, places) for place, section in enumerate(report.sections)]
    return page_html(
        Page(
            brand=report.brand,
            title=report.title,
            lead=_LEAD if report.derivations else "",
            tiles_html=tiles_html((name, value, "") for name, value in report.headline),
            body_html="\n".join([*sections, notes_html(report.notes, command), _numbers(report)]),
            data={"plots": {f"p{place}": plot_data(plot) for place, plot in enumerate(plots)}},
            script="plan.js",
            styles=("plan.css",),
            plots=bool(plots),
        )
    )


def _section(place: int, section: Section, plots: Iterator[int]) -> str:
    parts = [f'<section id="s{place}"><h2>{escape(section.title)}</h2>']
    if section.lead:
        parts.append(f"<p>{escape(section.lead)}</p>")
    parts += [_table(table, section.title) for table in section.tables]
    parts += [drawing_html(drawing) for drawing in section.drawings]
    if section.plots:
        figures = (
            f'<section id="p{next(plots)}"><h3>{escape(plot.title)}</h3><div class="plot"></div></section>'
            for plot in section.plots
        )
        parts.append(
            f'<div class="{"pair" if len(section.plots) > 1 else "single"}">{"".join(figures)}</div>'
        )
    return "".join([*parts, "</section>"])


# -- tables ------------------------------------------------------------------------------------------


def _table(table: Table, section: str) -> str:
    sortable = [
        len(table.rows) > 1 and _all_numbers(table.rows, place) for place in range(len(table.columns))
    ]
    head = "".join(
        _head(column.name, numeric=column.numeric, sortable=sorts)
        for column, sorts in zip(table.columns, sortable, strict=True)
    )
    headed = any(column.name for column in table.columns)
    head = f"<thead><tr>{head}</tr></thead>" if headed else ""
    body = "".join(_row(table, row, best=place == table.best) for place, row in enumerate(table.rows))
    title = f"<h3>{escape(table.title)}</h3>" if table.title else ""
    note = f'<p class="below">{escape(table.note)}</p>' if table.note else ""
    label = escape(table.title or section)
    few = " few" if len(table.columns) <= _FEW_COLUMNS else ""
    return (
        f'{title}<div class="scroll{few}" tabindex="0" role="region" aria-label="{label}">'
        f"<table>{head}<tbody>{body}</tbody></table></div>{note}"
    )


def _head(name: str, *, numeric: bool, sortable: bool) -> str:
    shown = f'<button type="button">{escape(name)}</button>' if sortable else escape(name)
    return f'<th scope="col"{" class=number" if numeric else ""}>{shown}</th>'


def _row(table: Table, row: Sequence[str], *, best: bool) -> str:
    cells = []
    for place, (column, cell) in enumerate(zip(table.columns, row, strict=True)):
        value = _sort_value(cell)
        sort = "" if value is None else f' data-value="{value}"'
        mark = '<span title="chosen">★</span> ' if best and not place else ""
        kind = "number" if column.numeric else "name" if len(cell) > _WORD else "word"
        cells.append(f'<td class="{kind}"{sort}>{mark}{escape(cell)}</td>')
    return f"<tr{' class=best' if best else ''}>{''.join(cells)}</tr>"


def _all_numbers(rows: Sequence[Sequence[str]], place: int) -> bool:
    """Whether a column can be sorted: cells with units of their own, or words, would sort wrongly."""
    values = [_sort_value(row[place]) for row in rows]
    return None not in values and any(values)


def _sort_value(cell: str) -> str | None:
    """What a bare number sorts by; "" for a cell without one; None for anything else."""
    if cell in _NOTHING:
        return ""
    try:
        number = float(cell.replace(",", "").removesuffix("%").strip())
    except ValueError:
        return None
    return f"{number:.9g}" if math.isfinite(number) else None


# -- where numbers come from -------------------------------------------------------------------------


def _numbers(report: Report) -> str:
    if not report.derivations:
        return ""
    return (
        '<section id="numbers"><h2>Where every number comes from</h2>'
        "<p>Click a number to see its formula and inputs.</p>"
        '<p class="tools" hidden><label>Search <input type="search" id="wanted" autocomplete="off"></label>'
        '<button type="button" id="fold">Close all</button> <span id="found" role="status"></span></p>'
        f"{derivations_html(report.derivations)}</section>"
    )
