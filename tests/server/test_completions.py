"""/v1/completions through OpenAI's own client."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from openai import OpenAI

from tests.server.scripted_server import EOS, MAX_MODEL_LEN, MODEL, ServedEngine


def complete(client: OpenAI, prompt: Any = "abc", **options: Any) -> Any:
    return client.completions.create(model=MODEL, prompt=prompt, **options)


def test_whole(served: ServedEngine, client: OpenAI) -> None:
    served.script.write(" def")
    reply = complete(client)
    assert reply.object == "text_completion"
    assert reply.id.startswith("cmpl-")
    choice = reply.choices[0]
    assert (choice.index, choice.text, choice.finish_reason, choice.logprobs) == (0, " def", "stop", None)
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens) == (3, 5)


def test_sixteen_tokens_unless_asked_otherwise(served: ServedEngine, client: OpenAI) -> None:
    served.script.write("x" * 50)
    assert complete(client).choices[0].text == "x" * 16
    assert complete(client, max_tokens=20).choices[0].text == "x" * 20


@pytest.mark.parametrize(
    ("prompt", "sizes"),
    [
        ("abc", [3]),
        (["abc", "d"], [3, 1]),
        ([97, 98], [2]),
        ([[97, 98], [99]], [2, 1]),
    ],
)
def test_forms_of_a_prompt(served: ServedEngine, client: OpenAI, prompt: Any, sizes: list[int]) -> None:
    served.script.write("!")
    reply = complete(client, prompt)
    assert [choice.index for choice in reply.choices] == list(range(len(sizes)))
    assert [choice.text for choice in reply.choices] == ["!"] * len(sizes)
    assert reply.usage.prompt_tokens == sum(sizes)
    news = [request for batch in served.executor.batches for request in batch.new_requests]
    assert [len(request.prompt_token_ids) for request in news] == sizes


def test_stream_of_several_prompts(served: ServedEngine, client: OpenAI) -> None:
    served.script.write("né!")
    chunks = list(complete(client, ["a", "b"], stream=True, stream_options={"include_usage": True}))
    for index in (0, 1):
        choices = [choice for chunk in chunks for choice in chunk.choices if choice.index == index]
        assert "".join(choice.text for choice in choices) == "né!"
        assert [choice.finish_reason for choice in choices][-1] == "stop"
        assert not any(choice.finish_reason for choice in choices[:-1])
    assert chunks[-1].choices == []
    assert (chunks[-1].usage.prompt_tokens, chunks[-1].usage.completion_tokens) == (2, 10)


def test_stop_string(served: ServedEngine, client: OpenAI) -> None:
    served.script.write("one two three")
    choice = complete(client, stop=" two", max_tokens=50).choices[0]
    assert (choice.text, choice.finish_reason) == ("one", "stop")


def test_stop_token(served: ServedEngine, client: OpenAI) -> None:
    served.script.write("abcdef")
    choice = complete(client, extra_body={"stop_token_ids": [ord("d")]}).choices[0]
    assert choice.finish_reason == "stop"
    assert choice.text.startswith("abc")
    assert "e" not in choice.text


def test_logprobs(served: ServedEngine, client: OpenAI) -> None:
    served.script.write("aé")
    logprobs = complete(client, logprobs=1).choices[0].logprobs
    assert logprobs.tokens == ["a", "bytes:\\xc3", "bytes:\\xa9", "[EOS]"]
    assert logprobs.token_logprobs == [0.0] * 4
    assert logprobs.top_logprobs[0] == {"a": 0.0}
    assert logprobs.text_offset == [0, 1, 11, 21]


def test_streamed_logprobs_are_the_same(served: ServedEngine, client: OpenAI) -> None:
    served.script.write("aé")
    whole = complete(client, logprobs=0).choices[0].logprobs
    found = [
        choice.logprobs for chunk in complete(client, logprobs=0, stream=True) for choice in chunk.choices
    ]
    assert [token for part in found if part for token in part.tokens] == whole.tokens
    assert [offset for part in found if part for offset in part.text_offset] == whole.text_offset


def test_ignore_eos(served: ServedEngine, client: OpenAI) -> None:
    served.script.tokens = [EOS]
    choice = complete(client, max_tokens=9, extra_body={"ignore_eos": True}).choices[0]
    assert choice.finish_reason == "length"


@pytest.mark.parametrize(
    "prompt", ["", [], [[]], ["a", ""], [True], [1.5], ["a", 1], [[1], "a"], [300], [-1], [[5], [300]]]
)
def test_a_prompt_that_can_not_be_served(served: ServedEngine, client: OpenAI, prompt: Any) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        complete(client, prompt)
    assert caught.value.param == "prompt"
    assert served.front_is_idle()


def test_one_bad_prompt_of_several_starts_nothing(served: ServedEngine, client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        complete(client, ["a", "b" * MAX_MODEL_LEN])
    assert caught.value.code == "context_length_exceeded"
    assert str(MAX_MODEL_LEN) in str(caught.value)
    served.wait_until_idle()
    assert served.front_is_idle()


@pytest.mark.parametrize("token_id", [-1, 1 << 40])
def test_ids_without_a_text_are_not_echoed(served: ServedEngine, token_id: int) -> None:
    asked = {"model": MODEL, "prompt": [1, token_id, 2], "echo": True, "max_tokens": 2}
    reply = served.call("/v1/completions", asked)
    assert (reply.status, reply.error["param"]) == (400, "prompt")
