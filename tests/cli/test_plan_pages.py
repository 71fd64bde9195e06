"""The page of each command of ``milepost plan`` in headless Chromium, as wide as a phone and as a desk."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from milepost.cli.app import run
from milepost.cli.plan.group import plan
from tests.chromium import browser
from tests.repository.paths import ROOT
from tests.sim.reports.browser import assert_fits, open_page

__all__ = ["browser"]

ARTEFACTS = ROOT / "runs" / "artefacts"


@pytest.mark.parametrize("width", [390, pytest.param(1280, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", plan.list_commands(click.Context(plan)))
def test_the_page_is_drawn_and_fits(
    name: str, width: int, browser: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "plan.html"
    assert run(["plan", name, "--html", str(page)]) == 0
    opened = open_page(browser, page, width, screenshot=ARTEFACTS / f"plan-{name}-{width}.png")
    assert_fits(opened, width)
    assert opened.plots, "a plan has something to plot"
    assert all(count > 1 for count in opened.plots.values()), opened.plots
