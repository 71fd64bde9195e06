"""A peak is the process's own, however large the one is that started it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

MEGABYTE = 1 << 20


def test_a_peak_leaves_out_the_parents() -> None:
    ballast = b"x" * (400 * MEGABYTE)
    program = "from benchmarks.peak_memory import peak_bytes; print(peak_bytes())"
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=root, capture_output=True, text=True, check=True
    )
    assert 1 * MEGABYTE < int(done.stdout) < len(ballast) // 2
