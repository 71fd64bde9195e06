"""Headless Chromium, for tests of pages: where it is and how it is started."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

__all__ = ["browser", "browser_command"]

_NAMES = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="module")
def browser() -> str:
    """The browser's path: $MILEPOST_CHROMIUM's, or the first that is installed."""
    found = os.environ.get("MILEPOST_CHROMIUM") or next(filter(None, map(shutil.which, _NAMES)), None)
    if found is None:
        why = "Chromium is not installed; $MILEPOST_CHROMIUM can name one"
        if os.environ.get("MILEPOST_REQUIRE_CHROMIUM") == "1":
            pytest.fail(why)
        pytest.skip(why)
    return found


def browser_command(browser: str, profile: Path) -> list[str]:
    """What starts it without a window, with a folder of its own to write in."""
    command = [browser, "--headless", "--disable-gpu", "--hide-scrollbars", "--no-first-run"]
    command.append(f"--user-data-dir={profile}")
    if os.geteuid() == 0:
        command.append("--no-sandbox")  # it refuses root otherwise
    return command
