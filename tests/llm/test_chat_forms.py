"""Forms of chats, from messages to replies that a model writes: random models, held by grammars."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from milepost.errors import ConfigError, RequestError
from milepost.llm import LLM
from milepost.types import FinishReason, SamplingParams
from tests.llm.checkpoints import ENGINE

USER = [{"role": "user", "content": "hello"}]
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "look",
            "parameters": {
                "type": "object",
                "properties": {
                    "place": {"type": "string", "maxLength": 8},
                    "unit": {"enum": ["C", "F"]},
                    "days": {"type": "integer", "minimum": 0, "maximum": 9},
                },
                "required": ["place", "unit"],
            },
        },
    }
]
NAMED = {"type": "function", "function": {"name": "look"}}
TEMPLATE = "{% for m in messages %}<|open|>{{ m.role }}\n{{ m.content }}<|close|>{% endfor %}{{ tools }}"


LONGER = {**ENGINE, "max_model_len": 1200}


def check(arguments: dict[str, object]) -> None:
    assert len(str(arguments["place"])) <= 8
    assert arguments["unit"] in ("C", "F")
    assert arguments.keys() <= {"place", "unit", "days"}


def test_a_model_that_knows_nothing_of_tools_calls_one(quiet_k3: Path) -> None:
    with LLM(quiet_k3, **LONGER) as llm:
        # Else a random model talks on before it comes to the point.
        bias = {llm.tokenizer.special("<|close|>"): 8.0}
        sampling = SamplingParams(temperature=1.0, seed=3, logit_bias=bias)
        answer = llm.chat(USER, sampling, tools=TOOLS, tool_choice=NAMED)
    assert answer.completion.finish_reason is FinishReason.STOP
    (call,) = answer.reply.tool_calls
    assert call.name == "look"
    check(json.loads(call.arguments))


def test_a_chat_template_takes_the_place_of_the_models_form(quiet_k3: Path, tmp_path: Path) -> None:
    file = tmp_path / "chat.jinja"
    file.write_text(TEMPLATE)
    with LLM(quiet_k3, **LONGER, chat_template=str(file), reply_parser="hermes") as llm:
        schema = TOOLS[0]["function"]["parameters"]
        form = {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}
        answer = llm.chat(USER, SamplingParams(temperature=1.0, seed=3), response_format=form)
        assert answer.completion.finish_reason is FinishReason.STOP
        check(json.loads(answer.reply.content))
        with pytest.raises(RequestError, match="doesn't look at enable_thinking"):
            llm.chat(USER, thinking=True)


def test_a_form_of_replies_needs_a_template(quiet_k3: Path) -> None:
    with pytest.raises(ConfigError, match="reply_parser is for chat templates"):
        LLM(quiet_k3, **ENGINE, reply_parser="hermes")
