"""Kimi-Linear's prompts."""

from __future__ import annotations

from typing import Any

import pytest

from milepost.chat.encoding import ChatOptions
from milepost.chat.families import chat_encoding
from milepost.chat.tokenizer import Tokenizer
from milepost.errors import ConfigError, RequestError
from milepost.types import RequestOutput, Usage


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


def test_an_unknown_family_is_refused(im_tokenizer: Tokenizer) -> None:
    with pytest.raises(ConfigError, match="'llama' has no chat encoding"):
        chat_encoding("llama", im_tokenizer)
