"""The HTML report in headless Chromium: drawn, without complaints, at the widths of a desk and of a phone."""

from __future__ import annotations

from pathlib import Path

import pytest

from milepost.sim.reports import write_html
from milepost.sim.runs import RunResult
from tests.chromium import browser
from tests.repository.paths import ROOT
from tests.sim.reports.browser import assert_fits, open_page
from tests.sim.reports.results import GB, make_result, make_sweep

__all__ = ["browser"]

ARTEFACTS = ROOT / "runs" / "artefacts"
PLOTS = ("hits", "latency", "losses", "pareto", "time", "depth")
EVIL = "<script>document.title='bad'</script>"


@pytest.mark.parametrize("width", [1280, 390])
def test_every_plot_is_drawn(browser: str, tmp_path: Path, width: int) -> None:
    page = tmp_path / "report.html"
    write_html(make_sweep(), page, command="milepost simulate trace.jsonl.gz --budget 200GB,400GB")
    opened = open_page(browser, page, width, screenshot=ARTEFACTS / f"simulate-report-{width}.png")
    assert_fits(opened, width)
    assert set(opened.plots) == set(PLOTS)
    results = len(make_sweep())
    assert opened.plots["hits"] >= results, "a mark for each result"
    assert opened.plots["pareto"] >= results
    assert all(count > 2 for count in opened.plots.values()), opened.plots
    assert "milepost simulate trace.jsonl.gz" in opened.text


def hostile_sweep() -> list[RunResult]:
    """Two workloads with names that would like to be markup, 60 runs in one of them, none timed."""
    names = [EVIL, "<img src=x onerror=alert(1)>", "a&amp;b</script>", "{{data}}", f"every({'9' * 120})"]
    many = [
        make_result(
            0.1 + 0.01 * i / 6,
            trace=EVIL,
            policy=f"{names[i % 5]}{i // 5 % 2}",
            budget_bytes=(100 + 20 * (i // 10)) * GB,
            ttft=None,
            tpot=None,
            goodput=None,
            hardware="",
            notes=(f"Read with {EVIL}.",),
        )
        for i in range(60)
    ]
    return [*many, make_result(0.3, trace="x" * 300, policy="<b>bold</b>")]


ACTIONS = """
  const one = (selector) => document.querySelector(selector);
  const rows = () => [...document.querySelectorAll("tbody tr")].map((row) => row.textContent);
  const heads = [...document.querySelectorAll("th button")];
  const hit = heads.find((head) => head.textContent === "hit rate");
  hit.click();
  const down = rows()[0];
  hit.click();
  const up = rows()[0];
  const sorted = hit.parentElement.getAttribute("aria-sort");
  const empty = one("#latency .empty").textContent;
  const runs = one("#chosen").options.length;
  one("#chosen").value = 3;
  one("#chosen").onchange();
  one("#hits .legend button").click();
  const pressed = one("#hits .legend button").getAttribute("aria-pressed");
  const legend = [...document.querySelectorAll("#hits .legend button")].map((each) => each.textContent);
  one("#losses .views button, #losses .views select").click();
  const facts = one(".facts").textContent;
  one("#workload").value = 1;
  one("#workload").onchange();
  return { down, up, sorted, empty, runs, pressed, legend, facts, title: document.title,
           after: one("#chosen").options.length };
"""


def test_names_are_text_and_the_controls_work(browser: str, tmp_path: Path) -> None:
    page = tmp_path / "hostile.html"
    results = hostile_sweep()
    write_html(results, page, command=f"milepost simulate '{EVIL}'")
    opened = open_page(browser, page, 390, script=ACTIONS)
    assert_fits(opened, 390)
    said = opened.said
    assert EVIL in said["title"]
    assert said["title"] != "bad"
    assert EVIL in opened.text
    assert any(name.startswith("<img src=x onerror=alert(1)>") for name in said["legend"])
    assert "{{data}}0" in said["legend"]
    best, worst = max(results, key=rate), min(results, key=rate)
    assert f"{best.hit_rate:.2%}" in said["down"]
    assert f"{worst.hit_rate:.2%}" in said["up"]
    assert said["sorted"] == "ascending"
    assert said["empty"].startswith("No model of time")
    assert (said["runs"], said["after"]) == (60, 1)
    assert said["pressed"] == "false"
    assert f"{results[3].hit_rate:.2%}" in said["facts"]
    assert opened.plots["latency"] > 0, "the other workload has times"


def rate(result: RunResult) -> float:
    return result.hit_rate


def test_a_single_bare_result_is_a_report_too(browser: str, tmp_path: Path) -> None:
    page = tmp_path / "one.html"
    bare = make_result(
        0.0,
        budget_bytes=None,
        ttft=None,
        tpot=None,
        goodput=None,
        samples=(),
        written_by_depth=(),
        used_by_depth=(),
        depth_edges=(),
        state_bytes_mean=0.0,
        kv_bytes_mean=0.0,
        losses={},
        notes=(),
    )
    write_html([bare], page)
    opened = open_page(browser, page, 1280)
    assert_fits(opened, 1280)
    assert opened.plots["hits"] > 0
    assert "This run kept no samples." in opened.text
    assert "This run wrote no snapshots." in opened.text
