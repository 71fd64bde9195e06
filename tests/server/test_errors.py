"""Every refusal is an error body in OpenAI's shape that names the field at fault."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from openai import OpenAI

from milepost.server import ServerConfig
from tests.server.scripted_server import MAX_MODEL_LEN, MODEL, ServedEngine

CHAT = "/v1/chat/completions"
USER: Any = {"role": "user", "content": "hi"}


def chat(**fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": [USER]} | fields


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"n": True}, "n"),
        ({"logit_bias": {"a": 1}}, "logit_bias"),
        ({"logit_bias": {"-5": 1}}, "logit_bias"),
        ({"logit_bias": {"5": 101}}, "logit_bias"),
        ({"logit_bias": {"5": "1"}}, "logit_bias[...]"),
        ({"min_tokens": -1}, "min_tokens"),
        ({"min_tokens": 5, "max_tokens": 4}, "min_tokens"),
        ({"priority": 1 << 40}, "priority"),
        ({"timeout": 0}, "timeout"),
        ({"guided_regex": "a", "guided_choice": ["a"]}, "guided_choice"),
        ({"response_format": {"type": "json_object"}, "guided_json": {}}, "guided_json"),
        ({"guided_json": "{"}, "guided_json"),
        ({"guided_choice": []}, "guided_choice"),
        ({"structured_outputs": {"json": {}, "regex": "a"}}, "structured_outputs.regex"),
        ({"structured_outputs": {"jsn": {}}}, "structured_outputs.jsn"),
        ({"chat_template": "{{ messages }}"}, "chat_template"),
        ({"add_generation_prompt": False}, "add_generation_prompt"),
        ({"continue_final_message": True}, "continue_final_message"),
        ({"include_stop_str_in_output": True}, "include_stop_str_in_output"),
        ({"skip_special_tokens": False}, "skip_special_tokens"),
        ({"prompt_logprobs": 1}, "prompt_logprobs"),
        ({"bad_words": ["x"]}, "bad_words"),
        ({"metadata": {"a": 1}}, "metadata"),
        ({"metadata": {str(i): "" for i in range(17)}}, "metadata"),
        ({"verbosity": "high"}, "verbosity"),
        ({"request_id": "r"}, "request_id"),
        (
            {"stream": True, "stream_options": {"include_obfuscation": True}},
            "stream_options.include_obfuscation",
        ),
        (
            {"reasoning_effort": "none", "chat_template_kwargs": {"thinking": True}},
            "reasoning_effort",
        ),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"audio": {"voice": "x"}}, "audio"),
        ({"store": True}, "store"),
        ({"service_tier": "flex"}, "service_tier"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"web_search_options": {}}, "web_search_options"),
        ({"user": 5}, "user"),
        ({"temprature": 0}, "temprature"),
        ({"best_of": 1}, "best_of"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": -1}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.5}, "top_p"),
        ({"presence_penalty": 3}, "presence_penalty"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 2.5}, "max_tokens"),
        ({"max_tokens": 1, "max_completion_tokens": 2}, "max_completion_tokens"),
        ({"seed": 1 << 70}, "seed"),
        ({"stop": ["a"] * 17}, "stop"),
        ({"stop": [""]}, "stop"),
        ({"stop": "x" * 4097}, "stop"),
        ({"stop_token_ids": [3, -1]}, "stop_token_ids"),
        ({"top_k": -2}, "top_k"),
        ({"reasoning_effort": "x"}, "reasoning_effort"),
        ({"reasoning_effort": "low", "chat_template_kwargs": {"thinking": False}}, "reasoning_effort"),
        ({"stop": [1]}, "stop[0]"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": {"include_use": True}}, "stream_options.include_use"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logprobs": 2}, "logprobs"),
        ({"chat_template_kwargs": {"think": True}}, "chat_template_kwargs.think"),
        ({"chat_template_kwargs": {"thinking": 1}}, "chat_template_kwargs.thinking"),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [{"role": "robot", "content": "hi"}]}, "messages[0].role"),
        (
            {"messages": [USER, {"role": "user", "content": [{"type": "image_url"}]}]},
            "messages[1].content[0].type",
        ),
        ({"messages": [USER | {"weight": 1}]}, "messages[0].weight"),
        ({"messages": [{"role": "assistant", "tool_calls": {}}]}, "messages[0].tool_calls"),
        ({"messages": [{"role": "assistant", "reasoning": 0}]}, "messages[0].reasoning"),
        (
            {"messages": [{"role": "assistant", "reasoning": "a", "reasoning_content": False}]},
            "messages[0].reasoning_content",
        ),
        ({"tools": [{"type": "code"}]}, "tools[0].type"),
    ],
    ids=str,
)
def test_a_field_at_fault_is_named(shared: ServedEngine, fields: dict[str, Any], param: str) -> None:
    reply = shared.call(CHAT, chat(**fields))
    assert reply.status == 400, reply.body
    assert reply.error["param"] == param
    assert reply.error["type"] == "invalid_request_error"
    assert param.rpartition(".")[2] in str(reply.error["message"])


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"reasoning_effort": "huge"}, "reasoning_effort"),
        ({"reasoning_effort": "low", "chat_template_kwargs": {"thinking": False}}, "reasoning_effort"),
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
        ({"messages": [{"role": "user", "content": "a" * MAX_MODEL_LEN}]}, "messages"),
    ],
    ids=["reasoning_effort", "without thinking", "max_completion_tokens", "messages"],
)
def test_what_the_engine_calls_otherwise_is_refused_by_the_clients_name(
    shared: ServedEngine, fields: dict[str, Any], param: str
) -> None:
    reply = shared.call(CHAT, chat(**fields))
    assert (reply.status, reply.error["param"]) == (400, param)
    if param != "messages":
        assert str(reply.error["message"]).startswith(f"{param} ")


@pytest.mark.parametrize("field", ["messages"])
def test_a_missing_field_is_named(shared: ServedEngine, field: str) -> None:
    body = chat()
    del body[field]
    reply = shared.call(CHAT, body)
    assert (reply.status, reply.error["param"], reply.error["code"]) == (400, field, "missing_parameter")


def test_a_near_miss_gets_a_hint(shared: ServedEngine) -> None:
    assert "'temperature'" in str(shared.call(CHAT, chat(temprature=0)).error["message"])


@pytest.mark.parametrize(
    "fields",
    [
        {"n": 1, "user": "ann", "logit_bias": None, "response_format": {"type": "text"}, "store": False},
        {"metadata": {"team": "a"}, "safety_identifier": "s", "prompt_cache_retention": "in_memory"},
        {"reasoning_effort": "none", "add_special_tokens": False, "skip_special_tokens": True, "echo": False},
        {"stream": True, "stream_options": {"include_obfuscation": False}, "min_tokens": 0, "priority": -3},
        {"logit_bias": {"5": 1.5}, "timeout": 60, "guided_json": None, "return_token_ids": True},
        {"logit_bias": {}, "modalities": ["text"], "parallel_tool_calls": True, "service_tier": "auto"},
        {"max_tokens": None, "stop": None, "seed": None, "tools": None, "tool_choice": "none"},
        {"metadata": {}, "prompt_cache_key": "k", "verbosity": "medium", "functions": []},
        {"top_k": -1, "temperature": 1},
    ],
    ids=str,
)
def test_a_field_that_asks_for_nothing_is_accepted(shared: ServedEngine, fields: dict[str, Any]) -> None:
    assert shared.call(CHAT, chat(**fields)).status == 200


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"echo": True, "logprobs": 1}, "echo"),
        ({"best_of": 3}, "best_of"),
        ({"n": 2, "best_of": 3}, "best_of"),
        ({"n": 2, "prompt": ["a"] * 65}, "n"),
        ({"prompt": ["a"] * 129}, "prompt"),
        ({"prompt": [[1]] * 129}, "prompt"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {}}},
            "response_format.json_schema.name",
        ),
        ({"suffix": "x"}, "suffix"),
        ({"logprobs": 21}, "logprobs"),
    ],
    ids=str,
)
def test_completion_fields_at_fault(shared: ServedEngine, fields: dict[str, Any], param: str) -> None:
    reply = shared.call("/v1/completions", {"model": MODEL, "prompt": "a"} | fields)
    assert (reply.status, reply.error["param"]) == (400, param)


@pytest.mark.parametrize("body", [b"", b"{", b"{'a': 1}", b'{"model": NaN}', b"\xff\xfe", b'{"a": "\xff"}'])
def test_what_is_not_json(shared: ServedEngine, body: bytes) -> None:
    reply = shared.call(CHAT, body, method="POST")
    assert (reply.status, reply.error["code"]) == (400, "invalid_json")


def nested(levels: int, *, closed: bool = True) -> str:
    return "[" * levels + ("]" * levels if closed else "")


@pytest.mark.parametrize(
    "text",
    [
        nested(100_000, closed=False),
        '{"a":' * 100_000,
        '{"model": ' + nested(5_000) + "}",
        *('{"response_format": ' + nested(levels) + "}" for levels in (100, 940, 960, 970, 980, 990)),
    ],
    ids=lambda text: f"{len(text)} characters",
)
def test_json_that_is_nested_too_deep(
    shared: ServedEngine, caplog: pytest.LogCaptureFixture, text: str
) -> None:
    reply = shared.call(CHAT, text.encode())
    assert (reply.status, reply.error["code"]) == (400, "invalid_json")
    assert "nest at most 100" in str(reply.error["message"])
    assert not caplog.records


def test_tools_may_be_nested_as_deep_as_the_limit(shared: ServedEngine) -> None:
    schema: Any = {}
    for _ in range(90):
        schema = {"items": schema}
    tools = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
    reply = shared.call(CHAT, chat(tools=tools))
    assert reply.error["code"] == "context_length_exceeded"  # the small context's fault alone


@pytest.mark.parametrize(
    "fields",
    [
        {"model": "x" * 3_000_000},
        {"x" * 3_000_000: 1},
        {"stop": "x" * 3_000_000},
        {"response_format": "x" * 3_000_000},
        {"tool_choice": "x" * 3_000_000},
        {"messages": [{"role": "x" * 3_000_000}]},
        {"messages": [USER | {"x" * 3_000_000: 1}]},
        {"chat_template_kwargs": {"x" * 3_000_000: 1}},
    ],
    ids=lambda fields: next(iter(fields))[:20],
)
def test_an_error_quotes_little_of_what_was_given(shared: ServedEngine, fields: dict[str, Any]) -> None:
    reply = shared.call(CHAT, chat(**fields))
    assert reply.status in {400, 404}
    assert len(reply.body) < 2000
    assert reply.error["message"]


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 100_000,
        b'{"model": "scripted", "messages": [], "tools": [' + b'{"a":' * 900 + b"1" + b"}" * 900 + b"]}",
        b'{"model": "scripted", "messages": [{"role": "user", "content": "a"}], "tools": '
        b'[{"type": "function", "function": {"name": "f", "parameters": '
        + b'{"a":' * 900
        + b"1"
        + b"}" * 900
        + b"}}]}",
    ],
    ids=["no JSON", "refused anyway", "read, but not to be written"],
)
def test_nesting_without_end_is_a_bad_request(shared: ServedEngine, body: bytes) -> None:
    reply = shared.call(CHAT, body)
    assert reply.status == 400
    assert reply.error["type"] == "invalid_request_error"


@pytest.mark.parametrize("body", [b"[]", b"5", b'"x"', b"null"])
def test_json_that_is_no_object(shared: ServedEngine, body: bytes) -> None:
    reply = shared.call(CHAT, body)
    assert (reply.status, reply.error["code"]) == (400, "invalid_type")


def test_another_content_type(shared: ServedEngine) -> None:
    reply = shared.call(CHAT, b"{}", headers={"Content-Type": "text/plain"})
    assert (reply.status, reply.error["code"]) == (415, "unsupported_media_type")


def test_a_body_over_the_limit(shared: ServedEngine) -> None:
    limit = ServerConfig().max_body_bytes
    reply = shared.call(CHAT, b" " * (limit + 1))
    assert (reply.status, reply.error["code"]) == (413, "body_too_large")
    assert str(limit) in str(reply.error["message"])


def test_no_such_path(shared: ServedEngine) -> None:
    reply = shared.call("/v1/embeddings", {})
    assert (reply.status, reply.error["code"]) == (404, "not_found")


@pytest.mark.parametrize("path", ["/health/", "/v1/chat/completions/", "/v1/models//", "/metrics/"])
def test_no_one_is_sent_to_another_address(shared: ServedEngine, path: str) -> None:
    """It would be of the client's own choosing, and without TLS behind a gateway that has it."""
    reply = shared.call(path, headers={"Host": "127.0.0.2"})
    assert reply.status == 404
    assert reply.error["code"] in {"not_found", "model_not_found"}
    assert "location" not in {name.lower() for name in reply.headers}


def test_no_such_method(shared: ServedEngine) -> None:
    reply = shared.call(CHAT)
    assert (reply.status, reply.error["code"]) == (405, "method_not_allowed")
    assert reply.headers["allow"] == "POST"


def test_another_model(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="other", messages=[USER])
    assert (caught.value.code, caught.value.param) == ("model_not_found", "model")


def test_a_prompt_over_the_context(client: OpenAI) -> None:
    messages: Any = [{"role": "user", "content": "x" * 2000}]
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=MODEL, messages=messages)
    assert caught.value.code == "context_length_exceeded"


def test_an_engine_that_failed(served: ServedEngine, client: OpenAI) -> None:
    served.executor.crash(RuntimeError("device lost"))
    with pytest.raises(openai.InternalServerError) as caught:
        client.chat.completions.create(model=MODEL, messages=[USER])
    assert "device lost" in str(caught.value)
    reply = served.call("/health")
    assert (reply.status, reply.error["type"]) == (503, "service_unavailable_error")
    assert served.call(CHAT, chat()).status == 503


def test_an_unforeseen_exception_tells_the_client_nothing_of_it(
    served: ServedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("secret detail")

    monkeypatch.setattr(served.services.encoding, "encode", fail)
    reply = served.call(CHAT, chat())
    assert (reply.status, reply.error["code"]) == (500, "internal_error")
    assert b"secret" not in reply.body
    assert served.front_is_idle()
