"""The HTML page as text: whole, from nowhere, with every name as text."""

from __future__ import annotations

import gzip
import json
import re
import sys
from base64 import b64decode
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pytest

from milepost.errors import ConfigError, InvariantError
from milepost.planner.render.page import to_html, write_html
from milepost.planner.report import Column, Drawing, Report, Section, Table
from tests.planner.render.reports import EVIL, SVG, make_report


class Parsed(HTMLParser):
    """Elements with their attributes, and text, of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    @property
    def text(self) -> str:
        return "".join(self.texts)


def test_nothing_is_loaded_from_anywhere() -> None:
    page = to_html(make_report())
    for tag, attributes in Parsed(page).elements:
        assert tag not in {"img", "iframe", "object", "embed", "base", "form"}
        assert "src" not in attributes
        for name in ("href", "action"):
            target = attributes.get(name) or "#"
            assert target.startswith("#") or target == "data:,", (tag, target)
        assert not any(name.startswith("on") for name in attributes)
    assert "default-src 'none'" in page
    assert not re.search(r"@import|url\(", page.partition("</style>")[0])


def test_every_text_is_there_and_is_text() -> None:
    report = make_report(EVIL)
    page = to_html(report, command=f"milepost plan '{EVIL}'")
    parsed = Parsed(page)
    assert len([tag for tag, _ in parsed.elements if tag == "script"]) == 3, (
        "data, library and the page's own"
    )
    assert EVIL not in page
    for text in (report.title, *(value for _, value in report.headline), *report.notes, f"plan '{EVIL}'"):
        assert text in parsed.text


def test_the_recommended_row_is_marked() -> None:
    page = to_html(make_report("B", plots=False))
    (row,) = re.findall(r"<tr class=best>.*?</tr>", page)
    assert "★" in row
    assert ">2<" in row


def test_only_columns_of_bare_numbers_can_be_sorted() -> None:
    """By "1.5 GB" and "3 kB" a column would be sorted wrongly."""
    page = to_html(make_report("B", plots=False))
    heads = re.findall(r"<th [^>]*>(.*?)</th>", page)
    assert heads == ["layout", '<button type="button">states</button>', "bytes B", "nothing"]
    assert 'data-value="1445"' in page


def test_every_number_has_its_formula_its_inputs_and_its_users() -> None:
    report = make_report(plots=False)
    blocks = re.findall(r'<details class="number-of".*?</details>', to_html(report))
    assert len(blocks) == len(report.derivations)
    ids: dict[str, str] = {}
    by_name: dict[str, str] = {}
    for block in blocks:
        found = re.search(r'id="(\w+)".*?<span>(.*?)</span>', block)
        assert found
        ids[found[2]] = found[1]
        by_name[found[2]] = block
    assert set(ids) == {entry.name for entry in report.derivations}
    used = by_name["used_bytes"]
    assert "445 * 449,372,160 = 199,970,611,200 bytes" in used
    for name in ("states_that_fit", "state_bytes", "left_bytes"):
        assert f'<a href="#{ids[name]}">{name}</a>' in used
    assert "source" in by_name["state_bytes"]
    assert "kimi-k3&#x27;s config.json" in by_name["state_bytes"]
    tokens = by_name["decode.tokens"]
    assert "1 / 0.0123457 if 445 &gt;= 1 else 0" in tokens, "words of the formula that are no numbers stay"
    assert re.findall(r"<summary>(\w+) <small>(\d+)", to_html(report)) == [("overall", "5"), ("decode", "2")]


def test_plots_are_plain_data_and_gaps_are_null() -> None:
    page = to_html(make_report())
    found = re.search(r'id="data">(.*?)</script>', page)
    assert found
    data = json.loads(found[1])["plots"]
    assert list(data) == ["p0", "p1", "p2", "p3", "p4"]
    lines = data["p0"]["views"][0]
    assert lines["data"][1]["y"] == [5.0, None, 0.5]
    assert lines["layout"]["xaxis"]["ticktext"] == ["1k", "8k", "128k"]
    assert lines["layout"]["yaxis"]["type"] == "log"
    assert "tickvals" not in lines["layout"]["yaxis"], "what is measured has round ticks"
    bars = data["p1"]["views"][0]
    assert [one["y"] for one in bars["data"]] == [[0, 1, 2], [0]]
    assert bars["layout"]["yaxis"]["ticktext"][0] == "8"
    assert data["p2"]["views"][0]["data"][0]["mode"] == "markers"
    assert data["p3"]["views"][0]["layout"]["xaxis"]["type"] == "category"
    assert data["p4"] == {"empty": "There is nothing to draw."}


def test_plotly_is_in_the_page_only_where_there_are_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    def library(page: str) -> str:
        found = re.search(r'id="library">(.*?)</script>', page)
        assert found
        return found[1]

    assert b"plotly" in gzip.decompress(b64decode(library(to_html(make_report()))))[:1000].lower()
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    assert library(to_html(make_report(plots=False))) == ""
    with pytest.raises(ConfigError, match=r"needs plotly.*pip install 'milepost\[simulate\]'"):
        to_html(make_report())


def test_the_file_is_the_page(tmp_path: Path) -> None:
    report = make_report(plots=False)
    write_html(report, tmp_path / "deep" / "plan.html", command="milepost plan")
    assert (tmp_path / "deep" / "plan.html").read_text(encoding="utf-8") == to_html(
        report, command="milepost plan"
    )


def with_svg(svg: str) -> Report:
    drawing = Drawing(title="a picture", text="", svg=svg)
    return msgspec.structs.replace(
        make_report(plots=False), sections=(Section(title="s", drawings=(drawing,)),)
    )


@pytest.mark.parametrize(
    ("svg", "says"),
    [
        ("<svg>a & b</svg>", "not well-formed"),
        ("<svg><script>1</script></svg>", "holds <script>"),
        ('<svg xmlns="http://www.w3.org/2000/svg"><script>1</script></svg>', "holds <script>"),
        ("<svg><style>a {}</style></svg>", "holds <style>"),
        ("<svg><foreignObject/></svg>", "holds <foreignObject>"),
        ('<svg><rect onclick="x()"/></svg>', "onclick="),
        ('<svg xmlns:x="http://www.w3.org/1999/xlink"><rect x:href="#a"/></svg>', "href="),
        ('<svg><rect fill="url(http://example.com/a)"/></svg>', "fill="),
        ('<svg><rect style="background: url(//example.com/a)"/></svg>', "style="),
        ("<p>text</p>", "must be an <svg>"),
        ('<!DOCTYPE svg [<!ENTITY a "b">]><svg>&a;</svg>', "declaration"),
    ],
)
def test_a_drawing_that_could_act_or_load_is_a_bug(svg: str, says: str) -> None:
    with pytest.raises(InvariantError, match=re.escape(says)):
        to_html(with_svg(svg))


def test_a_drawing_is_in_the_page_as_it_is() -> None:
    assert SVG in to_html(with_svg(SVG))


def test_a_table_may_have_any_cells() -> None:
    table = Table(columns=(Column("a"), Column("b")), rows=(("inf", "-"), ("nan", "12%"), ("1,000", "0.5%")))
    section = Section(title="s", tables=(table,))
    page = to_html(msgspec.structs.replace(make_report(plots=False), sections=(section,)))
    assert 'data-value="inf"' not in page
    assert 'data-value="nan"' not in page
    assert re.findall(r"<th [^>]*>(.*?)</th>", page) == ["a", '<button type="button">b</button>']
    assert '<td class="number" data-value="">-</td>' in page, "what has no value is sorted last"
