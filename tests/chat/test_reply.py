"""Replies: what is written for a past assistant turn is what a parser reads back from a live one."""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from milepost.chat.encoding import ChatOptions
from milepost.chat.reply import Reply, collect_reply
from milepost.chat.tokenizer import Tokenizer
from milepost.chat.xtml import XtmlEncoding
from milepost.types import FinishReason, RequestOutput, Usage
from tests.chat.conftest import K3_SPECIALS

USER = {"role": "user", "content": "x"}
USAGE = Usage(prompt_tokens=1, output_tokens=1)
TEXT = st.lists(st.one_of(st.text(), st.sampled_from([*K3_SPECIALS.values(), "response"])), max_size=6).map(
    "".join
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)


def output(
    ids: Sequence[int], text: str, reason: FinishReason | None = None, stop: str | None = None
) -> RequestOutput:
    return RequestOutput(
        request_id="r",
        text=text,
        token_ids=tuple(ids),
        finish_reason=reason,
        stop_reason=stop,
        usage=USAGE,
    )


def outputs(
    tokenizer: Tokenizer,
    ids: Sequence[int],
    sizes: Sequence[int],
    finish_reason: FinishReason = FinishReason.STOP,
) -> Iterator[RequestOutput]:
    """The engine's outputs for `ids` in steps of `sizes` tokens; text lags by unfinished characters."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    start, step = 0, 0
    while start < len(ids):
        chunk = tuple(ids[start : start + sizes[step % len(sizes)]])
        start, step = start + len(chunk), step + 1
        final = start >= len(ids)
        text = decoder.decode(b"".join(map(tokenizer.token_bytes, chunk)), final=final)
        yield output(chunk, text, finish_reason if final else None)


def written(encoding: XtmlEncoding, message: dict[str, Any], thinking: bool) -> tuple[int, ...]:
    """The ids of an assistant message after the generation prefix."""
    prefix = encoding.encode([USER], ChatOptions(thinking=thinking)).token_ids
    prompt = encoding.encode([USER, message], ChatOptions(thinking=thinking))
    assert prompt.token_ids[: len(prefix)] == prefix
    return prompt.token_ids[len(prefix) : prompt.message_ends[-1]]


def parse(
    tokenizer: Tokenizer,
    ids: Sequence[int],
    *,
    thinking: bool = False,
    sizes: Sequence[int] = (1,),
    finish_reason: FinishReason = FinishReason.STOP,
) -> Reply:
    encoding = XtmlEncoding(tokenizer)
    parser = encoding.reply_parser(encoding.encode([USER], ChatOptions(thinking=thinking)))
    return collect_reply([parser.feed(news) for news in outputs(tokenizer, ids, sizes, finish_reason)])


@settings(deadline=None, max_examples=200)
@given(
    content=TEXT,
    reasoning=TEXT,
    calls=st.lists(st.tuples(TEXT.filter(bool), st.dictionaries(TEXT, JSON, max_size=3)), max_size=3),
    thinking=st.booleans(),
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=4),
)
def test_a_reply_reads_back_as_it_was_written(
    k3_tokenizer: Tokenizer,
    content: str,
    reasoning: str,
    calls: list[tuple[str, dict[str, Any]]],
    thinking: bool,
    sizes: list[int],
) -> None:
    tool_calls = [
        {"id": "c", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
        for name, arguments in calls
    ]
    message = {
        "role": "assistant",
        "content": content,
        "reasoning_content": reasoning,
        "tool_calls": tool_calls,
    }
    ids = written(XtmlEncoding(k3_tokenizer), message, thinking)
    reply = parse(k3_tokenizer, ids, thinking=thinking, sizes=sizes)
    assert reply.content == content
    assert reply.reasoning == ((reasoning if reasoning.strip() else None) if thinking else None)
    assert [(call.name, json.loads(call.arguments)) for call in reply.tool_calls] == calls
    assert len({call.id for call in reply.tool_calls}) == len(calls)


def test_content_streams_as_it_comes(k3_tokenizer: Tokenizer) -> None:
    encoding = XtmlEncoding(k3_tokenizer)
    ids = written(encoding, {"role": "assistant", "content": "hello world 的"}, False)
    parser = encoding.reply_parser(encoding.encode([USER], ChatOptions(thinking=False)))
    deltas = [parser.feed(news).content for news in outputs(k3_tokenizer, ids, (1,))]
    assert deltas[:3] == ["hello", " world", " "]
    assert [delta for delta in deltas if delta] == ["hello", " world", " ", "的"]


def test_text_is_released_no_faster_than_the_engine_releases_it(k3_tokenizer: Tokenizer) -> None:
    # The engine holds back text that may start a stop string, and cuts the stop string off at the end.
    encoding = XtmlEncoding(k3_tokenizer)
    parser = encoding.reply_parser(encoding.encode([USER], ChatOptions(thinking=False)))
    ids = k3_tokenizer.encode("abcdef")
    assert len(ids) == 6
    steps = [
        output(ids[:2], "a"),
        output(ids[2:4], "b"),
        output(ids[4:], "", FinishReason.STOP, stop="cde"),
    ]
    seen = [parser.feed(step).content for step in steps]
    assert seen == ["a", "b", ""]


@pytest.mark.parametrize("reason", [FinishReason.LENGTH, FinishReason.ABORT])
def test_a_reply_that_is_cut_short_keeps_what_was_said(k3_tokenizer: Tokenizer, reason: FinishReason) -> None:
    message = {"role": "assistant", "content": "hello world", "reasoning_content": "think"}
    whole = written(XtmlEncoding(k3_tokenizer), message, True)
    for length in range(1, len(whole)):
        reply = parse(k3_tokenizer, whole[:length], thinking=True, finish_reason=reason)
        assert "hello world".startswith(reply.content)
        assert "think".startswith(reply.reasoning or "")


def test_a_stop_token_is_no_part_of_the_reply(k3_tokenizer: Tokenizer) -> None:
    # Any token may be a request's stop token, also one that has text.
    assert parse(k3_tokenizer, k3_tokenizer.encode("hello world")) == Reply(content="hello")


def test_a_reply_without_closing_tags_is_whole(k3_tokenizer: Tokenizer) -> None:
    ids = [*k3_tokenizer.encode("hello"), k3_tokenizer.special("<|end_of_msg|>")]
    assert parse(k3_tokenizer, ids) == Reply(content="hello")


def test_a_character_torn_by_a_marker_does_not_garble_the_tag(k3_tokenizer: Tokenizer) -> None:
    close, sep = k3_tokenizer.special("<|close|>"), k3_tokenizer.special("<|sep|>")
    torn = list("é".encode())[:1]
    end = k3_tokenizer.special("<|end_of_msg|>")
    ids = [*k3_tokenizer.encode("a"), *torn, close, *k3_tokenizer.encode("response"), sep, end]
    assert parse(k3_tokenizer, ids).content == "a\ufffd"


def test_text_outside_every_channel_is_content_and_stray_closings_are_ignored(
    k3_tokenizer: Tokenizer,
) -> None:
    close, sep = k3_tokenizer.special("<|close|>"), k3_tokenizer.special("<|sep|>")

    def closing(tag: str) -> list[int]:
        return [close, *k3_tokenizer.encode(tag), sep]

    ids = [
        *closing("nothing"),
        *k3_tokenizer.encode("a"),
        *closing("response"),
        *k3_tokenizer.encode("b"),
        sep,
    ]
    assert parse(k3_tokenizer, ids).content == "ab"


def test_an_argument_that_is_not_its_type_keeps_its_text(k3_tokenizer: Tokenizer) -> None:
    message = {
        "role": "assistant",
        "tool_calls": [{"function": {"name": "f", "arguments": '{"a": "12x"}'}}],
    }
    ids = list(written(XtmlEncoding(k3_tokenizer), message, False))
    string, number = k3_tokenizer.encode("string"), k3_tokenizer.encode("number")
    at = next(i for i in range(len(ids)) if ids[i : i + len(string)] == string)
    ids[at : at + len(string)] = number
    (call,) = parse(k3_tokenizer, ids).tool_calls
    assert json.loads(call.arguments) == {"a": "12x"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[" * 100_000, "[" * 100_000),  # too deep to be read
        (r'"\ud83d"', "\ufffd"),  # no reply could hold it
        (r'{"\udc00": 1}', {"\ufffd": 1}),
        (r'"\ud83d\ude00"', "\U0001f600"),
    ],
    ids=["deep", "lone surrogate", "lone surrogate in a key", "pair"],
)
def test_an_argument_that_json_readers_stumble_over(
    k3_tokenizer: Tokenizer, text: str, expected: object
) -> None:
    call = [("<|open|>", 'call tool="f" index="1"'), ("<|open|>", 'argument key="a" type="object"')]
    ids = [k3_tokenizer.special("<|open|>"), *k3_tokenizer.encode("tools"), k3_tokenizer.special("<|sep|>")]
    for marker, tag in call:
        ids += [k3_tokenizer.special(marker), *k3_tokenizer.encode(tag), k3_tokenizer.special("<|sep|>")]
    ids += k3_tokenizer.encode(text)
    for tag in ("argument", "call", "tools"):
        ids += [k3_tokenizer.special("<|close|>"), *k3_tokenizer.encode(tag), k3_tokenizer.special("<|sep|>")]
    (found,) = parse(k3_tokenizer, ids).tool_calls
    assert json.loads(found.arguments.encode()) == {"a": expected}


def test_a_closing_tag_closes_what_was_left_open_inside(k3_tokenizer: Tokenizer) -> None:
    calls = [{"function": {"name": name, "arguments": '{"a": "xy"}'}} for name in ("f", "g")]
    message = {"role": "assistant", "tool_calls": calls}
    ids = list(written(XtmlEncoding(k3_tokenizer), message, False))
    close, sep = k3_tokenizer.special("<|close|>"), k3_tokenizer.special("<|sep|>")
    closing = [close, *k3_tokenizer.encode("argument"), sep]
    at = next(i for i in range(len(ids)) if ids[i : i + len(closing)] == closing)
    first, second = parse(k3_tokenizer, ids[:at] + ids[at + len(closing) :]).tool_calls
    assert (first.name, second.name) == ("f", "g")
    assert json.loads(first.arguments) == json.loads(second.arguments) == {"a": "xy"}


def test_unparsed_json_arguments_come_back_raw(k3_tokenizer: Tokenizer) -> None:
    message = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{oops"}}]}
    (call,) = parse(k3_tokenizer, written(XtmlEncoding(k3_tokenizer), message, False)).tool_calls
    assert call.arguments == "{oops"
