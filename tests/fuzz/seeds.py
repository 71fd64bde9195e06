"""Valid requests of every path that takes a body, to be spoilt."""

from __future__ import annotations

from typing import Any

__all__ = ["VALID"]

MODEL = "scripted"
CHAT: dict[str, Any] = {
    "model": MODEL,
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "How far is it?"}]},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": "call_1",
                    "type": "function",
                    "function": {"name": "far", "arguments": '{"to": "mile 7"}'},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": "7 miles"},
        {"role": "user", "content": "Thanks; and back?"},
    ],
    "max_tokens": 4,
    "temperature": 0.5,
    "top_p": 0.9,
    "top_k": 20,
    "min_p": 0.01,
    "presence_penalty": 0.1,
    "frequency_penalty": 0.1,
    "repetition_penalty": 1.1,
    "seed": 7,
    "stop": ["."],
    "stop_token_ids": [1],
    "logprobs": True,
    "top_logprobs": 2,
    "user": "u",
    "priority": 1,
    "cache_salt": "salt",
    "ignore_eos": False,
    "reasoning_effort": "low",
    "n": 2,
    "logit_bias": {"100": -100, "7": 1.5},
    "min_tokens": 1,
    "timeout": 5.0,
    "parallel_tool_calls": False,
    "metadata": {},
    "chat_template_kwargs": {"thinking": True},
    "tools": [
        {
            "type": "function",
            "function": {
                "name": "far",
                "description": "how far",
                "parameters": {
                    "type": "object",
                    "properties": {"to": {"type": "string"}},
                    "required": ["to"],
                },
            },
        }
    ],
    "tool_choice": "auto",
}
COMPLETION: dict[str, Any] = {
    "model": MODEL,
    "prompt": ["The mile", "The stone"],
    "max_tokens": 4,
    "temperature": 0,
    "logprobs": 1,
    "seed": 3,
    "stop": "x",
    "echo": False,
    "n": 1,
    "best_of": 1,
    "logit_bias": {"1": -5},
    "stream": True,
    "stream_options": {"include_usage": True},
}
SCHEMA = {
    "type": "object",
    "properties": {"to": {"type": "string", "maxLength": 5}, "miles": {"type": "integer", "minimum": 0}},
    "required": ["miles"],
    "additionalProperties": False,
}
PLAIN = {"model": MODEL, "messages": [{"role": "user", "content": "How far?"}], "max_tokens": 6}
STRUCTURED: list[dict[str, Any]] = [
    {**PLAIN, "response_format": {"type": "json_schema", "json_schema": {"name": "far", "schema": SCHEMA}}},
    {**PLAIN, "response_format": {"type": "json_object"}},
    {**PLAIN, "guided_json": SCHEMA},
    {**PLAIN, "guided_regex": "[0-9]{1,3} miles?"},
    {**PLAIN, "guided_choice": ["one", "two"]},
    {**PLAIN, "guided_grammar": 'start: "mile " /[0-9]+/'},
]
IDS: dict[str, Any] = {"model": MODEL, "prompt": [1, 2, 3, 250], "max_tokens": 3, "min_p": 0.1}

# By path: bodies that are right.
VALID: dict[str, list[dict[str, Any]]] = {
    "/v1/chat/completions": [
        CHAT,
        {**CHAT, "stream": True, "stream_options": {"include_usage": True}},
        *STRUCTURED,
    ],
    "/v1/completions": [
        COMPLETION,
        IDS,
        {**IDS, "guided_regex": "[a-f]+"},
        {**IDS, "echo": True},
        {"model": MODEL, "prompt": "The road", "max_tokens": 2},
    ],
    "/tokenize": [{"model": MODEL, "prompt": "The road"}, {"model": MODEL, "messages": CHAT["messages"]}],
    "/detokenize": [{"model": MODEL, "tokens": [1, 2, 3]}],
    "/cache/explain": [{"prompt": "The road"}, {"messages": CHAT["messages"], "tools": CHAT["tools"]}],
    "/cache/reset": [{}],
}
