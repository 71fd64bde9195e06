"""What `milepost serve` does with the process's memory once the model is loaded."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest

from milepost.cli.app import run
from milepost.testing.toy_checkpoint import write_toy_checkpoint


def test_what_is_loaded_is_out_of_the_garbage_collectors_sight(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_toy_checkpoint(tmp_path / "toy", "kimi_k3", 3)
    frozen: list[int] = []

    def serve(*_: Any, **__: Any) -> None:
        frozen.append(gc.get_freeze_count())

    monkeypatch.setattr("milepost.server.serve", serve)
    before = gc.get_freeze_count()
    try:
        assert run(["serve", str(folder), "--port", "0", "--memory", "64MiB"]) == 0
    finally:
        gc.unfreeze()
    assert frozen[0] > before + 100_000  # modules, above all
