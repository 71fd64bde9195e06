"""The helpers of OpenAI's client, which read replies more strictly than its plain calls."""

from __future__ import annotations

import json
from typing import Any

from openai import OpenAI
from openai.lib.streaming.chat import ContentDoneEvent, FunctionToolCallArgumentsDoneEvent
from pydantic import BaseModel

from tests.server.scripted_server import END_OF_REPLY, MODEL, ServedEngine

MESSAGES: Any = [{"role": "user", "content": "What is the code for amber?"}]
NO_THINKING = {"chat_template_kwargs": {"thinking": False}}
TOOL_REPLY = (
    '<|close|>response<|sep|><|open|>tools<|sep|><|open|>call tool="add" index="1"<|sep|>'
    '<|open|>argument key="a" type="number"<|sep|>2<|close|>argument<|sep|><|close|>call<|sep|>'
    "<|close|>tools<|sep|><|close|>message<|sep|><|end_of_msg|>"
)
ADD: Any = {
    "type": "function",
    "function": {
        "name": "add",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "number"}},
            "required": ["a"],
            "additionalProperties": False,
        },
    },
}


class Answer(BaseModel):
    code: int


def test_a_reply_is_parsed_into_a_model(served: ServedEngine, client: OpenAI) -> None:
    served.script.write(f'{{"code": 7412}}{END_OF_REPLY}')
    reply = client.chat.completions.parse(
        model=MODEL, messages=MESSAGES, response_format=Answer, extra_body=NO_THINKING
    )
    assert reply.choices[0].message.parsed == Answer(code=7412)


def test_a_streamed_reply_is_parsed_into_a_model(served: ServedEngine, client: OpenAI) -> None:
    served.script.write(f'{{"code": 7412}}{END_OF_REPLY}')
    with client.chat.completions.stream(
        model=MODEL, messages=MESSAGES, response_format=Answer, extra_body=NO_THINKING
    ) as stream:
        done = [event.parsed for event in stream if isinstance(event, ContentDoneEvent)]
        assert done == [Answer(code=7412)]
        assert stream.get_final_completion().choices[0].message.parsed == Answer(code=7412)


def test_a_streamed_call_is_put_together(served: ServedEngine, client: OpenAI) -> None:
    served.executor.seconds = 0.001
    served.script.write(TOOL_REPLY)
    with client.chat.completions.stream(
        model=MODEL, messages=MESSAGES, tools=[ADD], n=2, extra_body=NO_THINKING
    ) as stream:
        done = [event for event in stream if isinstance(event, FunctionToolCallArgumentsDoneEvent)]
        final = stream.get_final_completion()
    assert [(event.name, json.loads(event.arguments)) for event in done] == [("add", {"a": 2})] * 2
    for choice in final.choices:
        assert choice.finish_reason == "tool_calls"
        assert choice.message.tool_calls is not None
        assert json.loads(choice.message.tool_calls[0].function.arguments) == {"a": 2}


def test_logprobs_of_a_stream_are_put_together(served: ServedEngine, client: OpenAI) -> None:
    served.script.write(f"Yes.{END_OF_REPLY}")
    with client.chat.completions.stream(
        model=MODEL, messages=MESSAGES, logprobs=True, top_logprobs=2, extra_body=NO_THINKING
    ) as stream:
        stream.until_done()
        logprobs = stream.get_final_completion().choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert len(logprobs.content) == len(served.script.tokens)
