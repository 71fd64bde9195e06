"""How a trace is stretched, cut and given a shared prompt."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from milepost.errors import ConfigError, TraceError
from milepost.sim.traces.block_tokens import BlockTokens
from milepost.sim.traces.options import TraceOptions
from milepost.sim.traces.stats import overlaps
from tests.sim.traces.files import MOONCAKE, SESSIONS, ids_of, jsonl, mooncake_row, plain, read


@pytest.mark.parametrize(
    ("option", "values"),
    [
        ("form", ["moon", 1]),
        ("time_scale", [0, -1, float("nan"), float("inf"), "2", True, 1e9]),
        ("session_rate", [0, -1, float("nan"), None, 10**400]),
        ("first", [0, -1, 1.5, True, "9"]),
        ("seed", [-1, 0.5, None]),
        ("shared_prompt_tokens", [-1, 1 << 40, 1.0]),
        ("skip_bad", [1, "yes"]),
        ("tokenizer", [1, Path("x")]),
    ],
)
def test_values_are_checked_when_built(option: str, values: list[Any]) -> None:
    for value in values:
        with pytest.raises(ConfigError, match=rf"{option} must be .* Given: "):
            TraceOptions(**{option: value})


def test_a_form_has_near_names() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'mooncake'"):
        TraceOptions(form="mooncakes")


def test_times_are_stretched(tmp_path: Path) -> None:
    once, twice = read(MOONCAKE), read(MOONCAKE, time_scale=2)
    assert [r.arrival for r in twice.requests] == [r.arrival * 2 for r in once.requests]
    assert twice.seconds == once.seconds * 2
    sessions = read(SESSIONS), read(SESSIONS, time_scale=0.25)
    assert [r.arrival for r in sessions[1].requests] == [r.arrival * 0.25 for r in sessions[0].requests]


def test_the_first_of_the_file(tmp_path: Path) -> None:
    assert plain(read(MOONCAKE, first=7)) == plain(read(MOONCAKE))[:7]
    assert plain(read(MOONCAKE, first=10_000)) == plain(read(MOONCAKE))
    assert plain(read(SESSIONS, first=9)) == plain(read(SESSIONS))[:9]


def test_the_first_does_not_count_bad_rows(tmp_path: Path) -> None:
    rows = [b"bad", mooncake_row([1], 512), b"bad", mooncake_row([2], 512), b"bad", mooncake_row([3], 512)]
    trace = read(jsonl(tmp_path / "t.jsonl", rows), first=2, skip_bad=True)
    assert (len(trace.requests), trace.skipped) == (2, 2)


def test_times_count_from_the_first_arrival(tmp_path: Path) -> None:
    rows = [mooncake_row([n], 512, timestamp=5000 + 1000 * n) for n in range(3)]
    assert [r.arrival for r in read(jsonl(tmp_path / "t.jsonl", rows)).requests] == [0, 1, 2]


@pytest.mark.parametrize("path", [MOONCAKE, SESSIONS])
def test_a_shared_prompt_of_blocks(path: Path) -> None:
    plain_trace = read(path)
    size = plain_trace.block_size
    trace = read(path, shared_prompt_tokens=3 * size)
    assert len(trace.notes) == len(plain_trace.notes) + 1
    for before, after, old, new in zip(
        plain_trace.requests, trace.requests, ids_of(plain_trace), ids_of(trace), strict=True
    ):
        assert new == [0, 1, 2, *(block_id + 3 for block_id in old)]
        assert isinstance(after.prompt, BlockTokens)
        assert all(later.start != earlier.stop for earlier, later in pairwise(after.prompt.runs))
        assert after.num_prompt == before.num_prompt + 3 * size
        assert after.message_ends == (3 * size, before.num_prompt + 3 * size)
    shared = overlaps(trace)
    assert shared == [0 if not n else old + 3 * size for n, old in enumerate(overlaps(plain_trace))]


def test_a_shared_prompt_of_tokens(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "t.jsonl", [{"prompt_token_ids": [7, 8], "message_ends": [1]}])
    request = read(path, shared_prompt_tokens=300).requests[0]
    assert isinstance(request.prompt, tuple)
    assert request.prompt[298:] == (42, 43, 7, 8)
    assert set(request.prompt[:300]) == set(range(256))
    assert request.message_ends == (300, 301)


def test_a_shared_prompt_must_fill_blocks() -> None:
    with pytest.raises(
        ConfigError, match=r"must be a multiple of the trace's block of 512 tokens\. Given: 600"
    ):
        read(MOONCAKE, shared_prompt_tokens=600)


def test_a_form_can_be_given(tmp_path: Path) -> None:
    assert read(MOONCAKE, form="mooncake").form == "mooncake"
    with pytest.raises(TraceError, match="missing required field `chat_id`"):
        read(MOONCAKE, form="qwen-bailian")
