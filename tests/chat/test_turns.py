"""What a next turn's prompt shares with this one's, and with the reply as it was drawn.

Prefix reuse in a chat rests on it: token ids up to every message end come again, and so does a reply
unless its form drops something (reasoning that the client keeps to itself, a tool choice).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from milepost.chat.encoding import ChatEncoding, ChatOptions, EncodedPrompt
from milepost.chat.families import chat_encoding
from milepost.chat.reply import Reply, collect_reply
from milepost.chat.tokenizer import Tokenizer
from milepost.chat.tokenizer_folder import load_tokenizer
from milepost.cli.shipped_model import shipped_model
from milepost.types import FinishReason, RequestOutput, Usage
from tests.chat.conftest import IM_SPECIALS, K3_SPECIALS, write_hf, write_tiktoken

Message = dict[str, Any]

TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}
    for name in ("get", "put")
]
TEXT = st.text(max_size=12)
VALUE = st.one_of(
    TEXT, st.booleans(), st.none(), st.integers(-99, 99), st.lists(st.integers(0, 9), max_size=2)
)


@pytest.fixture(scope="module", params=["shipped", "tiktoken", "hf"])
def k3(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """Kimi K3's markers over real and small vocabularies."""
    if request.param == "shipped":
        return load_tokenizer(shipped_model())
    write = write_tiktoken if request.param == "tiktoken" else write_hf
    return load_tokenizer(write(tmp_path_factory.mktemp("k3"), K3_SPECIALS))


@pytest.fixture(scope="module")
def linear(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """Kimi-Linear's markers."""
    folder: Path = write_tiktoken(tmp_path_factory.mktemp("im"), IM_SPECIALS)
    return load_tokenizer(folder)


@st.composite
def turns(draw: st.DrawFn, *, tools: bool) -> list[tuple[list[Message], Message]]:
    """(messages that a turn adds, what the model answers); calls are answered in the next turn."""
    result: list[tuple[list[Message], Message]] = []
    added: list[Message] = []
    if draw(st.booleans()):
        added.append({"role": draw(st.sampled_from(["system", "developer"])), "content": draw(TEXT)})
    for turn in range(draw(st.integers(1, 4))):
        if not any(message["role"] == "tool" for message in added):
            parts = [{"type": "text", "text": text} for text in draw(st.lists(TEXT, min_size=1, max_size=2))]
            content: Any = parts if draw(st.booleans()) else draw(TEXT)
            added.append({"role": "user", "content": content} | draw(st.sampled_from([{}, {"name": "ann"}])))
        answer: Message = {"role": "assistant", "content": draw(TEXT), "reasoning_content": draw(TEXT)}
        calls = draw(st.lists(_call(), max_size=2)) if tools else []
        if calls:
            answer["tool_calls"] = [
                {"id": f"{turn}-{i}", "type": "function", "function": call} for i, call in enumerate(calls)
            ]
        result.append((added, answer))
        added = [
            {"role": "tool", "tool_call_id": f"{turn}-{i}", "content": draw(TEXT)} for i in range(len(calls))
        ]
    return result


@st.composite
def _call(draw: st.DrawFn) -> dict[str, str]:
    arguments = draw(st.dictionaries(st.text("abc", min_size=1, max_size=3), VALUE, max_size=2))
    name = draw(st.sampled_from(["get", "put"]))
    return {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)}


class Drawn:
    """The tokens of a reply, piece by piece as the form has them."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.ids: list[int] = []

    def text(self, *pieces: str) -> Drawn:
        for piece in pieces:
            self.ids += self.tokenizer.encode(piece) if piece else []
        return self

    def marker(self, name: str) -> Drawn:
        self.ids.append(self.tokenizer.special(name))
        return self

    def open(self, tag: str, **attributes: str) -> Drawn:
        self.marker("<|open|>").text(tag)
        for key, value in attributes.items():
            escaped = value.replace("&", "&amp;").replace('"', "&quot;")
            self.text(f" {key}", '="', escaped, '"')
        return self.marker("<|sep|>")

    def close(self, tag: str) -> Drawn:
        return self.marker("<|close|>").text(tag).marker("<|sep|>")


def xml_reply(tokenizer: Tokenizer, answer: Message, *, thinking: bool) -> list[int]:
    """What K3 draws to say `answer`, spelled as its tokenizer would."""
    drawn = Drawn(tokenizer)
    if thinking:
        drawn.text(answer["reasoning_content"]).close("think").open("response")
    drawn.text(answer["content"]).close("response")
    if answer.get("tool_calls"):
        drawn.open("tools")
        for i, call in enumerate(answer["tool_calls"]):
            drawn.open("call", tool=call["function"]["name"], index=str(i + 1))
            for key, value in json.loads(call["function"]["arguments"]).items():
                text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
                drawn.open("argument", key=key, type=json_type(value)).text(text).close("argument")
            drawn.close("call")
        drawn.close("tools")
    return drawn.close("message").marker("<|end_of_msg|>").ids


def json_type(value: object) -> str:
    kinds = {str: "string", bool: "boolean", int: "number", float: "number", list: "array", dict: "object"}
    kinds[type(None)] = "null"
    return kinds[type(value)]


def parsed(encoding: ChatEncoding, tokenizer: Tokenizer, prompt: EncodedPrompt, ids: Sequence[int]) -> Reply:
    """What a client is told of a reply."""
    output = RequestOutput(
        request_id="r",
        text=tokenizer.decode(ids[:-1]),
        token_ids=tuple(ids),
        finish_reason=FinishReason.STOP,
        stop_reason=ids[-1],
        usage=Usage(prompt_tokens=1, output_tokens=len(ids)),
    )
    return collect_reply([encoding.reply_parser(prompt).feed(output)])


def as_message(reply: Reply, answer: Message, *, reasoning: bool) -> Message:
    """The reply as a client appends it; the calls keep the ids that the conversation's results name."""
    message: Message = {"role": "assistant", "content": reply.content}
    if reasoning and reply.reasoning is not None:
        message["reasoning_content"] = reply.reasoning
    if reply.tool_calls:
        message["tool_calls"] = [
            {
                "id": given["id"],
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call, given in zip(reply.tool_calls, answer["tool_calls"], strict=True)
        ]
    return message


def check_ends(before: EncodedPrompt, after: EncodedPrompt) -> None:
    """Up to its last message end, `before` comes again, and so do its message ends."""
    last = before.message_ends[-1]
    assert after.token_ids[:last] == before.token_ids[:last]
    assert after.message_ends[: len(before.message_ends)] == before.message_ends
    assert last < len(before.token_ids), "the generation prefix is no message"


@settings(deadline=None, max_examples=60)
@given(
    conversation=turns(tools=True),
    thinking=st.booleans(),
    comes_back=st.booleans(),
    choice=st.sampled_from([None, "auto", "none", "required"]),
)
def test_k3_turns_repeat_messages_and_replies(
    k3: Tokenizer,
    conversation: list[tuple[list[Message], Message]],
    thinking: bool,
    comes_back: bool,
    choice: str | None,
) -> None:
    encoding = chat_encoding("kimi_k3", k3)
    messages: list[Message] = []
    before: EncodedPrompt | None = None
    drawn: list[int] = []
    blank = False
    for added, answer in conversation:
        messages += added
        prompt = encoding.encode(messages, ChatOptions(thinking=thinking, tools=TOOLS, tool_choice=choice))
        if before is not None:
            check_ends(before, prompt)
            if before.output_reusable:
                # Also the end-of-message token, which is drawn and never computed.
                whole = before.token_ids + tuple([] if blank else drawn)
                assert prompt.token_ids[: len(whole)] == whole
        drawn = xml_reply(k3, answer, thinking=thinking)
        # Thinking that is nothing but space is written as no thinking at all.
        blank = thinking and answer["reasoning_content"] != "" and not answer["reasoning_content"].strip()
        reply = parsed(encoding, k3, prompt, drawn)
        assert reply.content == answer["content"]
        messages.append(as_message(reply, answer, reasoning=comes_back))
        before = prompt


@settings(deadline=None, max_examples=40)
@given(conversation=turns(tools=False))
def test_kimi_linear_turns_repeat_messages_and_replies(
    linear: Tokenizer, conversation: list[tuple[list[Message], Message]]
) -> None:
    encoding = chat_encoding("kimi_linear", linear)
    messages: list[Message] = []
    before: EncodedPrompt | None = None
    whole: tuple[int, ...] = ()
    for added, answer in conversation:
        messages += added
        prompt = encoding.encode(messages)
        assert prompt.output_reusable
        if before is not None:
            check_ends(before, prompt)
            assert prompt.token_ids[: len(whole)] == whole
        drawn = [*linear.encode(answer["content"]), linear.special("<|im_end|>")]
        reply = parsed(encoding, linear, prompt, drawn)
        messages.append(as_message(reply, answer, reasoning=False))
        before, whole = prompt, prompt.token_ids + tuple(drawn)


@settings(deadline=None, max_examples=40)
@given(conversation=turns(tools=True))
def test_kimi_linears_calls_come_again(
    im_tool_tokenizer: Tokenizer, conversation: list[tuple[list[Message], Message]]
) -> None:
    encoding = chat_encoding("kimi_linear", im_tool_tokenizer)
    messages: list[Message] = []
    before: EncodedPrompt | None = None
    whole: tuple[int, ...] = ()
    num_calls = 0
    for added, answer in conversation:
        messages += added
        prompt = encoding.encode(messages, ChatOptions(tools=TOOLS))
        if before is not None:
            check_ends(before, prompt)
            assert prompt.token_ids[: len(whole)] == whole
        drawn = Drawn(im_tool_tokenizer).text(answer["content"])
        calls = [call["function"] for call in answer.get("tool_calls", ())]
        if calls:
            drawn.marker("<|tool_calls_section_begin|>")
            for call in calls:
                # As the model counts them, whatever ids the client gives them later.
                drawn.marker("<|tool_call_begin|>").text(f"functions.{call['name']}:{num_calls}")
                drawn.marker("<|tool_call_argument_begin|>").text(call["arguments"])
                drawn.marker("<|tool_call_end|>")
                num_calls += 1
            drawn.marker("<|tool_calls_section_end|>")
        drawn.marker("<|im_end|>")
        reply = parsed(encoding, im_tool_tokenizer, prompt, drawn.ids)
        assert [(call.name, call.arguments) for call in reply.tool_calls] == [
            (call["name"], call["arguments"]) for call in calls
        ]
        messages.append(as_message(reply, answer, reasoning=False))
        before, whole = prompt, prompt.token_ids + tuple(drawn.ids)


USER: Message = {"role": "user", "content": "hello"}
NEXT: Message = {"role": "user", "content": "and"}


def said(content: str = "hi", reasoning: str | None = None) -> Message:
    return {"role": "assistant", "content": content, "reasoning_content": reasoning}


@pytest.mark.parametrize(
    ("messages", "form", "reusable"),
    [
        ([USER], {"thinking": False}, True),
        ([USER], {"thinking": True}, False),
        ([USER, said(), NEXT], {"thinking": True}, False),
        ([USER, said(reasoning=" \n"), NEXT], {"thinking": True}, False),
        ([USER, said(reasoning="greet"), NEXT], {"thinking": True}, True),
        ([USER, said(reasoning="greet"), NEXT, said(), NEXT], {"thinking": True}, False),
        ([USER, said(reasoning="greet"), NEXT], {"thinking": False}, True),
        ([USER], {"thinking": False, "tools": TOOLS}, True),
        ([USER], {"thinking": False, "tools": TOOLS, "tool_choice": "auto"}, True),
        ([USER], {"thinking": False, "tools": TOOLS, "tool_choice": "none"}, False),
        ([USER], {"thinking": False, "tools": TOOLS, "tool_choice": "required"}, False),
        ([USER], {"thinking": False, "tool_choice": "none"}, True),
    ],
)
def test_a_reply_is_reusable_when_the_next_turn_repeats_it(
    k3: Tokenizer, messages: list[Message], form: Mapping[str, Any], reusable: bool
) -> None:
    assert chat_encoding("kimi_k3", k3).encode(messages, ChatOptions(**form)).output_reusable is reusable


def shared_tokens(before: EncodedPrompt, drawn: Sequence[int], after: EncodedPrompt) -> int:
    """How many of the drawn tokens the next prompt has at their place."""
    whole = [*before.token_ids, *drawn]
    common = next(
        (i for i, pair in enumerate(zip(whole, after.token_ids, strict=False)) if pair[0] != pair[1]),
        len(whole),
    )
    assert common >= len(before.token_ids)
    return common - len(before.token_ids)


def test_where_a_reply_parts_from_its_text(k3: Tokenizer) -> None:
    """The drawn tokens are not those that their own text has: nothing before them is lost."""
    encoding = chat_encoding("kimi_k3", k3)
    before = encoding.encode([USER], ChatOptions(thinking=False))

    def after(ids: list[int]) -> EncodedPrompt:
        reply = parsed(encoding, k3, before, ids)
        return encoding.encode(
            [USER, {"role": "assistant", "content": reply.content}, NEXT], ChatOptions(thinking=False)
        )

    end = Drawn(k3).close("response").close("message").marker("<|end_of_msg|>").ids
    bytewise = [token_id for char in " the message" for token_id in k3.encode(char)]
    spelled_otherwise = [*k3.encode("hello"), *bytewise, *end]
    assert len(k3.encode("hello")) <= shared_tokens(before, spelled_otherwise, after(spelled_otherwise))
    assert shared_tokens(before, spelled_otherwise, after(spelled_otherwise)) < len(spelled_otherwise)
    # Half a character, at which a reply may be cut, comes back as the replacement character.
    assert len(k3.encode("ℵ")) > 1
    half = [*k3.encode("hello"), k3.encode("ℵ")[0], *end]
    assert shared_tokens(before, half, after(half)) == len(k3.encode("hello"))
