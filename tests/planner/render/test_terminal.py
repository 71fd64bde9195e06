"""A report on a terminal: all text of it, as it is, at any width."""

from __future__ import annotations

import re

import msgspec
import pytest
from rich.console import Console

from milepost.planner.render.page import to_html
from milepost.planner.render.terminal import rendered
from milepost.planner.render.terminal_tables import table_parts
from milepost.planner.report import Column, Report, Section, Table
from tests.planner.render.reports import make_report


def text_of(report: Report, width: int = 120) -> str:
    console = Console(width=width, highlight=False)
    with console.capture() as captured:
        console.print(*rendered(report, width=width), sep="\n")
    return captured.get()


def test_everything_but_plots_is_shown_in_order() -> None:
    report = make_report()
    text = text_of(report)
    wanted = [
        report.title,
        *(value for _, value in report.headline),
        "What fits of Kimi K3",
        "Layouts of Kimi K3",
        "paged",
        "aligned",
        "Of one rank",
        "A state of Kimi K3 over pages",
        "|ab|",
        "Notes",
        *report.notes,
    ]
    places = [text.find(one) for one in wanted]
    assert all(place >= 0 for place in places), dict(zip(wanted, places, strict=True))
    assert places == sorted(places)
    assert "Over the context" not in text, "a section of plots alone is not for a terminal"


def test_the_recommended_row_is_marked_and_the_mark_explained() -> None:
    text = text_of(make_report("B"))
    (row,) = [line for line in text.splitlines() if line.startswith("*   ")]
    assert row.split()[1] == "B"
    assert "* chosen. Of one rank of B." in text


def test_numbers_stand_to_the_right() -> None:
    lines = text_of(make_report("B")).splitlines()
    ends = {re.search(r"(1,445|310|(?<=B {11})2)(?= )", line) for line in lines}
    assert len({match.end() for match in ends if match}) == 1


@pytest.mark.parametrize("width", [40, 80, 200])
def test_names_that_look_like_markup_are_text_at_any_width(width: int) -> None:
    name = "[red]x[/red] \\[b]"
    text = text_of(make_report(name), width)
    assert name in text
    assert all(len(line) <= width for line in text.splitlines())


def test_a_bare_report_is_shown_too() -> None:
    bare = Report(title="Nothing", headline=(), sections=(Section(title="Empty"),), notes=(), derivations=())
    text = text_of(bare)
    assert text.strip().splitlines()[0] == "Nothing"
    assert "Notes" not in text
    assert "Empty" not in text


def test_a_title_is_not_folded_into_its_narrow_table() -> None:
    report = msgspec.structs.replace(make_report(), title="t" * 100)
    assert "t" * 100 in text_of(report)


def test_columns_without_names_have_no_heading() -> None:
    table = Table(columns=(Column("", numeric=False), Column("")), rows=(("a", "1"),))
    report = Report(
        title="t", headline=(), sections=(Section(title="s", tables=(table,)),), notes=(), derivations=()
    )
    assert text_of(report).split() == ["t", "s", "a", "1"]
    assert "<thead>" not in to_html(report)


def test_a_table_that_is_too_wide_is_told_in_parts() -> None:
    names = [f"column {place}" for place in range(9)]
    row = tuple(f"{place},000,000 kB" for place in range(9))
    table = Table(columns=tuple(map(Column, names)), rows=(row, row), best=0)
    report = Report(
        title="t", headline=(), sections=(Section(title="s", tables=(table,)),), notes=(), derivations=()
    )
    lines = text_of(report, 60).splitlines()
    assert all(len(line) <= 60 for line in lines)
    rows = [line.split("   ") for line in lines if "kB" in line]
    told = [[cell.strip(" *") for cell in row if cell.strip(" *")] for row in rows]
    assert all(cells[0] == row[0] for cells in told), "each part begins with the first column"
    assert [cell for cells in told[::2] for cell in cells[1:]] == [*row[1:]]
    assert told[::2] == told[1::2]
    assert text_of(report, 250).count("column 0") == 1


@pytest.mark.parametrize("width", [10, 30])
def test_numbers_are_never_cut(width: int) -> None:
    table = Table(columns=(Column("a", numeric=False), Column("b")), rows=(("word " * 9, "1,234,567,890"),))
    parts = [*table_parts(table, width)]
    assert len(parts) == 1
    console = Console(width=200)
    assert parts[0].columns[1].min_width == 13
    assert console.measure(parts[0]).minimum >= 13
