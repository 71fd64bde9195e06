"""A fresh engine's first requests are as fast as the later ones: nothing is compiled for them."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize("threads", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_no_request_waits_for_a_compiler(threads: int) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.e2e.serve_after_warm_up", str(threads)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    *late, last = done.stdout.splitlines()
    assert late == []
    assert int(last.split()[0]) > 3
