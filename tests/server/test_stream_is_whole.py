"""A stream, put together, is the whole reply: over random replies and random fields."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from tests.server.scripted_server import END_OF_REPLY, MODEL, SPECIALS, ServedEngine, reply_tokens

CASES = 60
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
CALL = (
    '<|open|>tools<|sep|><|open|>call tool="add" index="1"<|sep|>'
    '<|open|>argument key="a" type="string"<|sep|>2"é<|close|>argument<|sep|><|close|>call<|sep|>'
)
PIECES = (
    *SPECIALS[1:],
    *("think", "response", "tools", "call", "json", ' key="b"', ' type="number"', "é", "你", "🎉", "\n", '"'),
    CALL,
    "<|close|>think<|sep|><|open|>response<|sep|>",
    END_OF_REPLY,
)
STOPS = (["e"], ["call", "ca"], ["你"], ["\ufffd"], ["é", '"'], ["think"], ["\n", "2"])


def reply(draw: random.Random) -> list[int]:
    tokens: list[int] = []
    for _ in range(draw.randint(1, 20)):
        tokens += reply_tokens(draw.choice(PIECES))
        if draw.random() < 0.1:
            tokens.append(draw.randint(128, 255))  # a torn character
    return tokens


def fields(draw: random.Random) -> dict[str, Any]:
    asked: dict[str, Any] = {"model": MODEL, "max_tokens": draw.choice((1, 3, 20, 150))}
    for name, share, values in (
        ("stop", 0.5, STOPS),
        ("n", 0.3, (2, 3)),
        ("ignore_eos", 0.2, (True,)),
        ("stop_token_ids", 0.2, ([ord("2")], [ord("a"), ord("l")])),
        ("return_token_ids", 0.4, (True,)),
        ("min_tokens", 0.2, (1,)),
    ):
        if draw.random() < share:
            asked[name] = draw.choice(values)
    return asked


def put_together(events: list[Any]) -> dict[int, Any]:
    """The choices of a chat's or a completion's stream; texts and lists are joined, calls by their index."""
    choices: dict[int, Any] = {}
    for event in events:
        for choice in event["choices"]:
            whole = choices.setdefault(choice["index"], {"calls": {}})
            assert "finish_reason" not in whole, "nothing comes behind the end"
            parts = {**choice.get("delta", {}), **choice}
            for call in parts.pop("tool_calls", None) or []:
                made = whole["calls"].setdefault(call["index"], {"name": "", "arguments": ""})
                for name in made:
                    made[name] += call["function"].get(name) or ""
            parts |= parts.pop("logprobs", None) or {}
            for name in ("text", "content", "reasoning_content", "token_ids", "tokens", "token_logprobs"):
                if parts.get(name):
                    before = whole.get(name)
                    whole[name] = parts[name] if before is None else before + parts[name]
            if parts["finish_reason"]:
                whole["finish_reason"] = parts["finish_reason"]
    return choices


def as_it_is(body: Any) -> dict[int, Any]:
    """The choices of a reply in one piece, in the same form: as a stream of one event."""
    for choice in body["choices"]:
        message = choice.pop("message", {})
        for index, call in enumerate(message.get("tool_calls", [])):
            call["index"] = index
        choice["delta"] = message
    return put_together([body])


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_streams_of_random_replies(served: ServedEngine, path: str) -> None:
    draw = random.Random(path)
    reasons = set()
    for _ in range(CASES):
        served.script.tokens = reply(draw)
        asked = fields(draw)
        if "chat" in path:
            thinking = {"thinking": draw.random() < 0.5}
            asked |= {"messages": [{"role": "user", "content": "a"}], "chat_template_kwargs": thinking}
            asked |= {"tools": [TOOL]} if draw.random() < 0.5 else {}
        else:
            asked |= {"prompt": draw.choice(["a", ["é", "b"], [1, 200]])}
            asked |= draw.choice([{}, {"logprobs": 1}, {"echo": True}])
        whole = served.call(path, asked).json
        *events, last = served.events(
            path, asked | {"stream": True, "stream_options": {"include_usage": True}}
        )
        streamed = put_together(events)
        assert streamed == as_it_is(whole), json.dumps(asked)
        assert last["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
        reasons |= {choice["finish_reason"] for choice in streamed.values()}
    assert reasons == {"stop", "length"} | ({"tool_calls"} if "chat" in path else set())
