"""What a process loads before it is ready: nothing that a server has no use for, since it is waited for."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.repository.paths import ROOT

# Torch's compiler is a second of start-up and hundreds of modules; one sum on the ``meta`` device loads it.
SLOW = ("torch._dynamo", "torch._inductor", "sympy", "polars", "plotly", "pandas")


@pytest.mark.parametrize("weights", ["auto", "int8"])
def test_nothing_slow_is_loaded(weights: str) -> None:
    code = (
        "import sys\n"
        "from milepost.cli.shipped_model import shipped_model\n"
        "from milepost.llm import load_engine\n"
        "from milepost.config import EngineConfig\n"
        "import milepost.server\n"
        f"load_engine(EngineConfig(model=str(shipped_model()), memory='8MiB', weights={weights!r}))\n"
        f"print([name for name in {SLOW!r} if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"
