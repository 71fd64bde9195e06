"""Mooncake's form."""

from __future__ import annotations

from pathlib import Path

import pytest

from milepost.errors import TraceError
from tests.sim.traces.files import MOONCAKE, blocks_of, ids_of, jsonl, mooncake_row, raw_rows, read


def test_the_sample_is_read_as_it_was_recorded() -> None:
    rows = raw_rows(MOONCAKE)
    trace = read(MOONCAKE)
    assert (trace.name, trace.form, trace.block_size) == ("mooncake-300", "mooncake", 512)
    assert len(trace.requests) == 300
    assert trace.has_content
    assert (trace.skipped, trace.notes) == (0, ())
    assert [request.num_prompt for request in trace.requests] == [row["input_length"] for row in rows]
    assert [request.num_output for request in trace.requests] == [row["output_length"] for row in rows]
    assert [request.arrival for request in trace.requests] == [row["timestamp"] / 1000 for row in rows]
    assert [request.message_ends for request in trace.requests] == [(row["input_length"],) for row in rows]
    # Ids are numbered anew: as equal and as different as they were.
    pairs = {
        pair
        for row, ids in zip(rows, ids_of(trace), strict=True)
        for pair in zip(row["hash_ids"], ids, strict=True)
    }
    assert len(pairs) == len({old for old, _ in pairs}) == len({new for _, new in pairs})


def test_ids_may_be_any_whole_numbers(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "t.jsonl", [mooncake_row([-7, 1 << 63], 1024), mooncake_row([-7, 5], 1000)])
    assert ids_of(read(path)) == [[0, 1], [0, 2]]


def test_a_partly_filled_last_block_may_lack_an_id(tmp_path: Path) -> None:
    path = jsonl(
        tmp_path / "t.jsonl", [mooncake_row([8], 600), mooncake_row([8], 600), mooncake_row([8, 9], 1024)]
    )
    assert ids_of(read(path)) == [[0, 1], [0, 2], [0, 3]]


def test_other_blocks_sessions_and_turns(tmp_path: Path) -> None:
    rows = [
        mooncake_row([1], 16, block_size=16, session_id="a"),
        mooncake_row([1, 2], 32, block_size=16, session_id=7, turn=4),
        mooncake_row([1], 16, block_size=16, session_id="a"),
    ]
    trace = read(jsonl(tmp_path / "t.jsonl", rows))
    assert trace.block_size == 16
    assert [(request.session, request.turn) for request in trace.requests] == [("a", 0), ("7", 4), ("a", 1)]
    with pytest.raises(TraceError, match=r"line 2: block_size must be the same in all rows, 16\. Given: 512"):
        read(jsonl(tmp_path / "u.jsonl", [rows[0], mooncake_row([1], 512)]))


def test_ids_that_are_not_chained_are_chained(tmp_path: Path) -> None:
    rows = [mooncake_row([1, 2, 3], 1536), mooncake_row([4, 2, 3], 1536), mooncake_row([1, 2, 4], 1536)]
    trace = read(jsonl(tmp_path / "t.jsonl", rows))
    assert ids_of(trace) == [[0, 1, 2], [3, 4, 5], [0, 1, 6]]
    assert "were chained on reading" in trace.notes[0]
    # The same in the middle of one prompt.
    assert ids_of(read(jsonl(tmp_path / "u.jsonl", [mooncake_row([1, 1, 1], 1536)]))) == [[0, 1, 2]]


def test_a_prompt_begins_where_another_ends(tmp_path: Path) -> None:
    """An id that stands first in one prompt and inside of another is not chained either."""
    rows = [mooncake_row([1, 2, 3], 1536), mooncake_row([2, 3], 1024)]
    trace = read(jsonl(tmp_path / "t.jsonl", rows))
    assert ids_of(trace) == [[0, 1, 2], [3, 4]]
    assert len(trace.notes) == 1


def test_an_output_of_nothing_counts_as_one_token(tmp_path: Path) -> None:
    trace = read(jsonl(tmp_path / "t.jsonl", [mooncake_row([1], 512, output=0)]))
    assert trace.requests[0].num_output == 1
    assert trace.notes == ("Requests that drew no token: 1. Each counts as drawing one.",)


@pytest.mark.parametrize("ids", [[1], [1, 2, 3, 4], []])
def test_ids_and_lengths_must_fit(tmp_path: Path, ids: list[int]) -> None:
    message = rf"line 1: 1,025 tokens are 3 blocks of 512, .* Given: {len(ids)} ids"
    with pytest.raises(TraceError, match=message):
        read(jsonl(tmp_path / "t.jsonl", [mooncake_row(ids, 1025)]))


def test_a_bad_row_leaves_nothing_behind(tmp_path: Path) -> None:
    rows = [mooncake_row([5, 6, 7], 512), mooncake_row([9, 5], 1024)]
    trace = read(jsonl(tmp_path / "t.jsonl", rows), skip_bad=True)
    assert ids_of(trace) == [[0, 1]]
    assert trace.skipped == 1
    [note] = trace.notes
    place = f"{tmp_path / 't.jsonl'}, line 1"
    assert note.startswith(
        f"Bad rows that were left out: 1. The first: {place}: 512 tokens are 1 blocks of 512"
    )
    assert note.endswith("Given: 3 ids.")
    assert blocks_of(trace, 0).runs == (range(2),)
