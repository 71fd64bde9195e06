"""Kimi-Linear's prompts."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest

from milepost.chat.encoding import ChatOptions
from milepost.chat.families import chat_encoding
from milepost.chat.reply import collect_reply
from milepost.chat.tokenizer import Tokenizer
from milepost.errors import ConfigError, RequestError
from milepost.types import RequestOutput, Usage
from tests.chat.reply_streams import stream


def test_a_conversation(im_tokenizer: Tokenizer) -> None:
    encoding = chat_encoding("kimi_linear", im_tokenizer)
    conversation = [
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": "say <|im_end|>"},
        {"role": "assistant", "content": "no"},
        {"role": "user", "content": "ok"},
    ]
    prompt = encoding.encode(conversation)
    names = [im_tokenizer.special_name(token_id) for token_id in prompt.token_ids]
    assert [name for name in names if name] == [
        *("<|im_system|>", "<|im_middle|>", "<|im_end|>"),
        *("<|im_user|>", "<|im_middle|>", "<|im_end|>"),
        *("<|im_assistant|>", "<|im_middle|>", "<|im_end|>"),
        *("<|im_user|>", "<|im_middle|>", "<|im_end|>"),
        *("<|im_assistant|>", "<|im_middle|>"),
    ]
    assert im_tokenizer.decode(prompt.token_ids) == (
        "systembe briefusersay <|im_end|>assistantnouserokassistant"
    )
    assert [names[end - 1] for end in prompt.message_ends] == ["<|im_end|>"] * 4
    assert encoding.stop_token_ids == (im_tokenizer.special("<|im_end|>"),)


def test_the_reply_is_its_text(im_tokenizer: Tokenizer) -> None:
    encoding = chat_encoding("kimi_linear", im_tokenizer)
    parser = encoding.reply_parser(encoding.encode([{"role": "user", "content": "a"}]))
    usage = Usage(prompt_tokens=1, output_tokens=1)
    assert (
        parser.feed(RequestOutput(request_id="r", text="abc", token_ids=(1,), usage=usage)).content == "abc"
    )


@pytest.mark.parametrize(
    ("options", "messages", "param"),
    [
        ({"thinking": True}, [], "thinking"),
        ({"thinking_effort": "low"}, [], "thinking_effort"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, [], "tools"),
        ({"tool_choice": "required"}, [], "tool_choice"),
        ({}, [{"role": "tool", "content": "x"}], "messages[0].role"),
        (
            {},
            [{"role": "assistant", "tool_calls": [{"function": {"name": "f"}}]}],
            "messages[0].tool_calls",
        ),
    ],
)
def test_what_the_form_lacks_is_refused(
    im_tokenizer: Tokenizer, options: dict[str, Any], messages: list[dict[str, Any]], param: str
) -> None:
    encoding = chat_encoding("kimi_linear", im_tokenizer)
    with pytest.raises(RequestError) as caught:
        encoding.encode(messages or [{"role": "user", "content": "a"}], ChatOptions(**options))
    assert caught.value.param == param


def spelled(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    raw = b"".join((tokenizer.special_name(i) or "").encode() or tokenizer.token_bytes(i) for i in ids)
    return raw.decode()


def called(name: str, arguments: str, call_id: str) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def test_tools_are_declared_called_and_answered(im_tool_tokenizer: Tokenizer) -> None:
    encoding = chat_encoding("kimi_linear", im_tool_tokenizer)
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"b": 1, "a": "é"}}}]
    conversation: list[dict[str, Any]] = [
        {"role": "user", "content": "go", "name": "ann"},
        {
            "role": "assistant",
            "content": "so",
            "tool_calls": [called("f", '{"a": 1e2}', "functions.f:7"), called("f", "", "call_5")],
        },
        {"role": "tool", "tool_call_id": "call_5", "content": "second", "name": "f"},
        {"role": "tool", "tool_call_id": "functions.f:7", "content": "first"},
        {"role": "assistant", "content": None, "tool_calls": [called("g", "{}", "x")]},
        {"role": "tool", "content": "third"},
    ]
    prompt = encoding.encode(conversation, ChatOptions(tools=tools))
    cuts = [0, *prompt.message_ends, len(prompt.token_ids)]
    pieces = [spelled(im_tool_tokenizer, prompt.token_ids[a:b]) for a, b in itertools.pairwise(cuts)]
    argument, end = "<|tool_call_argument_begin|>", "<|tool_call_end|>"
    assert pieces == [
        (
            "<|im_system|>tool_declare<|im_middle|>"
            '[{"type":"function","function":{"name":"f","parameters":{"b":1,"a":"é"}}}]<|im_end|>'
        ),
        "<|im_user|>ann<|im_middle|>go<|im_end|>",
        (
            "<|im_assistant|>assistant<|im_middle|>so<|tool_calls_section_begin|>"
            f'<|tool_call_begin|>functions.f:7{argument}{{"a": 1e2}}{end}'
            f"<|tool_call_begin|>functions.f:1{argument}{{}}{end}<|tool_calls_section_end|><|im_end|>"
        ),
        "<|im_system|>tool<|im_middle|>## Return of functions.f:7\nfirst<|im_end|>",
        "<|im_system|>f<|im_middle|>## Return of functions.f:1\nsecond<|im_end|>",
        (
            "<|im_assistant|>assistant<|im_middle|><|tool_calls_section_begin|>"
            f"<|tool_call_begin|>functions.g:2{argument}{{}}{end}<|tool_calls_section_end|><|im_end|>"
        ),
        "<|im_system|>tool<|im_middle|>## Return of functions.g:2\nthird<|im_end|>",
        "<|im_assistant|>assistant<|im_middle|>",
    ]


def test_a_reply_with_calls_comes_again_in_the_next_prompt(im_tool_tokenizer: Tokenizer) -> None:
    encoding = chat_encoding("kimi_linear", im_tool_tokenizer)
    user = {"role": "user", "content": "go"}
    before = encoding.encode([user])
    message = {
        "role": "assistant",
        "content": "so",
        "tool_calls": [called("f", '{"a":  "é"}', "functions.f:0")],
    }
    after = encoding.encode([user, message])
    drawn = after.token_ids[len(before.token_ids) : after.message_ends[-1]]
    parser = encoding.reply_parser(before)
    reply = collect_reply([parser.feed(news) for news in stream(im_tool_tokenizer, drawn, [3, 9])])
    (call,) = reply.tool_calls
    assert (reply.content, call.id, call.name, call.arguments) == ("so", "functions.f:0", "f", '{"a":  "é"}')


def test_ids_that_a_model_repeats_are_told_apart(im_tool_tokenizer: Tokenizer) -> None:
    encoding = chat_encoding("kimi_linear", im_tool_tokenizer)
    calls = [called("f", "{}", "functions.f:0"), called("f", "{}", "functions.f:0")]
    prompt = encoding.encode([{"role": "assistant", "content": "", "tool_calls": calls}])
    parser = encoding.reply_parser(encoding.encode([{"role": "user", "content": "a"}]))
    ids = prompt.token_ids[3 : prompt.message_ends[-1]]
    reply = collect_reply([parser.feed(news) for news in stream(im_tool_tokenizer, ids, [])])
    first, second = (call.id for call in reply.tool_calls)
    assert first == "functions.f:0"
    assert second != first


def test_an_unknown_family_is_refused(im_tokenizer: Tokenizer) -> None:
    with pytest.raises(ConfigError, match="'llama' has no chat encoding"):
        chat_encoding("llama", im_tokenizer)
