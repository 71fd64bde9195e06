"""examples/quickstart.py runs, and says what it promises."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_quick_start_runs(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "quickstart.py")],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    out = done.stdout
    assert re.findall(r"^== (.*)$", out, re.MULTILINE) == [
        "texts",
        "a conversation",
        "a stream",
        "the prefix cache",
        "replies that must be of a form",
    ]
    assert "'7412': 0 of " in out
    first, second = re.findall(r": (\d+) of (\d+) tokens were cached", out)
    assert int(second[0]) > int(first[0])
    assert re.search(r"^1 would not: cap$", out, re.MULTILINE)
    structured, _, word = out.rpartition("be of a form\n")[2].strip().rpartition("\n")
    assert word in {"seven", "eight"}
    assert json.loads(structured)["word"] in {"three", "seven"}
