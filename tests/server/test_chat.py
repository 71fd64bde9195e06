"""/v1/chat/completions through OpenAI's own client."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from openai import OpenAI
from openai.types.chat import ChatCompletionChunk

from tests.server.scripted_server import END_OF_REPLY, MODEL, ServedEngine

MESSAGES: Any = [{"role": "user", "content": "What is the code for amber?"}]
NO_THINKING = {"chat_template_kwargs": {"thinking": False}}


def stream(client: OpenAI, **options: Any) -> list[ChatCompletionChunk]:
    options = {"extra_body": NO_THINKING} | options
    return list(client.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True, **options))


def test_whole_reply(served: ServedEngine, client: OpenAI) -> None:
    served.script.write(f"It is 7412.{END_OF_REPLY}")
    reply = client.chat.completions.create(model=MODEL, messages=MESSAGES, extra_body=NO_THINKING)
    assert reply.object == "chat.completion"
    assert reply.id.startswith("chatcmpl-")
    assert reply.model == MODEL
    assert reply.system_fingerprint == "milepost-test"
    choice = reply.choices[0]
    assert (choice.index, choice.finish_reason, choice.logprobs) == (0, "stop", None)
    assert choice.message.role == "assistant"
    assert choice.message.content == "It is 7412."
    assert choice.message.tool_calls is None
    assert reply.usage is not None
    assert reply.usage.completion_tokens == len(served.script.tokens)
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens
    assert reply.usage.prompt_tokens_details is not None
    assert reply.usage.prompt_tokens_details.cached_tokens == 0


def test_stream(served: ServedEngine, client: OpenAI) -> None:
    served.script.write(f"Grüße aus 中国.{END_OF_REPLY}")
    chunks = stream(client)
    assert len({chunk.id for chunk in chunks}) == 1
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [chunk.choices[0].delta.role for chunk in chunks[1:]] == [None] * (len(chunks) - 1)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "Grüße aus 中国."
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None] * (len(chunks) - 1) + ["stop"]
    assert all(chunk.usage is None for chunk in chunks)


def test_stream_with_usage(served: ServedEngine, client: OpenAI) -> None:
    served.script.write(f"Yes.{END_OF_REPLY}")
    chunks = stream(client, stream_options={"include_usage": True})
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == len(served.script.tokens)
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert all(chunk.usage is None for chunk in chunks[:-1])


@pytest.mark.parametrize("limit", ["max_tokens", "max_completion_tokens"])
def test_length_is_the_true_finish_reason(served: ServedEngine, client: OpenAI, limit: str) -> None:
    served.script.write(f"A long reply.{END_OF_REPLY}")
    chunks = stream(client, **{limit: 6})
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "A long"
    assert chunks[-1].choices[0].finish_reason == "length"


@pytest.mark.parametrize("stop", ["par", ["xyz", "par"]])
def test_stop_string(served: ServedEngine, client: OpenAI, stop: str | list[str]) -> None:
    served.script.write(f"one part of it{END_OF_REPLY}")
    chunks = stream(client, stop=stop)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "one "
    assert chunks[-1].choices[0].finish_reason == "stop"


def test_reasoning_is_apart_from_content(served: ServedEngine, client: OpenAI) -> None:
    served.script.write(f"Hm.<|close|>think<|sep|><|open|>response<|sep|>Yes.{END_OF_REPLY}")
    thinking = {"chat_template_kwargs": {"thinking": True}}
    reply = client.chat.completions.create(model=MODEL, messages=MESSAGES, extra_body=thinking)
    message = reply.choices[0].message.model_dump()
    assert (message["reasoning_content"], message["content"]) == ("Hm.", "Yes.")
    deltas = [chunk.choices[0].delta.model_dump() for chunk in stream(client, extra_body=thinking)]
    assert "".join(delta.get("reasoning_content") or "" for delta in deltas) == "Hm."
    assert "".join(delta["content"] or "" for delta in deltas) == "Yes."


TOOLS: Any = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
TOOL_REPLY = (
    '<|close|>response<|sep|><|open|>tools<|sep|><|open|>call tool="add" index="1"<|sep|>'
    '<|open|>argument key="a" type="number"<|sep|>2<|close|>argument<|sep|><|close|>call<|sep|>'
    "<|close|>tools<|sep|><|close|>message<|sep|><|end_of_msg|>"
)


def test_tool_call(served: ServedEngine, client: OpenAI) -> None:
    served.script.write(TOOL_REPLY)
    reply = client.chat.completions.create(
        model=MODEL, messages=MESSAGES, tools=TOOLS, extra_body=NO_THINKING
    )
    choice = reply.choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    assert choice.message.tool_calls is not None
    call = choice.message.tool_calls[0]
    assert call.type == "function"
    assert (call.function.name, json.loads(call.function.arguments)) == ("add", {"a": 2})


@pytest.mark.parametrize(("stop", "reason"), [("2", "stop"), ("all", "stop"), ("message", "tool_calls")])
def test_a_call_that_a_stop_string_cuts_off_is_none_to_be_made(
    served: ServedEngine, client: OpenAI, stop: str, reason: str
) -> None:
    served.script.write(TOOL_REPLY)
    reply = client.chat.completions.create(
        model=MODEL, messages=MESSAGES, tools=TOOLS, stop=stop, extra_body=NO_THINKING
    )
    assert reply.choices[0].finish_reason == reason
    served.script.write(TOOL_REPLY)
    assert stream(client, tools=TOOLS, stop=stop)[-1].choices[0].finish_reason == reason


def test_streamed_tool_call(served: ServedEngine, client: OpenAI) -> None:
    served.script.write(TOOL_REPLY)
    chunks = stream(client, tools=TOOLS)
    calls = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or ()]
    first, *rest = calls
    assert first.id is not None
    assert first.function is not None
    assert (first.index, first.type, first.function.name) == (0, "function", "add")
    assert rest, "the arguments come as they are written"
    assert {(call.index, call.id, call.type) for call in rest} == {(0, None, None)}
    pieces = [call.function.arguments or "" for call in calls if call.function]
    assert json.loads("".join(pieces)) == {"a": 2}
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


def test_logprobs(served: ServedEngine, client: OpenAI) -> None:
    served.script.write(f"é{END_OF_REPLY}")
    reply = client.chat.completions.create(
        model=MODEL, messages=MESSAGES, logprobs=True, top_logprobs=1, extra_body=NO_THINKING
    )
    logprobs = reply.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert len(logprobs.content) == len(served.script.tokens)
    # Half a character has no text of its own; its bytes are exact.
    assert [entry.bytes for entry in logprobs.content[:2]] == [[0xC3], [0xA9]]
    assert logprobs.content[2].token == "<|close|>"
    assert logprobs.content[0].top_logprobs[0].bytes == [0xC3]
    assert logprobs.content[0].logprob == 0.0


def test_streamed_logprobs_cover_every_token_once(served: ServedEngine, client: OpenAI) -> None:
    served.script.write(f"né{END_OF_REPLY}")
    chunks = stream(client, logprobs=True)
    tokens = [
        entry.bytes
        for chunk in chunks
        if (found := chunk.choices[0].logprobs)
        for entry in found.content or ()
    ]
    assert len(tokens) == len(served.script.tokens)
    assert tokens[:3] == [[ord("n")], [0xC3], [0xA9]]


def test_sampling_fields_reach_the_executor(served: ServedEngine, client: OpenAI) -> None:
    served.script.write(f"Yes.{END_OF_REPLY}")
    extra = NO_THINKING | {"top_k": 5, "min_p": 0.1, "repetition_penalty": 1.1, "stop_token_ids": [7]}
    client.chat.completions.create(
        model=MODEL,
        messages=MESSAGES,
        temperature=0.5,
        top_p=0.9,
        presence_penalty=0.3,
        frequency_penalty=-0.2,
        seed=42,
        max_tokens=100,
        extra_body=extra,
    )
    (request,) = served.executor.batches[0].new_requests
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0.5, 0.9, 5, 0.1)
    assert (sampling.presence_penalty, sampling.frequency_penalty) == (0.3, -0.2)
    assert (sampling.repetition_penalty, sampling.seed, sampling.max_tokens) == (1.1, 42, 100)
    assert 7 in sampling.stop_token_ids


def test_ignore_eos_runs_past_the_end_of_the_message(served: ServedEngine, client: OpenAI) -> None:
    served.script.write(f"Yes.{END_OF_REPLY}")
    reply = client.chat.completions.create(
        model=MODEL, messages=MESSAGES, max_tokens=60, extra_body=NO_THINKING | {"ignore_eos": True}
    )
    assert reply.choices[0].finish_reason == "length"
    assert reply.usage is not None
    assert reply.usage.completion_tokens == 60


def test_a_failed_request_is_an_error_and_the_next_one_runs(served: ServedEngine, client: OpenAI) -> None:
    served.script.write(f"Yes.{END_OF_REPLY}")
    served.executor.fail_next = "The logits are not finite."
    with pytest.raises(openai.InternalServerError, match="not finite"):
        client.chat.completions.create(model=MODEL, messages=MESSAGES, extra_body=NO_THINKING)
    served.executor.fail_next = "The logits are not finite."
    with pytest.raises(openai.APIError, match="not finite"):
        stream(client)
    reply = client.chat.completions.create(model=MODEL, messages=MESSAGES, extra_body=NO_THINKING)
    assert reply.choices[0].message.content == "Yes."
    served.wait_until_idle()
