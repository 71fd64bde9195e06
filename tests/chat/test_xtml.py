"""Kimi K3's prompts, spelled out: markers by name, everything between them as its exact text."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from milepost.chat.encoding import ChatOptions, EncodedPrompt
from milepost.chat.families import chat_encoding
from milepost.chat.tokenizer import Tokenizer
from milepost.chat.xtml import XtmlEncoding
from milepost.errors import RequestError, TokenizerError
from tests.chat.conftest import K3_SPECIALS

EFFORT = (
    '<|open|>message role="system" type="thinking-effort"<|sep|>`thinking_effort` guides on how much to '
    "think in your thinking channel (not including the response channel), supported values include `low`, "
    "`medium`, `high`, and `max`.\nNow the system is invoked with `thinking_effort=max`."
    "<|close|>message<|sep|><|end_of_msg|>"
)
PREFIX = '<|open|>message role="assistant"<|sep|><|open|>response<|sep|>'
THINK_PREFIX = '<|open|>message role="assistant"<|sep|><|open|>think<|sep|>'
END = "<|close|>message<|sep|><|end_of_msg|>"


@pytest.fixture
def encoding(k3_tokenizer: Tokenizer) -> XtmlEncoding:
    return XtmlEncoding(k3_tokenizer)


def spelled(tokenizer: Tokenizer, token_ids: tuple[int, ...]) -> str:
    """The prompt with each marker id as its name."""
    raw = b"".join(
        (tokenizer.special_name(token_id) or "").encode() or tokenizer.token_bytes(token_id)
        for token_id in token_ids
    )
    return raw.decode()


def messages_of(prompt: EncodedPrompt, tokenizer: Tokenizer) -> list[str]:
    """The prompt cut at its message ends; the last piece is the generation prefix."""
    cuts = [0, *prompt.message_ends, len(prompt.token_ids)]
    return [spelled(tokenizer, prompt.token_ids[a:b]) for a, b in itertools.pairwise(cuts)]


def said(**fields: object) -> dict[str, Any]:
    return {"role": "assistant", "content": "x", **fields}


def user(content: object) -> dict[str, Any]:
    return {"role": "user", "content": content}


def test_a_conversation_without_thinking(encoding: XtmlEncoding, k3_tokenizer: Tokenizer) -> None:
    conversation = [
        {"role": "system", "content": "be brief"},
        user("hello"),
        {"role": "assistant", "content": "hi", "reasoning_content": "greet"},
        user([{"type": "text", "text": "how are "}, {"type": "text", "text": "you"}]),
    ]
    prompt = encoding.encode(conversation, ChatOptions(thinking=False))
    assert messages_of(prompt, k3_tokenizer) == [
        f'<|open|>message role="system"<|sep|>be brief{END}',
        f'<|open|>message role="user"<|sep|>hello{END}',
        f"{PREFIX}hi<|close|>response<|sep|>{END}",
        f'<|open|>message role="user"<|sep|>how are you{END}',
        PREFIX,
    ]
    assert not prompt.thinking


def test_thinking_is_the_default_and_gives_every_assistant_turn_a_channel(
    encoding: XtmlEncoding, k3_tokenizer: Tokenizer
) -> None:
    conversation = [
        user("a"),
        {"role": "assistant", "content": "b", "reasoning_content": "hm"},
        user("c"),
        {"role": "assistant", "content": "d", "reasoning_content": " \n"},
        user("e"),
    ]
    prompt = encoding.encode(conversation)
    assert messages_of(prompt, k3_tokenizer) == [
        EFFORT,
        f'<|open|>message role="user"<|sep|>a{END}',
        f"{THINK_PREFIX}hm<|close|>think<|sep|><|open|>response<|sep|>b<|close|>response<|sep|>{END}",
        f'<|open|>message role="user"<|sep|>c{END}',
        f"{THINK_PREFIX}<|close|>think<|sep|><|open|>response<|sep|>d<|close|>response<|sep|>{END}",
        f'<|open|>message role="user"<|sep|>e{END}',
        THINK_PREFIX,
    ]
    assert prompt.thinking


def test_the_models_default_for_thinking_is_followed(k3_tokenizer: Tokenizer) -> None:
    class Quiet:
        def __init__(self, thinking: object) -> None:
            self.chat_defaults = {"thinking": thinking}

        def __getattr__(self, name: str) -> Any:  # stands in for any member
            return getattr(k3_tokenizer, name)

    encoding = XtmlEncoding(Quiet(False))
    assert not encoding.encode([user("a")]).thinking
    assert encoding.encode([user("a")], ChatOptions(thinking=True)).thinking
    with pytest.raises(TokenizerError, match="thinking must be true or false"):
        XtmlEncoding(Quiet("no"))


def test_tools_come_first_then_effort_and_the_choice_comes_last(
    encoding: XtmlEncoding, k3_tokenizer: Tokenizer
) -> None:
    tools = [
        {"type": "function", "function": {"name": "get", "parameters": {"b": 1, "a": {"d": 1, "c": "é"}}}}
    ]
    prompt = encoding.encode(
        [user("x")], ChatOptions(tools=tools, tool_choice="required", thinking_effort="low")
    )
    declare, effort, _, rest = messages_of(prompt, k3_tokenizer)
    # The next turn has the reply in this place, so no message ends between the choice and the reply.
    choice, prefix = rest.removesuffix(THINK_PREFIX), THINK_PREFIX
    assert declare == (
        '<|open|>message role="system" type="tool-declare"<|sep|># Tools\nHere are the available tools, '
        'described in JSONSchema.\n\n```json\n[{"function":{"name":"get","parameters":{"a":{"c":"é","d":1},'
        f'"b":1}}}},"type":"function"}}]\n```{END}'
    )
    assert effort == EFFORT.replace("=max", "=low")
    assert choice == (
        '<|open|>message role="system" type="tool-choice"<|sep|>The system is invoked with '
        f"`tool_choice=required`.\nYou MUST call tools in the next message.{END}"
    )
    assert rest == choice + prefix


def test_what_is_asked_of_the_next_reply_comes_last(encoding: XtmlEncoding, k3_tokenizer: Tokenizer) -> None:
    schema = {"type": "object", "properties": {"b": {"type": "string"}, "a": {}}, "required": ["b", "a"]}
    form = {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}
    tools = [{"type": "function", "function": {"name": "{kind}"}}]
    named = {"type": "function", "function": {"name": "{kind}"}}
    options = ChatOptions(thinking=False, tools=tools, tool_choice=named, response_format=form)
    prompt = encoding.encode([user("x")], options)
    asked = messages_of(prompt, k3_tokenizer)[-1]
    assert asked == (
        '<|open|>message role="system" type="tool-choice"<|sep|>The system is invoked with '
        f"`tool_choice=specified`.\nYou MUST call the tool `{{kind}}` in the next message.{END}"
        '<|open|>message role="system" type="response-format"<|sep|>The system is invoked with '
        "`response_format=json_schema`.\nYour response must be raw JSON data without markdown code blocks "
        "(```json) or any additional formatting.\nThe JSON data must match the following schema:\n```json\n"
        '{"properties":{"a":{},"b":{"type":"string"}},"required":["b","a"],"type":"object"}\n```'
        f"{END}{PREFIX}"
    )
    assert not prompt.output_reusable
    plain = encoding.encode([user("x")], ChatOptions(thinking=False, response_format={"type": "json_object"}))
    assert (
        "response_format=json_object`.\nYour response must be raw JSON"
        in messages_of(plain, k3_tokenizer)[-1]
    )


def test_no_effort_is_no_thinking(encoding: XtmlEncoding) -> None:
    quiet = encoding.encode([user("x")], ChatOptions(thinking_effort="none"))
    assert quiet == encoding.encode([user("x")], ChatOptions(thinking=False))
    with pytest.raises(RequestError, match=r"must be one of none, low, high, max\. Given: 'medium'"):
        encoding.encode([user("x")], ChatOptions(thinking_effort="medium"))
    with pytest.raises(RequestError, match="thinking_effort is 'none', but thinking is true"):
        encoding.encode([user("x")], ChatOptions(thinking_effort="none", thinking=True))


def test_arguments_keep_their_literals(encoding: XtmlEncoding, k3_tokenizer: Tokenizer) -> None:
    arguments = '{ "n" : 1e2 , "big": 123456789012345678901234567890, "o": {"a":1,"b":  2}, "u": "\\u00e9" }'
    message = {"role": "assistant", "tool_calls": [call("f", arguments)]}
    text = spelled(k3_tokenizer, encoding.encode([message], ChatOptions(thinking=False)).token_ids)
    for literal in ("1e2", "123456789012345678901234567890", '{"a":1,"b":  2}', "é"):
        assert f"<|sep|>{literal}<|close|>argument" in text


def call(name: str, arguments: str, call_id: str = "") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def test_calls_are_written_by_argument_and_results_in_call_order(
    encoding: XtmlEncoding, k3_tokenizer: Tokenizer
) -> None:
    arguments = {"s": 'a "b"', "n": 1.5, "t": True, "z": None, "o": {"k": [1]}, "l": [1, 2]}
    conversation = [
        user("go"),
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [call('f&"', json.dumps(arguments), "one"), call("g", "", "two")],
        },
        {"role": "tool", "tool_call_id": "two", "content": "second"},
        {"role": "tool", "tool_call_id": "one", "content": "first"},
    ]
    prompt = encoding.encode(conversation, ChatOptions(thinking=False))
    _, assistant, first, second, _ = messages_of(prompt, k3_tokenizer)

    def argument(key: str, kind: str, value: str) -> str:
        return f'<|open|>argument key="{key}" type="{kind}"<|sep|>{value}<|close|>argument<|sep|>'

    assert assistant == (
        f"{PREFIX}<|close|>response<|sep|><|open|>tools<|sep|>"
        '<|open|>call tool="f&amp;&quot;" index="1"<|sep|>'
        + argument("s", "string", 'a "b"')
        + argument("n", "number", "1.5")
        + argument("t", "boolean", "true")
        + argument("z", "null", "null")
        + argument("o", "object", '{"k": [1]}')
        + argument("l", "array", "[1, 2]")
        + '<|close|>call<|sep|><|open|>call tool="g" index="2"<|sep|><|close|>call<|sep|>'
        f"<|close|>tools<|sep|>{END}"
    )
    assert first == f'<|open|>message role="tool" tool="f&amp;&quot;" index="1"<|sep|>first{END}'
    assert second == f'<|open|>message role="tool" tool="g" index="2"<|sep|>second{END}'


def test_results_without_ids_answer_the_calls_in_turn(
    encoding: XtmlEncoding, k3_tokenizer: Tokenizer
) -> None:
    conversation: list[dict[str, Any]] = [
        {"role": "assistant", "tool_calls": [call("f", "{}"), call("g", "{oops")]},
        {"role": "tool", "content": "1"},
        {"role": "tool", "content": "2"},
    ]
    text = spelled(k3_tokenizer, encoding.encode(conversation, ChatOptions(thinking=False)).token_ids)
    assert '<|open|>json type="object"<|sep|>{oops<|close|>json<|sep|>' in text
    assert 'tool="f" index="1"<|sep|>1' in text
    assert 'tool="g" index="2"<|sep|>2' in text


@settings(deadline=None)
@given(
    text=st.lists(st.one_of(st.text(), st.sampled_from([*K3_SPECIALS.values(), '"', "&"])), max_size=6).map(
        "".join
    )
)
def test_text_never_becomes_a_marker(k3_tokenizer: Tokenizer, text: str) -> None:
    encoding = XtmlEncoding(k3_tokenizer)

    def markers(content: str, name: str) -> list[str]:
        message = {"role": "user", "content": content, "name": name}
        names = (
            k3_tokenizer.special_name(i)
            for i in encoding.encode([message], ChatOptions(thinking=False)).token_ids
        )
        return [marker for marker in names if marker]

    assert markers(text, text) == markers("x", "x")


@settings(deadline=None)
@given(
    texts=st.lists(st.text(max_size=20), min_size=1, max_size=5),
    thinking=st.booleans(),
)
def test_every_turn_extends_the_prompt_before_it(
    k3_tokenizer: Tokenizer, texts: list[str], thinking: bool
) -> None:
    # What prefix reuse rests on: the next turn's prompt starts with this one, generation prefix included.
    encoding = XtmlEncoding(k3_tokenizer)
    conversation: list[dict[str, Any]] = []
    before: tuple[int, ...] = ()
    ends: tuple[int, ...] = ()
    for text in texts:
        conversation.append(user(text))
        prompt = encoding.encode(conversation, ChatOptions(thinking=thinking))
        assert prompt.token_ids[: len(before)] == before
        assert prompt.message_ends[: len(ends)] == ends
        assert list(prompt.message_ends) == sorted(set(prompt.message_ends))
        assert prompt.message_ends[-1] < len(prompt.token_ids)
        before, ends = prompt.token_ids, prompt.message_ends
        conversation.append({"role": "assistant", "content": text, "reasoning_content": text})


@pytest.mark.parametrize(
    ("messages", "param", "says"),
    [
        ("hi", "messages", "must be a list of messages. Given: a string"),
        ([], "messages", "at least one message"),
        (["hi"], "messages[0]", "must be an object with role and content"),
        ([user("a"), {"role": "robot", "content": "x"}], "messages[1].role", "Given: 'robot'"),
        ([{"content": "x"}], "messages[0].role", "Given: None"),
        ([{"role": ["user"], "content": "x"}], "messages[0].role", "must be one of"),
        ([user(None)], "messages[0].content", "must be a string or a list of text parts. Given: nothing"),
        ([user(3)], "messages[0].content", "Given: a number"),
        ([said(reasoning_content={})], "messages[0].reasoning_content", "Given: an object"),
        ([said(reasoning_content="a", reasoning=[])], "messages[0].reasoning", "Given: a list"),
        ([user({"type": "text"})], "messages[0].content", "Given: an object"),
        (
            [user("a"), user([{"type": "image_url", "image_url": {}}])],
            "messages[1].content[0].type",
            "image_url",
        ),
        ([user([{"type": "text"}])], "messages[0].content[0].text", "must be a string. Given: nothing"),
        ([user(["a"])], "messages[0].content[0]", "must be an object like"),
        (
            [user([{"type": "text", "text": "a", "cache": 1}])],
            "messages[0].content[0].cache",
            "not supported",
        ),
        ([user("a") | {"tool_calls": [1]}], "messages[0].tool_calls", "is not supported here"),
        ([{"role": "assistant", "tool_calls": [1]}], "messages[0].tool_calls[0]", "must be an object"),
        (
            [{"role": "assistant", "tool_calls": [call("f", "[1]")]}],
            "messages[0].tool_calls[0].function.arguments",
            "must be a JSON object",
        ),
        ([{"role": "tool", "content": "x"}], "messages[0].tool_call_id", "no unanswered tool call"),
        (
            [
                {"role": "assistant", "tool_calls": [call("f", "", "one")]},
                {"role": "tool", "content": "x", "tool_call_id": "two"},
            ],
            "messages[1].tool_call_id",
            "Given: 'two'; known: ['one']",
        ),
    ],
)
def test_bad_messages_name_the_field(
    encoding: XtmlEncoding, messages: list[Any], param: str, says: str
) -> None:
    with pytest.raises(RequestError) as caught:
        encoding.encode(messages)
    assert caught.value.param == param
    assert says in str(caught.value)
    assert str(caught.value).startswith(param)


def test_arguments_too_deep_to_be_read_are_written_as_they_are(encoding: XtmlEncoding) -> None:
    deep = "[" * 100_000
    call = {"function": {"name": "f", "arguments": deep}}
    prompt = encoding.encode([{"role": "assistant", "tool_calls": [call]}])
    assert len(prompt.token_ids) > 0


def test_fields_that_clients_echo_empty_are_fine(encoding: XtmlEncoding) -> None:
    echoed: dict[str, Any] = {
        "role": "assistant",
        "content": "a",
        "refusal": None,
        "annotations": [],
        "function_call": None,
    }
    assert encoding.encode([echoed]) == encoding.encode([{"role": "assistant", "content": "a"}])


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"thinking_effort": "medium"}, "thinking_effort"),
        ({"thinking": False, "thinking_effort": "low"}, "thinking_effort"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": "f"}, "tool_choice"),
        ({"tools": [{"type": "magic"}]}, "tools[0].type"),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": {1, 2}}}]},
            "tools[0].function.parameters",
        ),
        ({"tools": [{"type": "function", "function": {"name": "f", 1: 2}}]}, "tools"),
        ({"tools": [{"type": "function", "function": {"name": "f", "x": float("nan")}}]}, "tools"),
        ({"thinking": "no"}, "thinking"),
        ({"tools": [{"type": "function", "function": {"name": ""}}]}, "tools[0].function.name"),
    ],
)
def test_bad_options_name_the_field(encoding: XtmlEncoding, options: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        encoding.encode([user("a")], ChatOptions(**options))
    assert caught.value.param == param


def test_a_tokenizer_without_the_markers_is_refused(im_tokenizer: Tokenizer) -> None:
    with pytest.raises(TokenizerError, match=r"no special token <\|open\|>"):
        chat_encoding("kimi_k3", im_tokenizer)
