"""What the types of the request fields don't say: their bounds, and the shapes that chat encodings read.

`milepost.server.protocol.openapi` lays these over the schemas that are made from the structs; a test holds
each bound to what the server really takes.
"""

from __future__ import annotations

from typing import Any

from milepost.types import MAX_LOGPROBS

__all__ = ["FIELD_SCHEMAS", "PROMPT", "PROMPT_OR_MESSAGES"]

Schema = dict[str, Any]

_NAME: Schema = {"type": ["string", "null"]}
_PARTS: Schema = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
        "required": ["type", "text"],
        "additionalProperties": False,
    },
}
_TEXT: Schema = {"anyOf": [{"type": "string"}, _PARTS]}
_CALL: Schema = {
    "type": "object",
    "properties": {
        "id": {"type": ["string", "null"]},
        "type": {"const": "function"},
        "function": {
            "type": "object",
            "properties": {
                "name": {"type": "string", "minLength": 1},
                "arguments": {
                    "description": "JSON text of an object, or the object.",
                    "type": ["string", "object", "null"],
                },
            },
            "required": ["name"],
        },
    },
    "required": ["function"],
}


def _message(roles: list[str], required: list[str], **fields: Schema) -> Schema:
    return {
        "type": "object",
        "properties": {"role": {"enum": roles}, "name": _NAME, **fields},
        "required": ["role", *required],
    }


_MESSAGE: Schema = {
    "description": "Other fields may only be null or [], as clients send back what a reply left unused.",
    "oneOf": [
        _message(["system", "developer", "user"], ["content"], content=_TEXT),
        _message(
            ["assistant"],
            [],
            content={"anyOf": [*_TEXT["anyOf"], {"type": "null"}]},
            reasoning_content={"type": ["string", "null"]},
            reasoning={"type": ["string", "null"]},
            tool_calls={"anyOf": [{"type": "array", "items": _CALL}, {"type": "null"}]},
        ),
        _message(["tool"], ["content"], content=_TEXT, tool_call_id={"type": ["string", "null"]}),
    ],
}

_TOOL: Schema = {
    "type": "object",
    "properties": {
        "type": {"const": "function"},
        "function": {
            "type": "object",
            "properties": {
                "name": {"type": "string", "minLength": 1},
                "description": {"type": "string"},
                "parameters": {"description": "JSON Schema of the arguments.", "type": ["object", "null"]},
                "strict": {"type": ["boolean", "null"]},
            },
            "required": ["name"],
        },
    },
    "required": ["type", "function"],
}

_TOOL_CHOICE: Schema = {
    "anyOf": [
        {"enum": ["auto", "none", "required"]},
        {
            "type": "object",
            "properties": {
                "type": {"const": "function"},
                "function": {
                    "type": "object",
                    "properties": {"name": {"type": "string"}},
                    "required": ["name"],
                },
            },
            "required": ["type", "function"],
        },
        {
            "type": "object",
            "properties": {"type": {"const": "allowed_tools"}, "allowed_tools": {"type": "object"}},
            "required": ["type", "allowed_tools"],
        },
    ]
}

_TOKEN_IDS: Schema = {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0}}

PROMPT: Schema = {
    "anyOf": [
        {"type": "string", "minLength": 1},
        {"type": "array", "minItems": 1, "items": {"type": "string", "minLength": 1}},
        _TOKEN_IDS,
        {"type": "array", "minItems": 1, "items": _TOKEN_IDS},
    ]
}

# Null leaves a field out. What shapes a chat may only ask for nothing beside a prompt.
_GIVEN: Schema = {"not": {"type": "null"}}
_NOTHING: dict[str, Schema] = {
    "messages": {"type": "null"},
    "tools": {"enum": [None, []]},
    "tool_choice": {"type": "null"},
    "parallel_tool_calls": {"enum": [None, False]},
    "reasoning_effort": {"type": "null"},
    "chat_template_kwargs": {"enum": [None, {}]},
}
PROMPT_OR_MESSAGES: Schema = {
    "oneOf": [
        {"required": ["prompt"], "properties": {"prompt": _GIVEN, **_NOTHING}},
        {"required": ["messages"], "properties": {"messages": _GIVEN, "prompt": {"type": "null"}}},
    ]
}

FIELD_SCHEMAS: dict[str, Schema] = {
    "max_tokens": {"type": "integer", "minimum": 1, "maximum": 1 << 40},
    "max_completion_tokens": {"type": "integer", "minimum": 1, "maximum": 1 << 40},
    "temperature": {"type": "number", "minimum": 0, "maximum": 100},
    "top_p": {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
    "presence_penalty": {"type": "number", "minimum": -2, "maximum": 2},
    "frequency_penalty": {"type": "number", "minimum": -2, "maximum": 2},
    "repetition_penalty": {"type": "number", "minimum": 0.001, "maximum": 100},
    "seed": {"type": "integer", "minimum": -(1 << 63), "maximum": (1 << 63) - 1},
    "min_tokens": {"type": "integer", "minimum": 0, "maximum": 1 << 40},
    "top_k": {"type": "integer", "minimum": -1, "maximum": 1 << 30},
    "min_p": {"type": "number", "minimum": 0, "maximum": 1},
    "top_logprobs": {"type": "integer", "minimum": 0, "maximum": MAX_LOGPROBS},
    "priority": {"type": "integer", "minimum": -(1 << 31) + 1, "maximum": (1 << 31) - 1},
    "timeout": {"type": "number", "exclusiveMinimum": 0},
    "best_of": {"description": "May only be n.", "type": "integer", "minimum": 1},
    "cache_salt": {"type": "string", "maxLength": 256},
    "stop": {
        "anyOf": [
            {"type": "string", "minLength": 1, "maxLength": 4096},
            {
                "type": "array",
                "maxItems": 16,
                "items": {"type": "string", "minLength": 1, "maxLength": 4096},
            },
        ]
    },
    "stop_token_ids": {"type": "array", "maxItems": 4096, "items": {"type": "integer", "minimum": 0}},
    "logit_bias": {
        "description": "Token ids, as text, to what is added to their logits.",
        "type": "object",
        "maxProperties": 1024,
        "propertyNames": {"pattern": "^[0-9]{1,19}$"},
        "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100},
    },
    "messages": {"type": "array", "minItems": 1, "items": _MESSAGE},
    "tools": {"type": "array", "items": _TOOL},
    "tool_choice": _TOOL_CHOICE,
    "tokens": {"type": "array", "items": {"type": "integer", "minimum": 0}},
    "guided_choice": {"type": "array", "minItems": 1, "items": {"type": "string"}},
    "chat_template_kwargs": {
        "description": "More than `thinking` only where the model's chat form is a template.",
        "type": "object",
        "properties": {"thinking": {"type": ["boolean", "null"]}},
    },
}
