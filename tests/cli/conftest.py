"""The checkpoints of the LLM tests, and ways to run the command."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import pytest

from tests.llm.conftest import k3, quiet_k3

__all__ = ["k3", "quiet_k3"]

ROOT = Path(__file__).parents[2]
Start = Callable[..., subprocess.Popen[str]]


def _interruptible() -> None:
    # A test run in the background may have Ctrl-C ignored, which children inherit.
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.fixture
def start(request: pytest.FixtureRequest) -> Start:
    """Start ``milepost`` as a process of its own; it does not outlive the test."""

    def run(*arguments: str, stdin: int | IO[Any] = subprocess.DEVNULL, **more: Any) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "milepost", *arguments],
            stdin=stdin,
            stdout=more.pop("stdout", subprocess.PIPE),
            stderr=more.pop("stderr", subprocess.PIPE),
            text=True,
            encoding="utf-8",
            env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
            preexec_fn=_interruptible,  # noqa: PLW1509  # resets one signal, takes no lock
            **more,
        )

        def end() -> None:
            process.kill()
            process.communicate()

        request.addfinalizer(end)
        return process

    return run
