"""The server's description of itself in OpenAPI 3.1, made from the structs that it reads and writes."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import msgspec

from milepost.server.protocol.cache_requests import ExplainRequest, ResetRequest
from milepost.server.protocol.errors import ErrorBody
from milepost.server.protocol.field_schemas import FIELD_SCHEMAS, PROMPT, PROMPT_OR_MESSAGES
from milepost.server.protocol.fields import ANY_LABELS, ANY_STRING, HarmlessValues
from milepost.server.protocol.page_stats import PageStats
from milepost.server.protocol.requests import (
    CHAT_HARMLESS,
    COMPLETION_HARMLESS,
    ChatRequest,
    CompletionRequest,
)
from milepost.server.protocol.responses import (
    CacheReset,
    ChatChunk,
    ChatCompletion,
    Completion,
    Health,
    Model,
    ModelList,
    Version,
)
from milepost.server.protocol.token_requests import (
    TOKENIZE_HARMLESS,
    DetokenizeReply,
    DetokenizeRequest,
    TokenizeReply,
    TokenizeRequest,
)
from milepost.types import MAX_LOGPROBS

__all__ = ["describe"]

Schema = dict[str, Any]

STATUSES = {
    400: "The body or a field of it can't be served; `param` names the field.",
    401: "No API key, or one that is not known.",
    403: "Not for this API key.",
    404: "Another model than the one that is served.",
    408: "The body came too slowly.",
    413: "The body is too large.",
    415: "The body is not said to be application/json.",
    421: "The server is not meant to be called by this name.",
    429: "Enough is under way; `Retry-After` says when to try again.",
    500: "The request failed while it ran, or a bug.",
    431: "The headers are too large.",
    503: "Nothing new is taken: the server stops, or its engine has failed.",
    504: "The request's time was over.",
}
TO_READ = (401, 403, 408, 421, 431, 500, 503)
TO_ASK = (400, 401, 403, 404, 408, 413, 415, 421, 429, 431, 500, 503, 504)


class _Operation(msgspec.Struct, frozen=True, kw_only=True):
    """One path with its method; a `reply` that is a string is a content type."""

    summary: str
    parameters: tuple[Schema, ...] = ()
    body: type[msgspec.Struct] | None = None
    harmless: HarmlessValues = msgspec.field(default_factory=dict)
    reply: type[msgspec.Struct] | str
    chunk: type[msgspec.Struct] | None = None
    statuses: tuple[int, ...] = TO_READ


_OPERATIONS: dict[str, _Operation] = {
    "/v1/models": _Operation(summary="The one model that is served.", reply=ModelList),
    "/v1/models/{model}": _Operation(
        summary="The served model by its name.",
        parameters=(
            {"name": "model", "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}},
        ),
        reply=Model,
        statuses=(404, *TO_READ),
    ),
    "/v1/chat/completions": _Operation(
        summary="Reply to a conversation.",
        body=ChatRequest,
        harmless=CHAT_HARMLESS,
        reply=ChatCompletion,
        chunk=ChatChunk,
        statuses=TO_ASK,
    ),
    "/v1/completions": _Operation(
        summary="Continue one prompt or several.",
        body=CompletionRequest,
        harmless=COMPLETION_HARMLESS,
        reply=Completion,
        chunk=Completion,
        statuses=TO_ASK,
    ),
    "/tokenize": _Operation(
        summary="Token ids of a prompt or a chat.",
        body=TokenizeRequest,
        harmless=TOKENIZE_HARMLESS,
        reply=TokenizeReply,
        statuses=TO_ASK,
    ),
    "/detokenize": _Operation(
        summary="The text of token ids.", body=DetokenizeRequest, reply=DetokenizeReply, statuses=TO_ASK
    ),
    "/cache/explain": _Operation(
        summary="What of a prompt is cached, and why not more.",
        body=ExplainRequest,
        reply="application/json",
        statuses=TO_ASK,
    ),
    "/cache/reset": _Operation(
        summary="Drop all that is cached.", body=ResetRequest, reply=CacheReset, statuses=TO_ASK
    ),
    "/health": _Operation(summary="Whether the process is of use: a liveness probe.", reply=Health),
    "/ready": _Operation(summary="Whether new requests are taken: a readiness probe.", reply=Health),
    "/version": _Operation(summary="The version of Milepost.", reply=Version),
    "/metrics": _Operation(summary="Metrics in Prometheus' text format.", reply="text/plain"),
    "/stats.json": _Operation(
        summary="What the page at / shows.",
        parameters=(
            {
                "name": "since",
                "in": "query",
                "description": "The number of the first moment that is asked for.",
                "schema": {"type": "integer", "minimum": 0, "maximum": 1 << 53},
            },
        ),
        reply=PageStats,
        statuses=(400, *TO_READ),
    ),
    "/openapi.json": _Operation(summary="This description.", reply="application/json"),
}


def describe(paths: Collection[str], *, version: str, max_choices: int, model: str) -> dict[str, Any]:
    """The whole description, ready to be written as JSON.

    Args:
        paths: those that are served; others are not described.
        version: of Milepost.
        max_choices: as of `milepost.server.config.ServerConfig`.
        model: the name of the served model.
    """
    structs: list[type[msgspec.Struct]] = [ErrorBody]
    for operation in _OPERATIONS.values():
        kinds = (operation.body, operation.reply, operation.chunk)
        structs.extend(kind for kind in kinds if isinstance(kind, type) and kind not in structs)
    _, components = msgspec.json.schema_components(structs, ref_template="#/components/schemas/{name}")
    for operation in _OPERATIONS.values():
        if operation.body is not None:
            name = operation.body.__name__
            components[name] = _request_schema(operation, components[name], max_choices, model)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Milepost", "version": version, "license": {"name": "Apache-2.0"}},
        "paths": {path: _path(path, operation) for path, operation in _OPERATIONS.items() if path in paths},
        "components": {
            "schemas": components,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        # Whether keys are needed is the operator's decision.
        "security": [{}, {"key": []}],
    }


def _path(path: str, operation: _Operation) -> dict[str, Any]:
    described: dict[str, Any] = {
        "summary": operation.summary,
        "operationId": path.strip("/").replace("/", "_").replace(".", "_").replace("{", "").replace("}", ""),
        "responses": {"200": _success(operation)},
    }
    for status in sorted(operation.statuses):
        described["responses"][str(status)] = {
            "description": STATUSES[status],
            "content": {"application/json": {"schema": _ref(ErrorBody)}},
        }
    if operation.parameters:
        described["parameters"] = list(operation.parameters)
    if operation.body is None:
        return {"get": described}
    described["requestBody"] = {
        "required": True,
        "content": {"application/json": {"schema": _ref(operation.body)}},
    }
    return {"post": described}


def _success(operation: _Operation) -> dict[str, Any]:
    if isinstance(operation.reply, str):
        schema = {"type": "object" if operation.reply == "application/json" else "string"}
        return {"description": "OK", "content": {operation.reply: {"schema": schema}}}
    content: dict[str, Any] = {"application/json": {"schema": _ref(operation.reply)}}
    if operation.chunk is not None:
        content["text/event-stream"] = {"schema": _event(operation.chunk)}
    return {"description": "OK", "content": content}


def _event(chunk: type[msgspec.Struct]) -> Schema:
    """One server-sent event."""
    return {
        "description": (
            "One of the server-sent events that stream: true asks for. Its data is a chunk or, when the "
            "reply fails under way, an ErrorBody; the last one's is [DONE]."
        ),
        "type": "object",
        "properties": {
            "data": {
                "anyOf": [
                    {"const": "[DONE]"},
                    {
                        "type": "string",
                        "contentMediaType": "application/json",
                        "contentSchema": {"anyOf": [_ref(chunk), _ref(ErrorBody)]},
                    },
                ]
            }
        },
        "required": ["data"],
    }


def _ref(kind: type[msgspec.Struct]) -> Schema:
    return {"$ref": f"#/components/schemas/{kind.__name__}"}


def _request_schema(operation: _Operation, made: Schema, max_choices: int, model: str) -> Schema:
    """A struct's schema with bounds, with the harmless fields beside its own, and with no others."""
    required = set(made.get("required", ()))
    bounds = FIELD_SCHEMAS | {
        "n": {"type": "integer", "minimum": 1, "maximum": max_choices},
        "model": {"const": model},
    }
    if operation.body is CompletionRequest:
        bounds |= {"prompt": PROMPT, "logprobs": {"type": "integer", "minimum": 0, "maximum": MAX_LOGPROBS}}
    properties = {}
    for name, schema in made["properties"].items():
        bounded = {**_documented(schema), **bounds[name]} if name in bounds else schema
        properties[name] = bounded if name in required else _nullable(bounded)
    properties |= {name: _harmless_schema(values) for name, values in operation.harmless.items()}
    either = PROMPT_OR_MESSAGES if {"prompt", "messages"} <= set(made["properties"]) else {}
    return made | {"properties": properties, "additionalProperties": False} | either


def _documented(schema: Schema) -> Schema:
    """What of a made schema stays when its type is described by hand."""
    return {key: schema[key] for key in ("default", "description") if key in schema}


def _nullable(schema: Schema) -> Schema:
    """Null leaves any field out."""
    kinds = schema.get("anyOf", ())
    if {"type": "null"} in kinds:
        return schema
    rest = {key: value for key, value in schema.items() if key == "default"}
    inner = {key: value for key, value in schema.items() if key != "default"}
    return {"anyOf": [inner, {"type": "null"}], **rest}


def _harmless_schema(values: tuple[object, ...]) -> Schema:
    """A field that is known but not served: only the values at which it changes nothing."""
    kinds: list[Schema] = [{"type": "null"}]
    if ANY_STRING in values:
        kinds.append({"type": "string"})
    if ANY_LABELS in values:
        kinds.append({"type": "object", "maxProperties": 16, "additionalProperties": {"type": "string"}})
    constants = [value for value in values if value not in (ANY_STRING, ANY_LABELS)]
    if constants:
        kinds.append({"enum": constants})
    return {"anyOf": kinds}
