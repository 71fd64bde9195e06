"""What Kimi K3's grammars make of the schemas that functions really have: references, parts, alternatives."""

from __future__ import annotations

import re
from typing import Any

import pytest

from milepost.chat.encoding import ChatOptions
from milepost.chat.families import chat_encoding
from milepost.chat.tokenizer import Tokenizer
from milepost.chat.xtml_grammar import _name_but
from milepost.errors import RequestError
from milepost.grammar.compiler import GrammarCompiler
from tests.chat.grammars import llguidance_tokenizer, problem
from tests.chat.reply_streams import spelled_in_bytes

USER = [{"role": "user", "content": "x"}]
COLOUR = {"type": "string", "enum": ["red", "green"]}
NODE: dict[str, Any] = {"type": "object", "properties": {"v": {"type": "integer"}}, "required": ["v"]}
EITHER = {
    "type": "object",
    "properties": {"k": {"type": "string"}},
    "required": ["k"],
    "anyOf": [
        {"properties": {"a": {"type": "integer"}}, "required": ["a"]},
        {"properties": {"b": {"type": "integer"}}, "required": ["b"]},
    ],
}

# (what it is, schema of the argument "x", definitions, what it may be, what it may not)
Case = tuple[str, Any, dict[str, Any], list[str], list[str]]
CASES: list[Case] = [
    (
        "a part of its own, as Pydantic writes a field with a description",
        {"allOf": [{"$ref": "#/$defs/C"}], "description": "which"},
        {"C": COLOUR},
        ["string:red"],
        ["string:blue", "null:null"],
    ),
    (
        "an escaped reference",
        {"$ref": "#/$defs/a%20b~1c"},
        {"a b/c": COLOUR},
        ["string:green"],
        ["string:blue", "number:1"],
    ),
    (
        "a reference and more",
        {"$ref": "#/$defs/N", "maximum": 5},
        {"N": {"type": "integer", "maximum": 9}},
        ["number:5"],
        ["number:7"],
    ),
    (
        "a list of the whole",
        {"type": "array", "items": {"$ref": "#"}},
        {},
        ['array:[{"v":1}]'],
        ["array:[[]]", "array:[1]"],
    ),
    (
        "a list of another argument",
        {"type": "array", "items": {"$ref": "#/properties/v"}},
        {},
        ["array:[1]"],
        ['array:["x"]'],
    ),
    (
        "alternatives beside properties",
        EITHER,
        {},
        ['object:{"k":"","a":1}', 'object:{"k":"","b":1}'],
        ['object:{"a":1}', 'object:{"k":""}'],
    ),
    (
        "types beside alternatives",
        {"type": "integer", "anyOf": [{"minimum": 3}, {"type": "string"}]},
        {},
        ["number:3"],
        ["number:1", "string:x"],
    ),
    (
        "two types, and values of one",
        {"type": ["string", "null"], "enum": ["a"]},
        {},
        ["string:a"],
        ["null:null"],
    ),
    (
        "values of two parts",
        {"allOf": [{"enum": ["a", "b", 1]}, {"enum": ["b", True]}]},
        {},
        ["string:b"],
        ["string:a", "number:1", "boolean:true"],
    ),
    (
        "a constant of one part",
        {"allOf": [{"const": "a"}, {"enum": ["a", "b"]}]},
        {},
        ["string:a"],
        ["string:b"],
    ),
    ("one alternative that is anything", {"type": "string", "anyOf": [True]}, {}, ["string:x"], ["number:1"]),
]
NOTHING: dict[str, Any] = {
    "types that differ": {"type": "integer", "anyOf": [{"type": "boolean"}]},
    "a constant of another type": {"type": "string", "const": 5},
    "values of two parts": {"allOf": [{"enum": [1]}, {"enum": [True]}]},
    "two constants": {"allOf": [{"const": 1}, {"const": 2}]},
}


def options(parameters: dict[str, Any]) -> ChatOptions:
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    return ChatOptions(tools=[tool], tool_choice="required", thinking=False)


def trouble(tokenizer: Tokenizer, parameters: dict[str, Any], *arguments: tuple[str, str]) -> str:
    """Where the call's grammar ends a call with such arguments: (name, type:text) each."""
    grammar = chat_encoding("kimi_k3", tokenizer).encode(USER, options(parameters)).grammar
    assert grammar is not None
    written = "".join(
        f'<|open|>argument key="{name}" type="{value.partition(":")[0]}"<|sep|>{value.partition(":")[2]}'
        "<|close|>argument<|sep|>"
        for name, value in arguments
    )
    reply = (
        f'<|close|>response<|sep|><|open|>tools<|sep|><|open|>call tool="f" index="1"<|sep|>{written}'
        "<|close|>call<|sep|><|close|>tools<|sep|><|close|>message<|sep|><|end_of_msg|>"
    )
    return problem(llguidance_tokenizer(tokenizer), grammar, spelled_in_bytes(tokenizer, reply))


@pytest.mark.parametrize("case", CASES, ids=[case[0] for case in CASES])
def test_what_an_argument_may_be(k3_tokenizer: Tokenizer, case: Case) -> None:
    _, schema, definitions, good, bad = case
    parameters: dict[str, Any] = {
        **NODE,
        "properties": {**NODE["properties"], "x": schema},
        "$defs": definitions,
    }
    for value in good:
        assert not trouble(k3_tokenizer, parameters, ("v", "number:1"), ("x", value)), value
    for value in bad:
        assert trouble(k3_tokenizer, parameters, ("v", "number:1"), ("x", value)).endswith("is refused"), (
            value
        )


@pytest.mark.parametrize("schema", NOTHING)
def test_an_argument_that_can_be_nothing_is_refused(k3_tokenizer: Tokenizer, schema: str) -> None:
    with pytest.raises(RequestError, match="can have no value") as caught:
        trouble(k3_tokenizer, {"type": "object", "properties": {"x": NOTHING[schema]}})
    assert caught.value.param == "tools[0].function.parameters"


def test_a_required_argument_that_must_not_be_is_refused(k3_tokenizer: Tokenizer) -> None:
    closed = {"type": "object", "properties": {}, "additionalProperties": False}
    with pytest.raises(RequestError, match="can have no value"):
        trouble(k3_tokenizer, {**closed, "required": ["x"]})


def test_parts_that_never_fit_do_not_take_for_ever(k3_tokenizer: Tokenizer) -> None:
    forks = [{"anyOf": [{"type": ["string", "null"]}, {"type": ["string", "number"]}]}] * 40
    trouble(k3_tokenizer, {"properties": {"x": {"allOf": [*forks, {"type": "boolean"}]}}})


@pytest.mark.parametrize("name", ["a", "ab", 'q"t', "&", "&amp;", "é日", "]^-\\", "n" * 64])
def test_a_named_argument_is_no_other(k3_tokenizer: Tokenizer, name: str) -> None:
    """Written twice it would count as what it is the second time, by the schema of the others."""
    parameters = {"properties": {name: {"type": "integer"}}, "additionalProperties": {"type": "string"}}
    spelled = name.replace("&", "&amp;").replace('"', "&quot;")
    assert not trouble(k3_tokenizer, parameters, (spelled, "number:5"))
    assert trouble(k3_tokenizer, parameters, (spelled, "number:5"), (spelled, "string:x")).endswith("refused")
    assert trouble(k3_tokenizer, parameters, (spelled, "string:x")).endswith("refused")
    for other in (spelled + "a", spelled + "&amp;", "z" + spelled, "&quot;"):
        assert not trouble(k3_tokenizer, parameters, (spelled, "number:5"), (other, "string:x"))


def test_names_that_begin_other_names() -> None:
    names = ["n" * length for length in range(1, 120)]
    pattern = _name_but(names).lark
    assert len(pattern) < 40_000
    simple = re.compile(pattern.removeprefix("start: /").removesuffix("/\n"), re.DOTALL)
    assert not any(map(simple.fullmatch, names[:24]))
    assert simple.fullmatch("n" * 120)
    assert simple.fullmatch("m")


def test_many_tools_can_be_held_to(k3_tokenizer: Tokenizer) -> None:
    """As many as agents have; the compiler's bounds are for what one tool's schema makes hard."""
    parameters = {"type": "object", "properties": {"a": {"type": "string", "pattern": "^a&b$"}}}
    tools = [
        {"type": "function", "function": {"name": f"f{i}", "parameters": parameters, "strict": i % 2 == 0}}
        for i in range(60)
    ]
    encoding = chat_encoding("kimi_k3", k3_tokenizer)
    vocab = k3_tokenizer.vocab_size
    compiler = GrammarCompiler(k3_tokenizer, vocab_size=vocab, stop_token_ids=encoding.stop_token_ids)
    for choice in (
        ChatOptions(tools=tools, parallel_tool_calls=False),
        ChatOptions(tools=tools),
        ChatOptions(tools=tools, tool_choice="required"),
    ):
        grammar = encoding.encode(USER, choice).grammar
        assert grammar is not None
        compiler.check(grammar)
