"""``milepost plan`` run in this process: what it answers, or the one line that says why not."""

from __future__ import annotations

import json
from typing import Any

import pytest

from milepost.cli.app import run

__all__ = ["Capture", "error_line", "planned"]

Capture = pytest.CaptureFixture[str]


def planned(capture: Capture, command: str, *arguments: str) -> dict[str, Any]:
    """What --json says on stdout, on which there is nothing else."""
    assert run(["plan", command, *arguments, "--json"]) == 0
    found = json.loads(capture.readouterr().out)
    assert isinstance(found, dict)
    return found


def error_line(capture: Capture, command: str, *arguments: str) -> str:
    """The one line on stderr, without what every error begins with."""
    assert run(["plan", command, *arguments]) == 2
    out, err = capture.readouterr()
    assert out == ""
    assert err.startswith("milepost: error: ")
    assert err.count("\n") == 1
    return err.removeprefix("milepost: error: ").rstrip()
