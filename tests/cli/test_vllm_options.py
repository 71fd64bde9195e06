"""What `milepost serve` says to who brings the options of vLLM along."""

from __future__ import annotations

import re

import pytest

from milepost.cli.app import run
from milepost.cli.serve import serve
from milepost.cli.vllm_options import VLLM_OPTIONS

OWN = {name for parameter in serve.params for name in (*parameter.opts, *parameter.secondary_opts)}


@pytest.mark.parametrize("option", sorted(VLLM_OPTIONS))
def test_it_is_told_what_to_say_instead(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["serve", f"{option}=8"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"milepost: error: '{option}' is vLLM's. {VLLM_OPTIONS[option]}")
    assert "Did you mean" not in line


@pytest.mark.parametrize("option", sorted(VLLM_OPTIONS))
def test_what_is_advised_exists(option: str) -> None:
    assert option not in OWN
    assert set(re.findall(r"--[a-z-]+", VLLM_OPTIONS[option])) <= OWN


def test_elsewhere_and_for_others_nothing_changes(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["bench", "--trust-remote-code"], ["serve", "--max-num-seq", "8"]):
        assert run(words) == 2
        assert "No such option" in capsys.readouterr().err
