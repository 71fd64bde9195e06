"""A disk cache that fails in every way a disk can: requests go on, say the same, and one warning tells."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from milepost.llm import LLM
from milepost.types import SamplingParams
from tests.llm.checkpoints import ENGINE
from tests.transfer.small_disk import failing_disk

GREEDY = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
PROMPTS = [f"mile {number} of the road is as long as all the other miles of it, " * 6 for number in range(3)]
FULL = OSError(errno.ENOSPC, "No space left on device")
BROKEN = OSError(errno.EIO, "Input/output error")
NEVER = 1 << 30
FAST = ENGINE | {"kernels": "auto"}


def options(tmp_path: Path) -> dict[str, Any]:
    return FAST | {"host_cache": "16MiB", "disk_cache": f"{tmp_path / 'kept'},64MiB"}


@pytest.fixture(scope="module")
def texts(quiet_k3: Path) -> list[str]:
    """What the model says to each prompt without a cache."""
    with LLM(quiet_k3, prefix_cache=False, **FAST) as llm:
        return say(llm)


def say(llm: LLM) -> list[str]:
    return [llm.generate(prompt, GREEDY)[0].text for prompt in PROMPTS]


def disk_of(llm: LLM) -> Any:
    cache = llm.stats().cache
    assert cache is not None
    return next(tier for tier in cache.tiers if tier.name == "disk")


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize("error", [FULL, BROKEN], ids=["full", "broken"])
def test_a_disk_that_takes_no_more_is_left_out(
    quiet_k3: Path,
    tmp_path: Path,
    texts: list[str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: OSError,
) -> None:
    with LLM(quiet_k3, **options(tmp_path)) as llm:
        with failing_disk(monkeypatch, 3, error, 0.5, NEVER):
            assert say(llm) == texts
            assert say(llm) == texts
            wait_for(llm, lambda: disk_of(llm).failures > 0)
        (warning,) = warnings_of(caplog)
        assert f"could not copy from host to disk: OSError: [Errno {error.errno}]" in warning
        assert 0 < disk_of(llm).failures <= 3
    # What was torn is not believed afterwards, and the disk is used again.
    with LLM(quiet_k3, **options(tmp_path)) as llm:
        assert say(llm) == texts
        wait_for(llm, lambda: disk_of(llm).stores > 0)
    with LLM(quiet_k3, **options(tmp_path)) as llm:
        assert llm.explain(PROMPTS[0]).hit_tokens > 0
        assert say(llm) == texts


def wait_for(llm: LLM, condition: Callable[[], bool]) -> None:
    """Steps bring transfers to their end, and tell of it."""
    for number in range(200):
        if condition():
            return
        llm.generate(f"{number}", GREEDY)
    raise AssertionError("it did not come")


def test_a_disk_that_can_not_be_read_costs_time_and_nothing_else(
    quiet_k3: Path,
    tmp_path: Path,
    texts: list[str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with LLM(quiet_k3, **options(tmp_path)) as llm:
        assert say(llm) == texts
    with LLM(quiet_k3, **options(tmp_path)) as llm:
        assert llm.explain(PROMPTS[0]).hit_tokens > 0

        def broken(*_: Any) -> int:
            raise BROKEN

        monkeypatch.setattr(os, "preadv", broken)
        assert say(llm) == texts
        assert disk_of(llm).failures >= len(PROMPTS)
    (warning,) = warnings_of(caplog)
    assert "could not copy from disk to arena: OSError: [Errno 5]" in warning


@pytest.mark.parametrize("name", ["milepost.pages", "milepost.journal"])
def test_files_torn_while_nobody_looked(
    quiet_k3: Path, tmp_path: Path, texts: list[str], caplog: pytest.LogCaptureFixture, name: str
) -> None:
    with LLM(quiet_k3, **options(tmp_path)) as llm:
        assert say(llm) == texts
    file = tmp_path / "kept" / name
    content = bytearray(file.read_bytes())
    for at in range(1000, len(content), max(1, len(content) // 50)):
        content[at] ^= 0xFF
    file.write_bytes(content)
    with LLM(quiet_k3, **options(tmp_path)) as llm:
        assert say(llm) == texts
    assert len(warnings_of(caplog)) <= 1
