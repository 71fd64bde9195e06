"""Ctrl-C at the moments that a terminal test can't aim at."""

from __future__ import annotations

import io
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from milepost.cli import chat
from milepost.cli.app import run
from tests.llm.checkpoints import ENGINE_FLAGS


def test_one_between_the_end_of_a_reply_and_the_next_prompt_ends_nothing(
    quiet_k3: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    as_message = chat._as_message

    def interrupted(*arguments: Any) -> dict[str, Any]:
        signal.raise_signal(signal.SIGINT)
        return as_message(*arguments)

    monkeypatch.setattr(chat, "_as_message", interrupted)
    monkeypatch.setattr(sys, "stdin", io.StringIO("the road\nthe road\n"))
    assert run(["chat", str(quiet_k3), "--max-tokens", "5", "--ignore-eos", *ENGINE_FLAGS]) == 0
    assert capsys.readouterr().out.count("\n") == 2
