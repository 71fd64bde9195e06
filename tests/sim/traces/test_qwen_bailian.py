"""The form of Aliyun Bailian's traces."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from milepost.errors import TraceError
from milepost.sim.traces.stats import overlaps
from tests.sim.traces.files import ids_of, jsonl, read


def row(chat: int, ids: list[int], parent: int = -1, **more: Any) -> dict[str, Any]:
    return {
        "chat_id": chat,
        "parent_chat_id": parent,
        "timestamp": chat / 10,
        "input_length": 16 * len(ids),
        "output_length": 3,
        "type": "text",
        "turn": 1,
        "hash_ids": ids,
    } | more


def test_ids_are_chained_and_that_is_said(tmp_path: Path) -> None:
    """The same text in the middle of two prompts (ids 2, 3) is no shared prefix."""
    rows = [row(1, [1, 2, 3]), row(2, [9, 2, 3]), row(3, [1, 2, 4]), row(4, [1, 2, 3, 5])]
    trace = read(jsonl(tmp_path / "t.jsonl", rows))
    assert (trace.form, trace.block_size) == ("qwen-bailian", 16)
    assert ids_of(trace) == [[0, 1, 2], [3, 4, 5], [0, 1, 6], [0, 1, 2, 7]]
    assert overlaps(trace) == [0, 0, 32, 48]
    assert len(trace.notes) == 1
    assert "were hashed by themselves; their ids were chained on reading" in trace.notes[0]
    assert [request.arrival for request in trace.requests] == pytest.approx([0, 0.1, 0.2, 0.3])


def test_chats_make_sessions(tmp_path: Path) -> None:
    rows = [
        row(10, [1]),
        row(11, [1, 2], parent=10, turn=2),
        row(12, [5], parent=4, turn=3),  # began before the trace did
        row(13, [1, 2, 3], parent=11, turn=3),
        row(14, [6], parent=12, turn=4),
    ]
    trace = read(jsonl(tmp_path / "t.jsonl", rows))
    found = [(request.request_id, request.session, request.turn) for request in trace.requests]
    assert found == [("10", "10", 0), ("11", "10", 1), ("12", "4", 2), ("13", "10", 2), ("14", "4", 3)]


def test_a_last_block_without_an_id_is_nobodys(tmp_path: Path) -> None:
    rows = [row(1, [1], input_length=20), row(2, [1], input_length=20)]
    assert ids_of(read(jsonl(tmp_path / "t.jsonl", rows))) == [[0, 1], [0, 2]]


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (row(1, [1]), "chat_id must be a request's own. Given: 1, a second time"),
        (row(2, [1], turn=0), "turn must count from 1. Given: 0"),
        (row(2, [1], input_length=33), "33 tokens are 3 blocks of 16"),
        (row(2, [1], timestamp="soon"), r"Expected `float`, got `str` - at `\$.timestamp`"),
    ],
)
def test_bad_rows(tmp_path: Path, bad: dict[str, Any], message: str) -> None:
    path = jsonl(tmp_path / "t.jsonl", [row(1, [1]), bad])
    with pytest.raises(TraceError, match=f"line 2: {message}"):
        read(path)
    assert len(read(path, skip_bad=True).requests) == 1
