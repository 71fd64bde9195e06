"""Every field of OpenAI's own client is known by name, and hostile values are refused, never a 500."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from openai.types import completion_create_params
from openai.types.chat import chat_completion_stream_options_param
from openai.types.chat import completion_create_params as chat_params

from milepost.server.protocol.error_codes import ErrorCode
from milepost.server.protocol.fields import HarmlessValues
from milepost.server.protocol.requests import (
    CHAT_HARMLESS,
    COMPLETION_HARMLESS,
    ChatRequest,
    CompletionRequest,
)
from milepost.server.protocol.sampling_fields import StreamOptions
from tests.server.scripted_server import MODEL, ServedEngine

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
MESSAGES: Any = [{"role": "user", "content": "hi"}]
ENDPOINTS = [
    (CHAT, chat_params, ChatRequest, CHAT_HARMLESS),
    (COMPLETIONS, completion_create_params, CompletionRequest, COMPLETION_HARMLESS),
]

# vLLM's request fields beyond OpenAI's, of both endpoints; those of one alone follow.
VLLM_FIELDS = {
    "use_beam_search", "top_k", "min_p", "repetition_penalty", "length_penalty", "stop_token_ids",
    "include_stop_str_in_output", "ignore_eos", "min_tokens", "skip_special_tokens",
    "spaces_between_special_tokens", "truncate_prompt_tokens", "prompt_logprobs", "allowed_token_ids",
    "bad_words", "add_special_tokens", "response_format", "structured_outputs", "guided_json",
    "guided_regex", "guided_choice", "guided_grammar", "guided_decoding_backend",
    "guided_whitespace_pattern", "priority", "request_id", "logits_processors",
    "return_tokens_as_token_ids", "return_token_ids", "cache_salt", "kv_transfer_params", "vllm_xargs",
}  # fmt: skip
VLLM_CHAT_FIELDS = {
    "echo", "add_generation_prompt", "continue_final_message", "documents", "chat_template",
    "chat_template_kwargs", "mm_processor_kwargs", "include_reasoning", "thinking_token_budget",
}  # fmt: skip


@pytest.mark.parametrize(("path", "params", "kind", "harmless"), ENDPOINTS, ids=["chat", "completions"])
def test_every_field_of_openai_is_implemented_or_refused_by_name(
    shared: ServedEngine, path: str, params: Any, kind: type[msgspec.Struct], harmless: HarmlessValues
) -> None:
    fields = set(params.CompletionCreateParamsBase.__annotations__) | {"stream"}
    assert {"model", "stop", "logit_bias"} < fields
    assert fields <= set(kind.__struct_fields__) | set(harmless)
    start = {"messages": MESSAGES} if path == CHAT else {"prompt": "a"}
    for field in fields & set(harmless):
        reply = shared.call(path, start | {field: ["no such value"]})
        assert (reply.status, reply.error["code"]) == (400, "unsupported_parameter")
        assert reply.error["param"] == field


@pytest.mark.parametrize(("path", "params", "kind", "harmless"), ENDPOINTS, ids=["chat", "completions"])
def test_every_field_of_vllm_is_implemented_or_refused_by_name(
    path: str, params: Any, kind: type[msgspec.Struct], harmless: HarmlessValues
) -> None:
    fields = VLLM_FIELDS | (VLLM_CHAT_FIELDS if path == CHAT else {"prompt_embeds"})
    assert fields <= set(kind.__struct_fields__) | set(harmless)


def test_no_field_is_both_implemented_and_refused() -> None:
    for _, _, kind, harmless in ENDPOINTS:
        assert not set(kind.__struct_fields__) & set(harmless)


def test_every_stream_option_is_known() -> None:
    options = chat_completion_stream_options_param.ChatCompletionStreamOptionsParam.__annotations__
    assert set(options) <= set(StreamOptions.__struct_fields__)


def body(path: str, fields: str) -> bytes:
    """JSON text, to spell what Python's writer would not."""
    start = '"messages": [{"role": "user", "content": "a"}]' if path == CHAT else '"prompt": "a"'
    return f'{{{start}, "max_tokens": 1, {fields}}}'.encode()


NUMBERS = [
    "1e400",
    "-1e400",
    "1" + "0" * 30,
    "1" + "0" * 400,
    "1" + "0" * 5000,
    "NaN",
    "1e-400",
    "true",
    "0.1",
]
NUMERIC_FIELDS = [
    "max_tokens", "temperature", "top_p", "n", "presence_penalty", "frequency_penalty", "seed", "min_tokens",
    "top_k", "min_p", "repetition_penalty", "priority", "timeout",
]  # fmt: skip


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("field", NUMERIC_FIELDS)
def test_numbers_beyond_reason_are_no_failure(shared: ServedEngine, path: str, field: str) -> None:
    for number in NUMBERS:
        reply = shared.call(path, body(path, f'"{field}": {number}'))
        assert reply.status in {200, 400}, (number, reply.body)
        if reply.status == 400:
            assert len(reply.body) < 2000
            assert reply.error["code"] in set(ErrorCode)


@pytest.mark.parametrize(
    "fields",
    [
        '"logit_bias": {"5": 1e400}',
        '"logit_bias": {"99999999999999999999": 1}',
        '"logit_bias": {"9999999999999999999": 1}',
        '"logit_bias": {"\\u0665": 1}',
        '"logit_bias": {"\\ud800": 1}',
        '"stop_token_ids": [1' + "0" * 400 + "]",
        '"stop": "\\ud800"',
        '"stop": ["\\udc00x"]',
        '"cache_salt": "\\ud800"',
        '"user": "\\ud800"',
        '"guided_regex": "\\ud800"',
        '"guided_choice": ["\\ud800"]',
        '"guided_grammar": "\\ud800"',
        '"guided_json": {"const": "\\ud800"}',
        '"model": "\\ud800"',
        '"\\ud800": 1',
        '"response_format": {"type": "\\ud800"}',
        '"stream_options": {"\\ud800": 1}, "stream": true',
    ],
)
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_values_beyond_reason_are_no_failure(shared: ServedEngine, path: str, fields: str) -> None:
    reply = shared.call(path, body(path, fields))
    assert reply.status in {200, 400, 404}, reply.body
    json.loads(reply.body)


@pytest.mark.parametrize(
    "prompt",
    ["1e400", "[1e400]", "[1" + "0" * 400 + "]", "[[1" + "0" * 400 + "]]", '"\\ud800"', '["\\udc00"]'],
)
def test_prompts_beyond_reason_are_no_failure(shared: ServedEngine, prompt: str) -> None:
    reply = shared.call(COMPLETIONS, f'{{"prompt": {prompt}, "echo": true, "max_tokens": 1}}'.encode())
    assert reply.status in {200, 400}, reply.body
    json.loads(reply.body)


@pytest.mark.parametrize(
    "content", ['"\\ud800"', '[{"type": "text", "text": "\\udc00"}]', "1e400", "[[]]", '"a", "content": "b"']
)
def test_messages_beyond_reason_are_no_failure(shared: ServedEngine, content: str) -> None:
    text = f'{{"messages": [{{"role": "user", "content": {content}}}], "max_tokens": 1}}'
    assert shared.call(CHAT, text.encode()).status in {200, 400}


def test_the_last_of_two_equal_keys_counts(shared: ServedEngine) -> None:
    reply = shared.call(COMPLETIONS, body(COMPLETIONS, '"model": "other", "model": "scripted"'))
    assert reply.status == 200
    assert shared.call(COMPLETIONS, body(COMPLETIONS, '"model": "scripted", "model": "other"')).status == 404


def test_a_request_without_a_model_means_the_served_one(shared: ServedEngine) -> None:
    assert shared.call(CHAT, {"messages": MESSAGES}).json["model"] == MODEL
    assert shared.call(COMPLETIONS, {"prompt": "a", "model": None}).json["model"] == MODEL
