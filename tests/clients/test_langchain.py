"""LangChain's chat model over OpenAI's protocol, given nothing but an address."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from pydantic import BaseModel, Field

from tests.clients.conftest import ANSWER, QUESTION, WEATHER, Server

pytestmark = [pytest.mark.clients, pytest.mark.filterwarnings("ignore")]


class Answer(BaseModel):
    """A number."""

    number: int = Field(ge=0, le=99999)


@pytest.fixture
def chat(server: Server) -> Any:
    langchain = pytest.importorskip("langchain_openai")
    return langchain.ChatOpenAI(
        base_url=server.base,
        api_key="unused",
        model=server.model,
        temperature=0,
        max_tokens=300,
        max_retries=0,
    )


def test_a_chat(chat: Any) -> None:
    message = chat.invoke(QUESTION)
    assert message.content == ANSWER
    assert message.usage_metadata["output_tokens"] > 0


def test_a_stream_with_its_usage(chat: Any) -> None:
    whole: Any = None
    for chunk in chat.stream(QUESTION, stream_usage=True):
        whole = chunk if whole is None else whole + chunk
    assert whole.content == ANSWER
    assert whole.response_metadata["finish_reason"] == "stop"
    assert whole.usage_metadata["output_tokens"] > 0


def test_several_at_once_and_several_of_one(chat: Any) -> None:
    assert [message.content for message in chat.batch([QUESTION] * 3)] == [ANSWER] * 3
    assert asyncio.run(chat.ainvoke(QUESTION)).content == ANSWER
    from langchain_core.messages import HumanMessage

    (generations,) = chat.generate([[HumanMessage(QUESTION)]], n=2).generations
    assert [one.text for one in generations] == [ANSWER] * 2


@pytest.mark.parametrize("choice", ["any", "weather"])
def test_a_tool_must_be_called(chat: Any, choice: str) -> None:
    calls = chat.bind_tools([WEATHER], tool_choice=choice).invoke(QUESTION).tool_calls
    assert calls[0]["name"] == "weather"
    assert set(calls[0]["args"]) == {"city"}


def test_a_tool_s_result_goes_back(chat: Any) -> None:
    from langchain_core.messages import AIMessage, HumanMessage, ToolMessage

    call = {"name": "weather", "args": {"city": "Paris"}, "id": "call_1"}
    turns = [
        HumanMessage("Weather?"),
        AIMessage("", tool_calls=[call]),
        ToolMessage("sunny", tool_call_id="call_1"),
    ]
    assert chat.bind_tools([WEATHER]).invoke(turns).response_metadata["finish_reason"] in {"stop", "length"}


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_a_structured_answer(chat: Any, method: str) -> None:
    assert isinstance(chat.with_structured_output(Answer, method=method).invoke(QUESTION), Answer)


def test_a_continued_text(server: Server) -> None:
    langchain = pytest.importorskip("langchain_openai")
    text = langchain.OpenAI(base_url=server.base, api_key="unused", model=server.model, max_tokens=8, seed=1)
    assert text.invoke("To be, or")
    assert "".join(text.stream("To be, or"))
    assert len(text.batch(["To be, or", "A milestone is"])) == 2
