"""What a request asks of a reply is what its grammar allows, checked by llguidance over whole replies."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from milepost.chat.encoding import ChatEncoding, ChatOptions
from milepost.chat.families import chat_encoding
from milepost.chat.templates.form import TemplateEncoding
from milepost.chat.templates.sandbox import ChatTemplate
from milepost.chat.text_pieces import without_surrogates
from milepost.chat.tokenizer import Tokenizer
from milepost.errors import RequestError
from milepost.grammar import texts
from tests.chat.grammars import llguidance_tokenizer, problem
from tests.chat.test_turns import xml_reply

USER = [{"role": "user", "content": "x"}]
LOOK = {
    "type": "object",
    "properties": {
        "place": {"type": "string"},
        "days": {"type": "integer"},
        "unit": {"enum": ["C", "°F", 3, None]},
        "area": {"$ref": "#/$defs/area"},
        "note": {"anyOf": [{"type": "string", "maxLength": 3}, {"type": "null"}]},
    },
    "required": ["place"],
    "$defs": {
        "area": {
            "type": "object",
            "properties": {"km": {"type": "number"}},
            "required": ["km"],
            "additionalProperties": False,
        }
    },
}
MATCH = {"type": "object", "properties": {"word": {"type": "string", "pattern": "^a+$|b"}, "n": {}}}
MANY = {"type": "object", "properties": {name: {} for name in "abcdefg"}, "required": ["b", "f"]}
OPEN = {"type": "object", "properties": {"a": {}}, "additionalProperties": {"type": "boolean"}}


def tool(name: str, parameters: Mapping[str, Any] | None, *, strict: bool = False) -> dict[str, Any]:
    function: dict[str, Any] = {"name": name, "strict": strict}
    return {
        "type": "function",
        "function": function if parameters is None else function | {"parameters": parameters},
    }


TOOLS = [
    tool("look", LOOK),
    tool("match", MATCH),
    tool("many", MANY),
    tool("open", OPEN),
    tool("none", None),
    tool("any", {}),
]


def call(name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {"function": {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)}}


Judge = Callable[..., bool]


@pytest.fixture(scope="module")
def allows(k3_tokenizer: Tokenizer) -> Judge:
    """Whether K3 may answer so; its replies are spelled as the model spells them."""
    tokens, encoding = llguidance_tokenizer(k3_tokenizer), chat_encoding("kimi_k3", k3_tokenizer)

    def judge(content: str, *calls: dict[str, Any], reasoning: str | None = None, **options: Any) -> bool:
        thinking = reasoning is not None
        prompt = encoding.encode(USER, ChatOptions(thinking=thinking, **options))
        assert prompt.grammar is not None
        answer = {"content": content, "tool_calls": list(calls), "reasoning_content": reasoning}
        found = problem(tokens, prompt.grammar, xml_reply(k3_tokenizer, answer, thinking=thinking))
        assert "refused" in found or "over" in found or not found, found
        return not found

    return judge


def test_content_in_a_form(allows: Judge) -> None:
    anything = {"type": "json_object"}
    assert allows('{"a": [1, "é"]}', response_format=anything)
    assert allows('{"a": 1}', reasoning='free {"', response_format=anything)
    for other in ("hello", "[1]", '{"a": 1} and', ' {"a": 1}', ""):
        assert not allows(other, response_format=anything)
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    wanted = {"type": "json_schema", "json_schema": {"name": "s", "schema": schema, "strict": True}}
    assert allows('{"a": 1}', response_format=wanted)
    assert not allows('{"a": "1"}', response_format=wanted)
    assert allows("yes", content_grammar=texts.choice(["yes", "no"]))
    assert not allows("maybe", content_grammar=texts.choice(["yes", "no"]))


@pytest.mark.parametrize(
    ("allowed", "name", "arguments"),
    [
        (True, "look", {"place": 'a "b" <|close|>\n{}'}),
        (True, "look", {"days": 3, "place": "x"}),
        (True, "look", {"unit": "°F", "note": None, "days": -1, "area": {"km": 1.5}, "place": ""}),
        (True, "look", {"unit": 3, "note": "abc", "place": "x"}),
        (False, "look", {}),
        (False, "look", {"days": 3}),
        (False, "look", {"place": 3}),
        (False, "look", {"place": "x", "days": "3"}),
        (False, "look", {"place": "x", "days": 1.5}),
        (False, "look", {"place": "x", "unit": "K"}),
        (False, "look", {"place": "x", "area": {}}),
        (False, "look", {"place": "x", "note": "abcd"}),
        (False, "look", {"place": "x", "more": 1}),
        (True, "match", {}),
        (True, "match", {"word": "aaa", "n": {"deep": [None]}}),
        (True, "match", {"n": "x", "word": "it has a b in it"}),
        (False, "match", {"word": "aac"}),
        (True, "many", {"b": 1, "f": "x"}),
        (True, "many", dict.fromkeys("abcdefg", True)),
        (False, "many", {"b": 1}),
        (False, "many", {"f": 1, "b": 1}),
        (True, "open", {"a": 1, "zz": True}),
        (False, "open", {"a": 1, "zz": 2}),
        (True, "none", {}),
        (False, "none", {"a": 1}),
        (True, "any", {"a": 1, "b": "x"}),
        (False, "other", {}),
    ],
)
def test_a_forced_call_follows_its_schema(
    allows: Judge, allowed: bool, name: str, arguments: dict[str, Any]
) -> None:
    assert allows("", call(name, arguments), tools=TOOLS, tool_choice="required") is allowed
    assert allows("Let me.", call(name, arguments), tools=TOOLS, tool_choice="required") is allowed
    strict = [{"type": "function", "function": entry["function"] | {"strict": True}} for entry in TOOLS]
    assert allows("", call(name, arguments), tools=strict) is allowed


def test_whether_and_how_often_tools_are_called(allows: Judge) -> None:
    one, other = call("none", {}), call("any", {})
    named = {"type": "function", "function": {"name": "none"}}
    assert not allows("no", tools=TOOLS, tool_choice="required")
    assert allows("", one, other, tools=TOOLS, tool_choice="required", reasoning="hm")
    assert not allows("", one, other, tools=TOOLS, tool_choice="required", parallel_tool_calls=False)
    assert allows("", one, tools=TOOLS, tool_choice=named)
    assert not allows("", other, tools=TOOLS, tool_choice=named)
    assert not allows("", one, one, tools=TOOLS, tool_choice=named)
    assert not allows("no", tools=TOOLS, tool_choice=named)
    assert allows("no", tools=TOOLS, tool_choice="none")
    assert not allows("", one, tools=TOOLS, tool_choice="none")
    assert allows("", one, tools=TOOLS, parallel_tool_calls=False)
    assert allows("no", tools=TOOLS, parallel_tool_calls=False)
    assert not allows("", one, other, tools=TOOLS, parallel_tool_calls=False)


def test_some_of_the_tools_may_be_allowed(allows: Judge) -> None:
    def only(mode: str) -> dict[str, Any]:
        tools = [{"type": "function", "function": {"name": "any"}}]
        return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}

    assert allows("", call("any", {}), tools=TOOLS, tool_choice=only("required"))
    assert not allows("no", tools=TOOLS, tool_choice=only("required"))
    assert not allows("", call("none", {}), tools=TOOLS, tool_choice=only("required"))
    assert allows("no", tools=TOOLS, tool_choice=only("auto"))
    assert not allows("", call("none", {}), tools=TOOLS, tool_choice=only("auto"))


def test_an_answer_in_a_form_or_a_call(allows: Judge) -> None:
    form = {"type": "json_object"}
    assert allows("{}", tools=TOOLS, response_format=form)
    assert allows("", call("any", {"a": 1}), tools=TOOLS, response_format=form)
    assert not allows("so", call("any", {"a": 1}), tools=TOOLS, response_format=form)
    assert not allows("so", tools=TOOLS, response_format=form)


@settings(deadline=None, max_examples=25)
@given(
    names=st.lists(st.text(min_size=1, max_size=6), min_size=1, max_size=3, unique=True),
    key=st.text(max_size=6),
    value=st.text(max_size=12),
)
def test_names_and_keys_of_any_text_are_spelled(
    k3_tokenizer: Tokenizer, names: list[str], key: str, value: str
) -> None:
    names, key = [without_surrogates(name) for name in names], without_surrogates(key)
    if len(set(names)) < len(names):
        return
    schema = {"type": "object", "properties": {key: {"type": "string"}}, "required": [key]}
    options = ChatOptions(
        tools=[tool(name, schema) for name in names], tool_choice="required", thinking=False
    )
    prompt = chat_encoding("kimi_k3", k3_tokenizer).encode(USER, options)
    assert prompt.grammar is not None
    escaped = {"content": "", "tool_calls": [call(names[0], {key: value})]}
    ids = xml_reply(k3_tokenizer, escaped, thinking=False)
    assert problem(llguidance_tokenizer(k3_tokenizer), prompt.grammar, ids) == ""


@pytest.mark.parametrize("form", [{}, {"tools": TOOLS}, {"tools": TOOLS, "tool_choice": "auto"}])
def test_what_asks_for_nothing_leaves_the_reply_free(k3_tokenizer: Tokenizer, form: dict[str, Any]) -> None:
    assert chat_encoding("kimi_k3", k3_tokenizer).encode(USER, ChatOptions(**form)).grammar is None


def linear_call(name: str, arguments: str, number: int = 0) -> str:
    start = f"<|tool_call_begin|>functions.{name}:{number}<|tool_call_argument_begin|>"
    return f"{start}{arguments}<|tool_call_end|>"


def section(*calls: str) -> str:
    return f"<|tool_calls_section_begin|>{''.join(calls)}<|tool_calls_section_end|>"


@pytest.mark.parametrize(
    ("allowed", "reply", "options"),
    [
        (True, '{"a": 1}', {"response_format": {"type": "json_object"}}),
        (False, "a", {"response_format": {"type": "json_object"}}),
        (True, "so" + section(linear_call("look", '{"place": "é"}')), {"tool_choice": "required"}),
        (False, "so", {"tool_choice": "required"}),
        (False, section(linear_call("look", '{"days": 1}')), {"tool_choice": "required"}),
        (False, section(linear_call("look", '{"place": "a", "q": 1}')), {"tool_choice": "required"}),
        (
            True,
            section(linear_call("none", "{}"), linear_call("any", '{"a": 1}', 12)),
            {"tool_choice": "required"},
        ),
        (False, section(linear_call("none", '{"a": 1}')), {"tool_choice": "required"}),
        (False, section(linear_call("none", "{}")), {"tool_choice": "none"}),
        (True, "so", {"tool_choice": "none"}),
        (True, section(linear_call("none", '{"a": 1}')), {"parallel_tool_calls": False}),
        (False, section(linear_call("none", "{}"), linear_call("any", "{}")), {"parallel_tool_calls": False}),
    ],
)
def test_kimi_linears_replies(
    im_tool_tokenizer: Tokenizer, allowed: bool, reply: str, options: dict[str, Any]
) -> None:
    encoding = chat_encoding("kimi_linear", im_tool_tokenizer)
    prompt = encoding.encode(USER, ChatOptions(tools=TOOLS, **options))
    assert prompt.grammar is not None
    ids = spelled(im_tool_tokenizer, f"{reply}<|im_end|>")
    assert (problem(llguidance_tokenizer(im_tool_tokenizer), prompt.grammar, ids) == "") is allowed


def spelled(tokenizer: Tokenizer, text: str) -> list[int]:
    """Ids of a text with its markers."""
    ids: list[int] = []
    for i, part in enumerate(text.split("<|")):
        name, closed, rest = part.partition("|>") if i else ("", "", part)
        ids += [tokenizer.special(f"<|{name}|>")] if closed else []
        ids += tokenizer.encode(rest) if rest else []
    return ids


def hermes_call(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


@pytest.mark.parametrize(
    ("allowed", "reply", "options"),
    [
        (True, "<think>hm</think>\n\n{}", {"response_format": {"type": "json_object"}}),
        (True, "{}", {"response_format": {"type": "json_object"}}),
        (False, "<think>hm</think>so", {"response_format": {"type": "json_object"}}),
        (True, "so " + hermes_call("look", '{"place": "a"}'), {"tools": TOOLS, "tool_choice": "required"}),
        (False, "so ", {"tools": TOOLS, "tool_choice": "required"}),
        (False, hermes_call("look", "{}"), {"tools": TOOLS, "tool_choice": "required"}),
        (
            True,
            hermes_call("none", "{}") + "\n" + hermes_call("any", "{}"),
            {"tools": TOOLS, "tool_choice": "required"},
        ),
        (True, "no < call", {"tools": TOOLS, "parallel_tool_calls": False}),
        (True, "so" + hermes_call("any", "{}"), {"tools": TOOLS, "parallel_tool_calls": False}),
        (False, "so" + hermes_call("any", "{}") * 2, {"tools": TOOLS, "parallel_tool_calls": False}),
        (False, "so" + hermes_call("other", "{}"), {"tools": TOOLS, "parallel_tool_calls": False}),
        (False, hermes_call("look", "{}"), {"tools": [tool("look", LOOK, strict=True)]}),
        (True, hermes_call("look", '{"place": "a"}'), {"tools": [tool("look", LOOK, strict=True)]}),
    ],
)
def test_replies_to_templates(
    k3_tokenizer: Tokenizer, allowed: bool, reply: str, options: dict[str, Any]
) -> None:
    template = ChatTemplate("{{ messages[0].content }}{{ tools }}", "it")
    encoding: ChatEncoding = TemplateEncoding(template, k3_tokenizer, {}, "think-tags+hermes")
    prompt = encoding.encode(USER, ChatOptions(**options))
    assert prompt.grammar is not None
    ids = k3_tokenizer.encode(reply)
    assert (problem(llguidance_tokenizer(k3_tokenizer), prompt.grammar, ids) == "") is allowed


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"response_format": "json"}, "response_format"),
        ({"response_format": {}}, "response_format.type"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_object", "schema": {}}}, "response_format.schema"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format.json_schema.name"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a b"}}},
            "response_format.json_schema.name",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "strict": 1}}},
            "response_format.json_schema.strict",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": []}}},
            "response_format.json_schema.schema",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "x": 1}}},
            "response_format.json_schema.x",
        ),
        (
            {"response_format": {"type": "json_object"}, "content_grammar": texts.choice(["a"])},
            "response_format",
        ),
        ({"tools": TOOLS, "tool_choice": {"type": "magic"}}, "tool_choice"),
        (
            {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "x"}}},
            "tool_choice.function.name",
        ),
        ({"tool_choice": {"type": "function", "function": {"name": "x"}}}, "tool_choice.function.name"),
        (
            {"tools": TOOLS, "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "x"}}},
            "tool_choice.allowed_tools.mode",
        ),
        ({"tools": TOOLS, "parallel_tool_calls": 1}, "parallel_tool_calls"),
        ({"tools": [tool("f", None) | {"function": {"name": "f", "strict": 1}}]}, "tools[0].function.strict"),
        (
            {
                "tools": [
                    tool("f", {"type": "object", "properties": {"a": {"enum": []}}, "required": ["a"]})
                ],
                "tool_choice": "required",
            },
            "tools[0].function.parameters",
        ),
        ({"template_arguments": {"x": 1}}, "template_arguments.x"),
    ],
)
def test_what_is_wrong_is_named(k3_tokenizer: Tokenizer, options: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        chat_encoding("kimi_k3", k3_tokenizer).encode(USER, ChatOptions(**options))
    assert caught.value.param == param
    assert str(caught.value).startswith(param)


def test_schemas_that_grow_are_held_to_in_time_or_refused(allows: Judge, k3_tokenizer: Tokenizer) -> None:
    again = {"anyOf": [{"$ref": "#/$defs/a"}] * 10}
    endless = {"type": "object", "properties": {"x": again}, "$defs": {"a": again}}
    assert allows("", call("f", {"x": {"y": 1}}), tools=[tool("f", endless)], tool_choice="required")
    large = {"big": {"enum": ["x" * 1000] * 100}}
    many = {f"p{i}": {"type": "array", "items": {"$ref": "#/$defs/big"}} for i in range(50)}
    wide = {"type": "object", "properties": many, "$defs": large}
    options = ChatOptions(tools=[tool("f", wide)], tool_choice="required")
    with pytest.raises(RequestError, match="tools must be small enough") as caught:
        chat_encoding("kimi_k3", k3_tokenizer).encode(USER, options)
    assert caught.value.param == "tools"
