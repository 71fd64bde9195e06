"""The page in headless Chromium: drawn, without complaints, at the widths of a desk and of a phone."""

from __future__ import annotations

from pathlib import Path

import pytest

from milepost.planner.render.page import write_html
from tests.chromium import browser
from tests.planner.render.reports import EVIL, make_report
from tests.repository.paths import ROOT
from tests.sim.reports.browser import assert_fits, open_page

__all__ = ["browser"]

ARTEFACTS = ROOT / "runs" / "artefacts"


@pytest.mark.parametrize("width", [1280, 390])
def test_every_plot_is_drawn(browser: str, tmp_path: Path, width: int) -> None:
    page = tmp_path / "plan.html"
    write_html(make_report(), page, command="milepost plan memory --tp 8")
    opened = open_page(browser, page, width, screenshot=ARTEFACTS / f"plan-sample-{width}.png")
    assert_fits(opened, width)
    # A mark for each point and each line, but none where a value is no number.
    assert opened.plots == {"p0": 8, "p1": 4, "p2": 3, "p3": 3, "p4": 0}
    assert "milepost plan memory --tp 8" in opened.text


ACTIONS = """
  const one = (selector) => document.querySelector(selector);
  const visible = () => [...document.querySelectorAll(".number-of")].filter((each) => each.offsetParent)
    .map((each) => each.querySelector("summary span").textContent);
  const heads = [...document.querySelectorAll("th button")];
  heads[0].click();
  const down = [...document.querySelectorAll("tbody tr")].map((row) => row.cells[1].textContent);
  const all = visible();
  const box = one("#wanted");
  box.value = "STEP seconds";
  box.oninput();
  const found = visible();
  const said = one("#found").textContent;
  const numbers = [...document.querySelectorAll(".number-of")];
  const used = numbers.find((each) => each.textContent.startsWith("used_bytes"));
  const before = used.open;
  location.hash = used.id;
  dispatchEvent(new HashChangeEvent("hashchange"));
  const after = used.open && Boolean(used.offsetParent);
  one("#fold").click();
  return { down, all, found, said, before, after, folded: used.open, title: document.title,
           heads: heads.length };
"""


def test_names_are_text_and_the_controls_work(browser: str, tmp_path: Path) -> None:
    page = tmp_path / "hostile.html"
    report = make_report(EVIL)
    write_html(report, page, command=f"milepost plan '{EVIL}'")
    opened = open_page(browser, page, 390, script=ACTIONS)
    assert_fits(opened, 390)
    said = opened.said
    assert EVIL in said["title"]
    assert EVIL in opened.text
    assert said["heads"] == 1
    assert said["down"] == ["1,445", "310", "2"]
    assert set(said["all"]) == {entry.name for entry in report.derivations}
    assert said["found"] == ["decode.step_seconds"], "words in any order and case"
    assert said["said"] == "1 of 7"
    assert (said["before"], said["after"], said["folded"]) == (False, True, False)


def test_a_page_without_plots_needs_no_plotly(browser: str, tmp_path: Path) -> None:
    page = tmp_path / "plain.html"
    write_html(make_report(plots=False), page)
    opened = open_page(browser, page, 390)
    assert_fits(opened, 390)
    assert opened.plots == {}
    assert page.stat().st_size < 100_000
