"""Opens a page in headless Chromium and says what became of it."""

from __future__ import annotations

import html
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import msgspec

from tests.chromium import browser_command

__all__ = ["Opened", "assert_fits", "open_page"]

# Runs before anything of the page: what the page complains of ends up in an attribute of the document.
_WATCH = """<script>
  const complaints = [];
  for (const level of ["error", "warn"])
    console[level] = (...words) => complaints.push(level + ": " + words.join(" "));
  addEventListener("error", (event) => complaints.push("error: " + event.message));
  addEventListener("unhandledrejection", (event) => complaints.push("rejected: " + event.reason));
  addEventListener("securitypolicyviolation", (event) => complaints.push("blocked: " + event.blockedURI));
</script>"""

# Waits for the page to say that it is done, does what the test asks, and measures.
_MEASURE = """<script>
  (function wait() {
    const over = document.documentElement.dataset.drawn || document.querySelector(".notice");
    if (!over) return setTimeout(wait, 20);
    const said = (() => { %s })();
    setTimeout(() => {
      const plots = {};
      for (const plot of document.querySelectorAll(".plot")) plots[plot.parentElement.id] =
        plot.querySelectorAll("path.point, .point path, path.js-line, path.js-fill, .bars path").length;
      const wide = [...document.querySelectorAll("body *")].filter((element) =>
        !element.closest(".scroll table, .scroll svg") &&
        element.getBoundingClientRect().right > innerWidth + 1);
      parent.postMessage(JSON.stringify({
        complaints, plots, said, width: innerWidth,
        page: document.documentElement.scrollWidth,
        wide: wide.slice(0, 5).map((element) => element.tagName + "." + element.getAttribute("class")),
        text: document.body.innerText.slice(0, 20000),
      }), "*");
    }, 100);
  })();
</script>"""


# A window can't be as narrow as a phone; a frame in it can.
_FRAME = """<!doctype html><body style="margin:0"><iframe src="%s"
  style="border:0;display:block;width:%dpx;height:%dpx"></iframe>
<script>onmessage = (event) => document.body.setAttribute("data-measured", event.data)</script>"""
_HEIGHT = 5200


class Opened(msgspec.Struct, frozen=True):
    """A page as the browser saw it.

    Attributes:
        complaints: errors and warnings of its console, and what its policy blocked.
        plots: marks drawn, by the id of the plot's section.
        said: what the test's own script returned.
        width: of the window.
        page: width of what is in it.
        wide: elements that stick out, by tag and class.
        text: what can be read.
    """

    complaints: list[str]
    plots: dict[str, int]
    said: Any
    width: int
    page: int
    wide: list[str]
    text: str


def assert_fits(opened: Opened, width: int) -> None:
    assert opened.complaints == []
    assert opened.width == width
    assert opened.page <= width, f"the page is {opened.page} pixels wide: {opened.wide}"
    assert opened.wide == []


def open_page(
    browser: str, page: Path, width: int, *, screenshot: Path | None = None, script: str = "return null"
) -> Opened:
    """Open `page` in a window of `width` pixels, run `script` when it is drawn, and look at it."""
    watched, frame = (page.with_name(f"{page.stem}-{name}.html") for name in ("watched", "frame"))
    text = page.read_text(encoding="utf-8").replace("<head>", f"<head>{_WATCH}", 1)
    head, tail = text.rsplit("</body>", 1)
    watched.write_text(f"{head}{_MEASURE % script}</body>{tail}", encoding="utf-8")
    frame.write_text(_FRAME % (watched.name, width, _HEIGHT), encoding="utf-8")
    what = ["--dump-dom"]
    if screenshot is not None:
        screenshot.parent.mkdir(parents=True, exist_ok=True)
        what.append(f"--screenshot={screenshot}")
    dom = _run(browser, frame, width, *what)
    found = re.search(r'data-measured="([^"]*)"', dom)
    assert found, f"the page was never drawn: {dom[-500:]}"
    for path in (watched, frame):
        path.unlink()
    return msgspec.convert(json.loads(html.unescape(found[1])), Opened)


def _run(browser: str, page: Path, width: int, *what: str) -> str:
    command = browser_command(browser, page.parent / "profile")
    command += [f"--window-size={width},{_HEIGHT}", "--virtual-time-budget=20000"]
    ran = subprocess.run(
        [*command, *what, page.as_uri()], capture_output=True, text=True, timeout=120, check=False
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    return ran.stdout
