"""Every field report has its line, every test that a line names is there, and what it names is named back."""

from __future__ import annotations

import re
from pathlib import Path

from tests.repository.paths import ROOT

PAGE = ROOT / "docs" / "field-reports.md"

# The reports by number; the others were never given.
RUNS = [(1, 4), (6, 6), (8, 14), (16, 20), (22, 28), (30, 38), (40, 57), (60, 61), (63, 67), (69, 73)]
RUNS += [(75, 82), (85, 88), (90, 99)]
IDS = [f"R{number:02}" for first, last in RUNS for number in range(first, last + 1)]

ROW = re.compile(r"^\| (?P<id>R\d\d) \| (?P<kind>[^|]+) \| (?P<covered>[^|]+) \|$", re.MULTILINE)
TEST = re.compile(r"\[`(?P<name>test_\w+)`\]\(\.\./(?P<path>tests/[\w/]+\.py)\)")


def rows() -> dict[str, str]:
    """Report -> what covers it."""
    return {match["id"]: match["covered"] for match in ROW.finditer(PAGE.read_text(encoding="utf-8"))}


def named() -> set[tuple[str, Path]]:
    """Every test that the page names."""
    return {(match["name"], ROOT / match["path"]) for row in rows().values() for match in TEST.finditer(row)}


def defined_in(path: Path) -> set[str]:
    return set(re.findall(r"^def (test_\w+)", path.read_text(encoding="utf-8"), re.MULTILINE))


def test_every_report_has_one_line_in_order() -> None:
    found = [match["id"] for match in ROW.finditer(PAGE.read_text(encoding="utf-8"))]
    assert found == IDS


def test_every_line_names_a_test_or_says_why_there_is_none() -> None:
    for report, covered in rows().items():
        said = TEST.sub("", covered).replace("<br>", "").strip()
        assert TEST.search(covered) or said.endswith("."), report
        assert said == "" or said.endswith("."), f"{report}: {said}"


def test_every_test_that_is_named_is_there() -> None:
    for name, path in named():
        assert name in defined_in(path), f"{path.name} has no {name}"


def reports_of(test: str) -> list[str]:
    """The reports that a test's name names."""
    match = re.match(r"test_((?:r\d\d_)+)", test)
    return [f"R{digits}" for digits in re.findall(r"r(\d\d)_", match[1])] if match else []


def test_every_test_of_the_folder_is_on_the_page_and_says_whose_it_is() -> None:
    lines, on_page = rows(), named()
    for path in sorted((ROOT / "tests" / "field_reports").glob("test_*.py")):
        text = path.read_text(encoding="utf-8")
        found = re.findall(r'^def (test_\w+)\([^"]*?"""(.*?)"""', text, re.MULTILINE | re.DOTALL)
        assert {name for name, _ in found} == defined_in(path)
        for name, docstring in found:
            assert (name, path) in on_page, f"{name} in {path.name}"
            assert reports_of(name), name
            for report in reports_of(name):
                assert report in docstring, name
                assert name in lines[report], f"the line of {report} lacks {name}"
