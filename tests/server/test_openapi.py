"""/openapi.json says what the server does: every path, every field, every bound."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.routing import Route

from milepost import __version__
from milepost.server import create_app
from milepost.server.protocol.error_codes import ErrorCode
from milepost.server.protocol.field_schemas import FIELD_SCHEMAS
from tests.server.scripted_server import MODEL, ServedEngine

MESSAGES: Any = [{"role": "user", "content": "hi"}]
CHAT = {"messages": MESSAGES, "max_tokens": 1, "chat_template_kwargs": {"thinking": False}}
UNDESCRIBED = {"/"}  # a page for people


@pytest.fixture(scope="module")
def described(shared: ServedEngine) -> Any:
    return shared.call("/openapi.json").json


def test_every_path_is_described(shared: ServedEngine, described: Any) -> None:
    app = create_app(shared.services)
    served = {
        (route.path.replace(":path", ""), method.lower())
        for route in app.routes
        if isinstance(route, Route)
        for method in (route.methods or set()) - {"HEAD"}
        if route.path not in UNDESCRIBED
    }
    assert served == {(path, method) for path, methods in described["paths"].items() for method in methods}
    assert described["info"]["version"] == __version__


def test_every_reference_leads_somewhere(described: Any) -> None:
    def references(node: Any) -> set[str]:
        if isinstance(node, list):
            return set().union(*map(references, node)) if node else set()
        if not isinstance(node, dict):
            return set()
        found = {node["$ref"]} if isinstance(node.get("$ref"), str) else set()
        return found.union(*map(references, node.values()))

    names = {reference.removeprefix("#/components/schemas/") for reference in references(described)}
    assert names <= set(described["components"]["schemas"])
    assert {"ErrorBody", "ChatCompletion", "ChatChunk", "ToolCallDeltaBody"} <= names


def test_a_stream_s_events_are_those_described(shared: ServedEngine, described: Any) -> None:
    """The last one's data is a bare word, which the others' form does not allow."""
    answer = described["paths"]["/v1/chat/completions"]["post"]["responses"]["200"]
    done, chunk = answer["content"]["text/event-stream"]["schema"]["properties"]["data"]["anyOf"]
    assert done == {"const": "[DONE]"}
    chunks = shared.events("/v1/chat/completions", CHAT | {"stream": True})
    known = described["components"]["schemas"]["ChatChunk"]["properties"]
    assert chunk["contentSchema"]["anyOf"][0] == {"$ref": "#/components/schemas/ChatChunk"}
    assert chunks
    assert all(set(one) <= set(known) for one in chunks)


def test_every_error_code_is_described(described: Any) -> None:
    assert set(described["components"]["schemas"]["ErrorCode"]["enum"]) == {code.value for code in ErrorCode}


def test_a_request_has_no_other_fields_than_those_described(described: Any) -> None:
    for name in ("ChatRequest", "CompletionRequest", "TokenizeRequest", "DetokenizeRequest"):
        assert described["components"]["schemas"][name]["additionalProperties"] is False
    chat = described["components"]["schemas"]["ChatRequest"]
    assert chat["required"] == ["messages"]
    assert chat["properties"]["model"]["anyOf"][0] == {"const": MODEL}


def just_outside(schema: Any) -> list[Any]:
    step = 1 if schema["type"] == "integer" else 1e-9
    found = []
    if "minimum" in schema:
        found.append(schema["minimum"] - step)
    if "exclusiveMinimum" in schema:
        found.append(schema["exclusiveMinimum"])
    if "maximum" in schema:
        found.append(schema["maximum"] + (step if schema["type"] == "integer" else 1e-6))
    return found


def just_inside(schema: Any) -> list[Any]:
    found = [schema[key] for key in ("minimum", "maximum") if key in schema]
    return found + ([schema["exclusiveMinimum"] + 1e-6] if "exclusiveMinimum" in schema else [])


NUMBERS = {
    name: schema for name, schema in FIELD_SCHEMAS.items() if schema.get("type") in {"integer", "number"}
} | {"n": {"type": "integer", "minimum": 1}}


@pytest.mark.parametrize("field", sorted(NUMBERS))
def test_bounds_are_those_of_the_server(shared: ServedEngine, field: str) -> None:
    path, body = "/v1/chat/completions", CHAT
    if field == "best_of":
        path, body = "/v1/completions", {"prompt": "a", "max_tokens": 1}
    if field in {"max_completion_tokens", "min_tokens"}:
        body = {key: value for key, value in body.items() if key != "max_tokens"}
    if field == "top_logprobs":
        body = body | {"logprobs": True}
    for value in just_outside(NUMBERS[field]):
        reply = shared.call(path, body | {field: value})
        assert (reply.status, reply.error["param"]) == (400, field), value
    for value in just_inside(NUMBERS[field]):
        stopping = {"stop_token_ids": list(range(256))} if field == "min_tokens" else {}
        status = shared.call(path, body | stopping | {field: value}).status
        assert status == 200 or (field, status) == ("timeout", 504), value


@pytest.mark.parametrize(
    ("field", "outside", "inside"),
    [
        ("stop", "x" * 4097, "x" * 4096),
        ("stop", ["x"] * 17, ["x"] * 16),
        ("stop", "", []),
        ("stop_token_ids", [7] * 4097, [7] * 4096),
        ("cache_salt", "x" * 257, "x" * 256),
        ("logit_bias", {str(i): 1 for i in range(1025)}, {str(i): 1 for i in range(200)}),
        ("logit_bias", {"1": 100.5}, {"1": 100}),
        ("logit_bias", {"0x1": 1}, {"001": 1}),
        ("guided_choice", [], ["a"]),
        ("tool_choice", "any", "none"),
        ("messages", [], MESSAGES),
    ],
)
def test_sizes_are_those_of_the_server(shared: ServedEngine, field: str, outside: Any, inside: Any) -> None:
    assert shared.call("/v1/chat/completions", CHAT | {field: outside}).status == 400
    assert shared.call("/v1/chat/completions", CHAT | {field: inside}).status == 200


def test_health_and_version(served: ServedEngine) -> None:
    assert served.call("/health").json == {"status": "ok"}
    assert served.call("/ready").json == {"status": "ok"}
    assert served.call("/version").json == {"version": __version__}
    served.executor.crash(RuntimeError("device lost"))
    served.call("/v1/completions", {"prompt": "a"})
    assert served.call("/health").status == 503
    assert served.call("/ready").status == 503
    assert served.call("/version").status == 200
