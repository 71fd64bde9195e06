"""Several choices of one prompt: `n`, their seeds, their token counts, and how streams interleave."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from openai import OpenAI

from milepost.server import ServerConfig
from milepost.server.endpoints.generation import choice_requests
from milepost.server.protocol.sampling_fields import seed_of_choice
from milepost.types import Request, SamplingParams
from tests.server.scripted_server import END_OF_REPLY, MODEL, ServedEngine, serving

MESSAGES: Any = [{"role": "user", "content": "hi"}]
NO_THINKING = {"chat_template_kwargs": {"thinking": False}}


def news(served: ServedEngine) -> list[Any]:
    """What the executor was told of each request, by id."""
    found = [request for batch in served.executor.batches for request in batch.new_requests]
    return sorted(found, key=lambda request: request.request_id)


def test_a_chat_has_as_many_choices_as_asked_for(served: ServedEngine, client: OpenAI) -> None:
    served.script.write(f"Yes.{END_OF_REPLY}")
    reply = client.chat.completions.create(model=MODEL, messages=MESSAGES, n=3, extra_body=NO_THINKING)
    assert [choice.index for choice in reply.choices] == [0, 1, 2]
    assert [choice.message.content for choice in reply.choices] == ["Yes."] * 3
    assert reply.usage is not None
    assert reply.usage.completion_tokens == 3 * len(served.script.tokens)
    assert reply.usage.prompt_tokens == len(news(served)[0].prompt_token_ids)
    assert served.front_is_idle()


def test_streams_of_choices_interleave(served: ServedEngine, client: OpenAI) -> None:
    served.executor.seconds = 0.002
    served.script.write(f"A longer reply.{END_OF_REPLY}")
    chunks = list(
        client.chat.completions.create(
            model=MODEL,
            messages=MESSAGES,
            n=2,
            stream=True,
            stream_options={"include_usage": True},
            extra_body=NO_THINKING,
        )
    )
    order = [choice.index for chunk in chunks for choice in chunk.choices]
    assert order.index(1) < len(order) - 1 - order[::-1].index(0)
    for index in (0, 1):
        choices = [choice for chunk in chunks for choice in chunk.choices if choice.index == index]
        assert "".join(choice.delta.content or "" for choice in choices) == "A longer reply."
        assert [choice.delta.role for choice in choices].count("assistant") == 1
        assert [choice.finish_reason for choice in choices] == [None] * (len(choices) - 1) + ["stop"]
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 2 * len(served.script.tokens)


def test_choices_of_several_prompts(served: ServedEngine, client: OpenAI) -> None:
    served.script.write("!")
    reply = client.completions.create(model=MODEL, prompt=["ab", "c"], n=2, echo=True)
    assert [(choice.index, choice.text) for choice in reply.choices] == [
        (0, "ab!"),
        (1, "ab!"),
        (2, "c!"),
        (3, "c!"),
    ]
    assert reply.usage is not None
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens) == (3, 8)


def test_each_choice_of_a_seeded_request_has_a_seed_of_its_own(served: ServedEngine, client: OpenAI) -> None:
    client.completions.create(model=MODEL, prompt="a", n=3, seed=7)
    seeds = [request.sampling.seed for request in news(served)]
    assert seeds[0] == 7
    assert len(set(seeds)) == 3
    assert seeds == [seed_of_choice(7, choice) for choice in range(3)]


def test_seeds_do_not_collide_for_neighbours() -> None:
    seeds = {seed_of_choice(seed, choice) for seed in range(-20, 20) for choice in range(1, 20)}
    assert len(seeds) == 40 * 19
    assert all(seed is not None and -(1 << 63) <= seed < 1 << 63 for seed in seeds)
    assert seed_of_choice(None, 3) is None


def test_the_first_choice_is_the_request_alone() -> None:
    request = Request(request_id="r", prompt_token_ids=(1,), sampling=SamplingParams(seed=5))
    assert choice_requests(request, 1) == [request]
    first, second = choice_requests(request, 2)
    assert first.sampling == request.sampling
    assert second.request_id != first.request_id


def test_cached_tokens_are_those_that_no_choice_computed(served: ServedEngine, client: OpenAI) -> None:
    served.script.write("!")
    prompt = "x" * 100
    first = client.completions.create(model=MODEL, prompt=prompt, n=2)
    assert first.usage is not None
    assert first.usage.prompt_tokens_details is not None
    assert first.usage.prompt_tokens_details.cached_tokens == 0
    again = client.completions.create(model=MODEL, prompt=prompt, n=2)
    assert again.usage is not None
    assert again.usage.prompt_tokens_details is not None
    assert 0 < (again.usage.prompt_tokens_details.cached_tokens or 0) < 100


def test_a_failed_choice_fails_the_request_and_frees_the_others(served: ServedEngine, client: OpenAI) -> None:
    served.executor.seconds = 0.002
    served.script.tokens = [ord("x")] * 100
    served.executor.fail_next = "The logits are not finite."
    with pytest.raises(openai.InternalServerError, match="not finite"):
        client.completions.create(model=MODEL, prompt="a", n=3, max_tokens=100)
    served.wait_until_idle()
    assert served.front_is_idle()


def test_usage_in_every_chunk(served: ServedEngine, client: OpenAI) -> None:
    served.script.write(f"Yes.{END_OF_REPLY}")
    options: Any = {"include_usage": True, "continuous_usage_stats": True}
    chunks = list(
        client.chat.completions.create(
            model=MODEL, messages=MESSAGES, stream=True, stream_options=options, extra_body=NO_THINKING
        )
    )
    counts = [chunk.usage.completion_tokens for chunk in chunks if chunk.usage is not None]
    assert len(counts) == len(chunks)
    assert counts == sorted(counts)
    assert (counts[0], counts[-1]) == (0, len(served.script.tokens))


@pytest.mark.parametrize("stream", [False, True])
def test_tokens_of_reasoning_are_counted_apart(served: ServedEngine, client: OpenAI, stream: bool) -> None:
    thought = "Häm"
    served.script.write(f"{thought}<|close|>think<|sep|><|open|>response<|sep|>Yes.{END_OF_REPLY}")
    asked: Any = {"model": MODEL, "messages": MESSAGES, "n": 2}
    if stream:
        asked |= {"stream": True, "stream_options": {"include_usage": True}}
        usage = list(client.chat.completions.create(**asked))[-1].usage
    else:
        usage = client.chat.completions.create(**asked).usage
    assert usage is not None
    assert usage.completion_tokens_details is not None
    assert usage.completion_tokens_details.reasoning_tokens == 2 * len(thought.encode())


def test_a_reply_without_thinking_has_no_reasoning_tokens(served: ServedEngine, client: OpenAI) -> None:
    served.script.write(f"Yes.{END_OF_REPLY}")
    usage = client.chat.completions.create(model=MODEL, messages=MESSAGES, extra_body=NO_THINKING).usage
    assert usage is not None
    assert usage.completion_tokens_details is not None
    assert usage.completion_tokens_details.reasoning_tokens == 0


def test_token_ids_on_request(served: ServedEngine) -> None:
    served.script.write(f"Yes.{END_OF_REPLY}")
    body = {"messages": MESSAGES, "return_token_ids": True} | NO_THINKING
    reply = served.call("/v1/chat/completions", body).json
    assert reply["choices"][0]["token_ids"] == served.script.tokens
    assert reply["prompt_token_ids"] == list(news(served)[0].prompt_token_ids)
    events = served.events("/v1/chat/completions", body | {"stream": True})
    streamed = [token for event in events for token in event["choices"][0].get("token_ids", [])]
    assert streamed == served.script.tokens
    assert events[0]["prompt_token_ids"] == reply["prompt_token_ids"]
    served.script.write("ab")
    completion = served.call("/v1/completions", {"prompt": [5, 6], "return_token_ids": True}).json
    choice = completion["choices"][0]
    assert (choice["prompt_token_ids"], choice["token_ids"][:2]) == ([5, 6], [97, 98])


@pytest.mark.parametrize("field", ["echo", "return_token_ids"])
def test_prompts_are_not_repeated_without_end(field: str) -> None:
    with serving(ServerConfig(max_body="4KiB", drain_seconds=5)) as served:
        body = {"prompt": "x" * 100, "n": 40, field: True, "max_tokens": 1}
        if field == "echo":
            body |= {"n": 41}
        reply = served.call("/v1/completions", body)
        assert (reply.status, reply.error["param"]) == (400, field)
        assert served.call("/v1/completions", body | {"n": 4}).status == 200


def test_echo_in_a_stream(served: ServedEngine, client: OpenAI) -> None:
    served.script.write("def")
    chunks = client.completions.create(model=MODEL, prompt="abc", echo=True, stream=True)
    assert "".join(choice.text for chunk in chunks for choice in chunk.choices) == "abcdef"
    reply = client.completions.create(model=MODEL, prompt=[97, 98], echo=True)
    assert reply.choices[0].text == "abdef"
