"""Logs of chats, written by a stand-in that spells each message as its letters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from milepost.errors import ConfigError, RequestError, TraceError
from milepost.sim.traces.options import TraceOptions
from milepost.sim.traces.reading import read_trace
from milepost.sim.traces.trace import Trace
from tests.sim.traces.files import jsonl, plain, read

ROLES = {"system": 1, "user": 2, "assistant": 3}
END, TOOLS = 4, 5


def encode(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """[role] letters [end] each, then the role of the reply."""
    ids = [TOOLS] if tools else []
    ends = []
    for message in messages:
        if message.get("role") not in ROLES:
            raise RequestError(f"messages: no such role. Given: {message.get('role')!r}.", param="messages")
        ids += [ROLES[message["role"]], *map(ord, message["content"]), END]
        ends.append(len(ids))
    return (*ids, ROLES["assistant"]), tuple(ends)


def read_chats(path: Path, **options: Any) -> Trace:
    return read_trace(path, TraceOptions(**options), encode_chat=encode)


HI = [{"role": "user", "content": "Hi"}]
PROMPT = (2, 72, 105, 4, 3)
ANSWER = (79, 75, 4)  # "OK" and the end of the message


def test_messages_are_written_and_their_ends_known(tmp_path: Path) -> None:
    second = [*HI, {"role": "assistant", "content": "OK"}, {"role": "user", "content": "!"}]
    rows = [
        {"timestamp": 100, "messages": HI, "response": "OK", "session_id": "s"},
        {"timestamp": 101, "messages": second, "response": "", "session_id": "s", "tools": []},
    ]
    trace = read_chats(jsonl(tmp_path / "t.jsonl", rows))
    assert (trace.form, trace.block_size, trace.notes) == ("chat", 1, ())
    assert plain(trace) == [
        ("0", 0.0, 5, PROMPT, 3, ANSWER, (4,), "s", 0),
        ("1", 1.0, 12, (*PROMPT, *ANSWER, 2, 33, 4, 3), 1, (4,), (4, 8, 11), "s", 1),
    ]


@pytest.mark.parametrize(
    "row",
    [
        {"messages": HI, "response": {"role": "assistant", "content": "OK"}},
        {"messages": HI, "output": "OK"},
        {"messages": HI, "response": {"choices": [{"message": {"role": "assistant", "content": "OK"}}]}},
        {"messages": HI, "choices": [{"message": {"content": "OK"}}]},
        {"request": {"messages": HI}, "response": {"body": {"choices": [{"message": {"content": "OK"}}]}}},
        {"custom_id": "0", "body": {"messages": HI}, "response": "OK"},
    ],
)
def test_answers_in_all_their_forms(tmp_path: Path, row: dict[str, Any]) -> None:
    request = read_chats(jsonl(tmp_path / "t.jsonl", [row])).requests[0]
    assert (request.prompt, request.output_ids, request.num_output) == (PROMPT, ANSWER, 3)


def test_lengths_stand_in_for_answers(tmp_path: Path) -> None:
    rows = [
        {"messages": HI, "usage": {"completion_tokens": 9}},
        {"messages": HI, "output_tokens": 8},
        {"messages": HI, "tools": [{"type": "function"}]},
    ]
    trace = read_chats(jsonl(tmp_path / "t.jsonl", rows))
    assert [request.num_output for request in trace.requests] == [9, 8, 1]
    assert all(request.output_ids == () for request in trace.requests)
    assert trace.requests[2].prompt == (TOOLS, *PROMPT)
    assert "neither the answer nor its length is known" in trace.notes[-1]


def test_a_list_over_many_lines(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text(
        '[\n {"messages":\n [{"role": "user", "content": "Hi"}]},\n {"messages": 5}\n]', encoding="utf-8"
    )
    assert len(read_chats(path, skip_bad=True).requests) == 1
    with pytest.raises(TraceError, match=r"item 2: messages must be a list of messages\. Given: 5"):
        read_chats(path)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"messages": [{"role": "robot"}]}, "the messages can't be written: messages: no such role"),
        ({"messages": ["Hi"]}, "messages must be a list of messages"),
        ({"messages": HI, "response": 5}, "the answer must be text, a message, or an object with choices"),
        ({"messages": HI, "response": {"choices": []}, "id": "x"}, "x, a second time|'x', a second time"),
        (
            {"messages": HI, "usage": {"completion_tokens": "9"}},
            "usage.completion_tokens must be a whole number",
        ),
        ({"messages": HI, "usage": {"completion_tokens": -1}}, "must be a number of tokens from 0"),
        ({"messages": HI, "session": [1]}, "a session must be a name or a number"),
        ({"messages": HI, "timestamp": {}}, "timestamp must be seconds|all requests must have a time"),
    ],
)
def test_bad_rows(tmp_path: Path, bad: dict[str, Any], message: str) -> None:
    path = jsonl(tmp_path / "t.jsonl", [{"messages": HI, "id": "x"}, bad])
    with pytest.raises(TraceError, match=f"line 2: .*({message})"):
        read_chats(path)
    assert len(read_chats(path, skip_bad=True).requests) == 1


def test_a_tokenizer_is_asked_for(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Give --tokenizer"):
        read(jsonl(tmp_path / "t.jsonl", [{"messages": HI}]))
