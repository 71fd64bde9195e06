"""Prompts as token ids."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from milepost.errors import TraceError
from tests.sim.traces.files import jsonl, plain, read


def test_our_own_form(tmp_path: Path) -> None:
    rows = [
        {"arrival": 2.5, "prompt_token_ids": [5, 6, 7], "output_token_ids": [8, 9], "message_ends": [2, 3]},
        {"arrival": 3.5, "prompt_token_ids": [5], "output_length": 4, "session": "s", "request_id": "named"},
        {"arrival": 4, "prompt_token_ids": [0], "session": "s"},
    ]
    trace = read(jsonl(tmp_path / "t.jsonl", rows))
    assert (trace.form, trace.block_size) == ("token-ids", 1)
    assert plain(trace) == [
        ("0", 0.0, 3, (5, 6, 7), 2, (8, 9), (2, 3), "", 0),
        ("named", 1.0, 1, (5,), 4, (), (), "s", 0),
        ("2", 1.5, 1, (0,), 1, (), (), "s", 1),
    ]
    assert trace.notes == ("Requests that drew no token: 1. Each counts as drawing one.",)


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"arrival_time": 1.7e9, "rid": "r", "input_ids": [1, 2], "output_ids": [3]}, ("r", 2, (3,))),
        (
            {"timestamp": "2025-01-01T00:00:00Z", "id": 5, "prompt_ids": [1, 2], "output_tokens": 6},
            ("5", 2, ()),
        ),
    ],
)
def test_names_that_logs_use(tmp_path: Path, row: dict[str, Any], expected: tuple[Any, ...]) -> None:
    request = read(jsonl(tmp_path / "t.jsonl", [row])).requests[0]
    assert (request.request_id, request.num_prompt, request.output_ids) == expected
    assert request.arrival == 0


@pytest.mark.parametrize(
    "times",
    [
        [1_700_000_000, 1_700_000_002.5],
        [1_700_000_000_000, 1_700_000_002_500],
        [1_700_000_000_000_000, 1_700_000_002_500_000],
        [1_700_000_000_000_000_000, 1_700_000_002_500_000_000],
        ["2023-11-14 22:13:20", "2023-11-14T22:13:22.500Z"],
        ["2023-11-14 22:13:20.0000000", "2023-11-15 00:13:22.5+02:00"],
    ],
)
def test_clocks(tmp_path: Path, times: list[Any]) -> None:
    rows = [{"timestamp": time, "prompt_token_ids": [1]} for time in times]
    trace = read(jsonl(tmp_path / "t.jsonl", rows))
    assert trace.requests[1].arrival == pytest.approx(2.5, abs=1e-6)


def test_without_times_requests_come_one_a_second(tmp_path: Path) -> None:
    trace = read(jsonl(tmp_path / "t.jsonl", [{"prompt_token_ids": [1]}] * 3))
    assert [request.arrival for request in trace.requests] == [0, 1, 2]
    assert trace.notes[0].startswith("The trace has no times")


def test_some_without_times_are_bad(tmp_path: Path) -> None:
    rows = [{"prompt_token_ids": [1], "arrival": 1}, {"prompt_token_ids": [1]}]
    for mixed in (rows, rows[::-1]):
        with pytest.raises(TraceError, match="line 2: all requests must have a time"):
            read(jsonl(tmp_path / "t.jsonl", mixed))
    trace = read(jsonl(tmp_path / "t.jsonl", rows), skip_bad=True)
    assert (len(trace.requests), trace.skipped) == (1, 1)


GOOD = {"arrival": 1, "prompt_token_ids": [1, 2, 3], "request_id": "x"}


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (GOOD, "a request's id must be its own. Given: 'x', a second time"),
        (GOOD | {"request_id": "y", "prompt_token_ids": []}, "must be a number of tokens from 1"),
        ({"timestamp": 1, "hash_ids": [1]}, "lacks prompt_token_ids .*is it of another form"),
        (
            GOOD | {"request_id": "y", "prompt_token_ids": [1, -2]},
            "prompt_token_ids must be token ids, .* -2",
        ),
        (GOOD | {"request_id": "y", "prompt_token_ids": [1 << 31]}, "Given: 2147483648"),
        (GOOD | {"request_id": "y", "prompt_token_ids": [1.5]}, r"Expected `int`, got `float` - at `\$"),
        (GOOD | {"request_id": "y", "prompt_token_ids": [True]}, "Expected `int`, got `bool`"),
        (GOOD | {"request_id": "y", "prompt_token_ids": ["1"]}, "Expected `int`, got `str`"),
        (GOOD | {"request_id": "y", "output_token_ids": [-1]}, "output_token_ids must be token ids"),
        (
            GOOD | {"request_id": "y", "output_token_ids": [1], "output_length": 2},
            "output_length must be the number",
        ),
        (GOOD | {"request_id": "y", "output_length": -1}, "output_length must be a number of tokens from 0"),
        (GOOD | {"request_id": "y", "message_ends": [2, 2]}, "message_ends must ascend"),
        (GOOD | {"request_id": "y", "message_ends": [0]}, "message_ends must ascend"),
        (
            GOOD | {"request_id": "y", "message_ends": [4]},
            "message_ends must ascend from 1 to the prompt's 3",
        ),
        (GOOD | {"request_id": "y", "arrival": -1}, "arrival must be a time from 0"),
        (GOOD | {"request_id": "y", "arrival": "later"}, "arrival must be seconds, or a date"),
        (GOOD | {"request_id": "y", "arrival": "nan"}, "arrival must be a time from 0"),
        (GOOD | {"request_id": "y", "arrival": 10**400}, "out of range|must be"),
    ],
)
def test_bad_rows(tmp_path: Path, bad: dict[str, Any], message: str) -> None:
    path = jsonl(tmp_path / "t.jsonl", [GOOD, bad])
    with pytest.raises(TraceError, match=f"line 2: .*({message})"):
        read(path)
    trace = read(path, skip_bad=True)
    assert (len(trace.requests), trace.skipped) == (1, 1)
