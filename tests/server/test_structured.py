"""What replies are asked to spell: every field becomes a grammar that the engine is given, or a 400."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest
from openai import OpenAI

from milepost.grammar import texts
from milepost.types import Grammar
from tests.server.scripted_server import END_OF_REPLY, MODEL, ServedEngine

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
SCHEMA: Any = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
FORMAT: Any = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA, "strict": True}}
CHAT_BODY: Any = {
    "messages": [{"role": "user", "content": "hi"}],
    "chat_template_kwargs": {"thinking": False},
}
LARK = 'start: "yes" | "no"'
GUIDED: list[tuple[Any, Grammar | None]] = [
    ({}, None),
    ({"response_format": {"type": "text"}}, None),
    ({"response_format": {"type": "json_object"}}, texts.json_object()),
    ({"response_format": FORMAT}, texts.json_schema(SCHEMA)),
    ({"guided_json": SCHEMA}, texts.json_schema(SCHEMA)),
    ({"guided_json": '{"type": "string"}'}, texts.json_schema({"type": "string"})),
    ({"guided_regex": "[a-c]+"}, texts.regex("[a-c]+")),
    ({"guided_choice": ["yes", "no"]}, texts.choice(["yes", "no"])),
    ({"guided_grammar": LARK}, texts.lark(LARK)),
    ({"structured_outputs": {"json": SCHEMA}}, texts.json_schema(SCHEMA)),
    ({"structured_outputs": {"regex": "a"}}, texts.regex("a")),
    ({"structured_outputs": {"choice": ["a"]}}, texts.choice(["a"])),
    ({"structured_outputs": {"grammar": LARK}}, texts.lark(LARK)),
    ({"structured_outputs": {"json_object": True}}, texts.json_object()),
    ({"structured_outputs": {"json_object": False}}, None),
    ({"response_format": {"type": "text"}, "guided_regex": "a"}, texts.regex("a")),
]


def drawn_with(served: ServedEngine) -> list[Grammar | None]:
    return [request.sampling.grammar for batch in served.executor.batches for request in batch.new_requests]


@pytest.mark.parametrize(("fields", "grammar"), GUIDED, ids=str)
def test_a_completion_is_drawn_by_the_grammar(
    served: ServedEngine, fields: Any, grammar: Grammar | None
) -> None:
    assert served.call(COMPLETIONS, {"prompt": "a"} | fields).status == 200
    assert drawn_with(served) == [grammar]


@pytest.mark.parametrize(("fields", "grammar"), GUIDED, ids=str)
def test_a_chat_is_drawn_by_it_within_the_replys_form(
    served: ServedEngine, fields: Any, grammar: Grammar | None
) -> None:
    served.script.write(f"x{END_OF_REPLY}")
    assert served.call(CHAT, CHAT_BODY | fields).status == 200
    (given,) = drawn_with(served)
    assert (given is None) == (grammar is None)
    if given is not None and grammar is not None:
        served.services.grammars.check(given)
        assert grammar.lark.splitlines()[0].removeprefix("start: ") in given.lark


def test_through_openais_client(served: ServedEngine, client: OpenAI) -> None:
    served.script.write(f'{{"a": 1}}{END_OF_REPLY}')
    reply = client.chat.completions.create(
        model=MODEL,
        messages=CHAT_BODY["messages"],
        response_format=FORMAT,
        extra_body={"chat_template_kwargs": {"thinking": False}},
    )
    assert reply.choices[0].message.content == '{"a": 1}'


UNUSABLE: list[tuple[Any, str]] = [
    ({"guided_regex": "(?=a)"}, "guided_regex"),
    ({"guided_regex": "(["}, "guided_regex"),
    ({"guided_json": {"type": "nothing"}}, "guided_json"),
    ({"guided_json": {"minimum": 1, "maximum": 0, "type": "integer"}}, "guided_json"),
    ({"guided_grammar": "start: nothing"}, "guided_grammar"),
    ({"guided_grammar": 'start: "a'}, "guided_grammar"),
    ({"guided_grammar": 'start: "a" }\nother: <[256]>\n{'}, "guided_grammar"),
    ({"structured_outputs": {"regex": "("}}, "structured_outputs.regex"),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": 5}}}},
        "response_format",
    ),
]


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize(("fields", "param"), UNUSABLE, ids=str)
def test_what_can_not_be_compiled_is_refused_before_anything_runs(
    shared: ServedEngine, path: str, fields: Any, param: str
) -> None:
    start = CHAT_BODY if path == CHAT else {"prompt": "a"}
    reply = shared.call(path, start | fields)
    assert (reply.status, reply.error["code"], reply.error["param"]) == (400, "invalid_grammar", param)
    assert str(reply.error["message"]).startswith(f"{param}: ")
    assert shared.front_is_idle()


def test_grammars_that_compile_for_long_hold_up_no_others(
    served: ServedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()

    def wait(*_: object, **__: object) -> None:
        assert go_on.wait(20)

    monkeypatch.setattr(served.services.grammars, "check", wait)
    body = {"prompt": "a", "guided_regex": "a"}
    with ThreadPoolExecutor(40) as clients:
        slow = [clients.submit(served.call, COMPLETIONS, body) for _ in range(40)]
        time.sleep(0.3)
        try:
            assert served.call(COMPLETIONS, {"prompt": "a"}).status == 200
            assert not any(reply.done() for reply in slow)
        finally:
            go_on.set()
        assert [reply.result().status for reply in slow] == [200] * 40


def test_the_client_is_told_in_its_own_terms(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model=MODEL, prompt="a", extra_body={"guided_regex": "(["})
    assert (caught.value.code, caught.value.param) == ("invalid_grammar", "guided_regex")


def test_a_tool_whose_parameters_can_not_be_held_to(shared: ServedEngine) -> None:
    function = {
        "name": "f",
        "strict": True,
        "parameters": {"type": "object", "properties": {"a": {"type": 5}}},
    }
    tools = [{"type": "function", "function": function}]
    reply = shared.call(CHAT, CHAT_BODY | {"tools": tools, "tool_choice": "required"})
    assert reply.status == 400
    assert str(reply.error["param"]).startswith("tools")
