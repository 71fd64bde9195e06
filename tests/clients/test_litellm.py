"""LiteLLM, by its provider for OpenAI's protocol and by that for vLLM, which sends fields of its own."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.clients.conftest import ANSWER, QUESTION, WEATHER, Server

pytestmark = [pytest.mark.clients, pytest.mark.filterwarnings("ignore")]

Complete = Callable[..., Any]
MESSAGES = [{"role": "user", "content": QUESTION}]


@pytest.fixture
def litellm(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # it would ask the network for prices
    return pytest.importorskip("litellm")


@pytest.fixture(params=["openai", "hosted_vllm"])
def asked(request: pytest.FixtureRequest, server: Server) -> dict[str, Any]:
    return {
        "model": f"{request.param}/{server.model}",
        "api_base": server.base,
        "api_key": "unused",
        "messages": MESSAGES,
        "temperature": 0,
        "max_tokens": 300,
        "num_retries": 0,
    }


def test_a_chat(litellm: Any, asked: dict[str, Any]) -> None:
    assert litellm.completion(**asked).choices[0].message.content == ANSWER
    assert asyncio.run(litellm.acompletion(**asked)).choices[0].message.content == ANSWER


def test_a_stream_with_its_usage(litellm: Any, asked: dict[str, Any]) -> None:
    chunks = list(litellm.completion(**asked, stream=True, stream_options={"include_usage": True}))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == ANSWER
    assert chunks[-1].usage.completion_tokens > 0


def test_a_tool_must_be_called(litellm: Any, asked: dict[str, Any]) -> None:
    (choice,) = litellm.completion(**asked, tools=[WEATHER], tool_choice="required").choices
    assert choice.message.tool_calls[0].function.name == "weather"
    assert choice.finish_reason == "tool_calls"


def test_a_structured_answer(litellm: Any, asked: dict[str, Any]) -> None:
    schema = {
        "type": "object",
        "properties": {"number": {"type": "integer", "minimum": 0, "maximum": 99999}},
        "required": ["number"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}
    content = litellm.completion(**asked, response_format=form).choices[0].message.content
    assert isinstance(json.loads(content)["number"], int)


def test_several_choices_logprobs_and_labels(litellm: Any, asked: dict[str, Any]) -> None:
    reply = litellm.completion(**asked, n=2, seed=3, user="ann", logprobs=True, top_logprobs=2)
    assert len(reply.choices) == 2
    assert reply.choices[0].logprobs.content[0].top_logprobs


@pytest.mark.parametrize("effort", ["low", "high"])
def test_an_effort_that_the_model_knows(litellm: Any, asked: dict[str, Any], effort: str) -> None:
    assert litellm.completion(**asked | {"max_tokens": 5}, reasoning_effort=effort).choices


@pytest.mark.parametrize("effort", ["minimal", "medium"])
def test_an_effort_that_it_does_not_know_is_refused_by_name(
    litellm: Any, asked: dict[str, Any], effort: str
) -> None:
    """A budget of thinking tokens, too, becomes one of OpenAI's words on its way to vLLM."""
    with pytest.raises(litellm.BadRequestError, match="reasoning_effort must be one of"):
        litellm.completion(**asked | {"max_tokens": 5}, reasoning_effort=effort)


def test_a_continued_text(litellm: Any, server: Server) -> None:
    reply = litellm.text_completion(
        model=f"text-completion-openai/{server.model}",
        api_base=server.base,
        api_key="unused",
        prompt=["To be, or", "A milestone is"],
        max_tokens=4,
        echo=True,
        temperature=0,
    )
    assert [choice.text[:5] for choice in reply.choices] == ["To be", "A mil"]


def test_a_model_that_is_not_there(litellm: Any, asked: dict[str, Any]) -> None:
    with pytest.raises(litellm.NotFoundError):
        litellm.completion(**asked | {"model": "openai/other"})
