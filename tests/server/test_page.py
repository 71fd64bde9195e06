"""The page at ``/`` and its numbers: what is sent, and what a browser makes of it."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from milepost.server import ServerConfig
from milepost.server.telemetry import telemetry
from milepost.server.telemetry.arena_pages import pages_by_kind
from tests.chromium import browser
from tests.server import scripted_server
from tests.server.browser import Tab, open_tab
from tests.server.scripted_server import MODEL, NUM_PAGES, ServedEngine, serving, small_layout

__all__ = ["browser"]  # a fixture

HOSTILE = "<img src=x onerror='window.hacked=1'><script>window.hacked=1</script>\"&amp;'"

STICKS_OUT = """[...document.querySelectorAll("body *")].filter(
  (one) => !one.closest(".scroll table, .skip") &&
  one.getBoundingClientRect().right > innerWidth + 1).map((one) => one.tagName + "." + one.className)"""
# How many colors a canvas shows: an empty chart has the grid's and the letters' only.
COLORS = """Object.fromEntries([...document.querySelectorAll(".chart")].map((chart) => {
  const canvas = chart.querySelector("canvas");
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  const seen = new Map();
  for (let at = 0; at < data.length; at += 4) if (data[at + 3] === 255) {
    const color = data.slice(at, at + 3).join();
    seen.set(color, (seen.get(color) || 0) + 1);
  }
  return [chart.id, [...seen.values()].filter((count) => count > 30).length];
}))"""


@contextmanager
def traffic(served: ServedEngine) -> Iterator[None]:
    """A few clients that come back with longer prompts, one of them with mistakes."""
    served.script.tokens = [ord("x")] * 40
    served.executor.seconds = 0.002
    over = threading.Event()

    def ask(number: int) -> None:
        turn = 0
        while not over.is_set():
            turn += 1
            prompt = f"{number} shared by all turns of a client " + "and more " * (turn % 6)
            served.call("/v1/completions", {"model": MODEL, "prompt": prompt, "max_tokens": 5 + turn % 20})
            if number == 0 and turn % 3 == 0:
                served.call("/v1/completions", {"model": MODEL})

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time passes twenty times as fast for those who look."""
    monkeypatch.setattr(telemetry, "SAMPLE_SECONDS", 0.05)


def stats_of(served: ServedEngine, since: object = 0) -> dict[str, Any]:
    reply = served.call(f"/stats.json?since={since}")
    assert reply.status == 200
    return dict(json.loads(reply.body))


def wait_for_moments(served: ServedEngine, count: int) -> list[dict[str, Any]]:
    for _ in range(400):
        moments = stats_of(served)["moments"]
        if len(moments) >= count:
            return list(moments)
        threading.Event().wait(0.02)
    raise AssertionError("no moments are taken")


@pytest.mark.usefixtures("quick")
def test_numbers(served: ServedEngine) -> None:
    with traffic(served):
        moments = wait_for_moments(served, 20)
    assert [moment["number"] for moment in moments] == list(range(len(moments)))
    assert all(sum(moment["pages"].values()) == NUM_PAGES - 1 for moment in moments)
    assert max(moment["output_rate"] for moment in moments) > 0
    assert max(moment["cached_rate"] for moment in moments) > 0
    assert max(moment["running"] for moment in moments) > 0
    waits = [moment["ttft"] for moment in moments if moment["ttft"]]
    assert all(0 < wait["p50"] <= wait["p90"] <= wait["p99"] < 5 for wait in waits)
    assert any("missing_parameter" in moment["refused_rates"] for moment in moments)
    assert any("unseen" in moment["lost_rates"] for moment in moments)
    stats = stats_of(served, moments[-1]["number"])
    assert stats["moments"][0]["number"] == moments[-1]["number"], "older ones are not sent again"
    assert stats["totals"]["output_tokens"] > 0
    assert stats["model"] == MODEL


def test_pages_of_a_server_that_rests(served: ServedEngine) -> None:
    for prompt in ("a" * 100, "b" * 50, "a" * 120):
        served.call("/v1/completions", {"model": MODEL, "prompt": prompt, "max_tokens": 20})
    served.wait_until_idle()
    kinds = pages_by_kind(served.engine.stats())
    cached = served.engine.stats().cache
    assert cached is not None
    assert (kinds["state"], kinds["kv"], kinds["quarantined"]) == (0, 0, 0)
    assert kinds["cached_state"] == cached.state_pages > 0
    assert kinds["cached_kv"] == cached.kv_pages > 0


def test_pages_of_a_server_that_runs(served: ServedEngine) -> None:
    served.script.tokens = [ord("x")] * 900
    served.executor.seconds = 0.01
    with served.client() as client:
        stream = client.completions.create(model=MODEL, prompt="a" * 40, max_tokens=900, stream=True)
        next(iter(stream))
        kinds = pages_by_kind(served.engine.stats())
        assert kinds["state"] == small_layout().pages_per_state
        assert kinds["kv"] >= 3, "blocks of 16 tokens"
        stream.close()


@pytest.mark.parametrize("since", ["-1", "x", "1e3", "9" * 20, ""])
def test_a_moment_that_is_none(shared: ServedEngine, since: str) -> None:
    reply = shared.call(f"/stats.json?since={since}")
    assert (reply.status, reply.error["param"]) == (400, "since")


def test_nothing_that_is_asked_is_in_it(served: ServedEngine) -> None:
    body = {"model": MODEL, "prompt": "a-secret-prompt", "user": "a-user", "cache_salt": "a-salt"}
    served.call("/v1/completions", body)
    text = served.call("/stats.json").body + served.call("/").body + served.call("/metrics").body
    for secret in (b"a-secret-prompt", b"a-user", b"a-salt"):
        assert secret not in text


def test_the_policy_names_what_is_in_the_page(shared: ServedEngine) -> None:
    reply = shared.call("/")
    assert reply.headers["content-type"] == "text/html; charset=utf-8"
    policy = dict(part.split(" ", 1) for part in reply.headers["content-security-policy"].split("; "))
    assert policy["default-src"] == "'none'"
    for tag in ("style", "script"):
        (inside,) = re.findall(rf"<{tag}>(.*?)</{tag}>", reply.body.decode(), re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
        assert policy[f"{tag}-src"] == f"'sha256-{digest}'"
    assert not re.search(rb"https?://|\son\w+=|style=|\{\{", reply.body), (
        "nothing from elsewhere, nothing inline"
    )


def test_it_can_be_left_out() -> None:
    with serving(ServerConfig(page=False)) as served:
        assert served.call("/").status == served.call("/stats.json").status == 404
        assert served.call("/metrics").status == 200


def shot(tab: Tab, name: str) -> None:
    """Save what the page looks like, where somebody wants to see it."""
    folder = os.environ.get("MILEPOST_SCREENSHOTS")
    if folder:
        tab.screenshot(Path(folder) / f"{name}.png")


@pytest.mark.usefixtures("quick")
def test_in_a_browser(served: ServedEngine, browser: str, tmp_path: Path) -> None:
    with traffic(served), open_tab(browser, tmp_path) as tab:
        wait_for_moments(served, 30)
        for width, dark in ((1280, False), (390, True)):
            tab.resize(width, 900, dark=dark)
            tab.open(f"{served.url}/")
            tab.wait_for("Number(document.documentElement.dataset.drawn) > 20")
            assert tab.run("document.documentElement.scrollWidth") == width
            assert tab.run(STICKS_OUT) == []
            colors = tab.run(COLORS)
            assert len(colors) == 8
            assert min(colors.values()) >= 2, colors
            shot(tab, f"page-{width}")
        assert tab.run("document.title").startswith(MODEL)
        assert tab.run("document.querySelector('#state-text').textContent") == "serving"
        # A screen reader is told the figures, and the keyboard reaches them.
        assert "output" in tab.run("document.querySelector('#throughput canvas').getAttribute('aria-label')")
        tab.run("document.querySelector('#throughput canvas').focus()")
        tab.press("ArrowLeft")
        assert re.search(r"\d", tab.run("document.querySelector('#throughput .at').textContent"))
        tab.run("document.querySelector('#as-table').click()")
        assert tab.run("document.querySelectorAll('#table tbody td').length") > 20
        assert tab.run(STICKS_OUT) == []
        shot(tab, "page-numbers")
        assert tab.complaints == []
        assert tab.asked
        assert all(url.startswith((f"{served.url}/", "data:")) for url in tab.asked)


@pytest.mark.usefixtures("quick")
def test_a_hostile_name_stays_a_name(browser: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scripted_server, "MODEL", HOSTILE)
    with serving() as served, open_tab(browser, tmp_path) as tab:
        served.services.metrics.aborted(HOSTILE)
        tab.open(f"{served.url}/")
        tab.wait_for("document.documentElement.dataset.drawn")
        served.services.metrics.aborted(HOSTILE)
        tab.wait_for("document.querySelector('#refused .legend').textContent.includes('onerror')")
        assert tab.run("document.querySelector('#model').textContent") == HOSTILE
        assert tab.run("document.querySelectorAll('img').length") == 0
        assert tab.run("typeof window.hacked") == "undefined"
        assert tab.complaints == []


KEY = "a-key-of-operators-0123456789"


@pytest.fixture
def keys(tmp_path: Path) -> str:
    file = tmp_path / "keys.toml"
    file.write_text(f'[tenants.ops]\nkeys = ["{KEY}"]\noperator = true\n')
    file.chmod(0o600)
    return str(file)


@pytest.mark.usefixtures("quick")
def test_an_operator_signs_in_with_the_key(browser: str, tmp_path: Path, keys: str) -> None:
    with serving(ServerConfig(api_keys=keys)) as served, open_tab(browser, tmp_path / "profile") as tab:
        assert served.call("/").status == served.call("/stats.json").status == 401
        tab.open(f"{served.url.replace('//', f'//ops:{KEY}@')}/")
        tab.wait_for("document.querySelector('#state-text').textContent === 'serving'")
        assert KEY not in tab.run("document.documentElement.outerHTML")


def test_it_says_when_the_server_is_gone(browser: str, tmp_path: Path) -> None:
    with open_tab(browser, tmp_path) as tab:
        with serving() as served:
            tab.open(f"{served.url}/")
            tab.wait_for("document.querySelector('#state-text').textContent === 'serving'")
        tab.wait_for("document.querySelector('#state').className.includes('bad')")
        assert "does not answer; last heard" in tab.run("document.querySelector('#state-text').textContent")
        shot(tab, "page-gone")
