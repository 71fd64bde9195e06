"""Hostile grammars: refused before they cost much, or compiled in no time, whatever they ask for."""

from __future__ import annotations

import time
from typing import Any

import pytest

from milepost.errors import ExecutionError, RequestError
from milepost.grammar.bounds import require_bounded
from milepost.grammar.texts import choice, json_schema, lark, regex
from milepost.types import Grammar
from tests.grammar.vocabularies import END, accepts, compiler

SECONDS = 3.0  # a busy machine's worst; quiet ones take a tenth


def deep(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    return schema


def doubling(levels: int, last: dict[str, Any]) -> dict[str, Any]:
    """Each definition is all of the one before, twice."""
    defs = {"d0": last}
    for level in range(1, levels):
        part = {"$ref": f"#/$defs/d{level - 1}"}
        defs[f"d{level}"] = {"allOf": [part, part]}
    return {"$ref": f"#/$defs/d{levels - 1}", "$defs": defs}


def crossing(count: int) -> dict[str, Any]:
    """All of many choices of two: as many objects as there are ways to choose."""
    return {
        "allOf": [
            {"anyOf": [{"type": "object", "properties": {f"a{i}": {"const": n}}} for n in (1, 2)]}
            for i in range(count)
        ]
    }


HOSTILE = {
    "repeated": regex("(a|b){1,100000}"),
    "repeated twice": regex("(a{1,1000}){1,1000}"),
    "repeated thrice": lark('start: (("a"{1,1000}){1,1000}){1,1000}'),
    "exponential states": regex("(a|b)*a(a|b){200}"),
    "backtracking": regex("((((a+)+)+)+)+b"),
    "many unanchored": regex("|".join(f".*a{i}.*b" for i in range(200))),
    "deep": json_schema(deep(100)),
    "wide enum": json_schema({"enum": [f"value {i * 7919 % 10007}" for i in range(10_000)]}),
    "wide choice": choice([f"value {i * 7919 % 10007}" for i in range(10_000)]),
    "long choice": choice(["a" * 100_000, "b"]),
    "recursive": json_schema({"properties": {"n": {"$ref": "#"}}}),
    "doubling": json_schema(doubling(30, {"type": "object"})),
    "crossing": json_schema(crossing(9)),
    "crossing more": json_schema(crossing(14)),
    "long string": json_schema({"type": "string", "maxLength": 1_000_000}),
    "long array": json_schema({"type": "array", "minItems": 100_000, "maxItems": 1_000_000}),
    "ambiguous": lark('start: e\ne: e e | "a" | "b" | e "a" e'),
    "right recursion": lark('start: "a" start | "a"'),
    "nested groups": lark(f"start: {'(' * 5000}/a/{')' * 5000}"),
    "negation": lark("start: T\nT: ~/(.*)a(.{50})b(.*)/ & /(.*)c(.{40})(.*)/"),
    "nothing repeated": lark('start: x*\nx: y*\ny: z*\nz: "a"?'),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_it_costs_no_more_than_a_moment(name: str) -> None:
    """Refused, or compiled and followed for forty tokens until a limit ends it."""
    grammars = compiler()
    grammars.check(choice(["a"]))  # the table is built
    began = time.perf_counter()
    try:
        grammars.check(HOSTILE[name])
        matcher = grammars.matcher(HOSTILE[name])
        for _ in range(40):
            allowed = matcher.mask().nonzero()[0]
            matcher.take(int(allowed[len(allowed) // 2]))
    except (RequestError, ExecutionError):
        pass
    assert time.perf_counter() - began < SECONDS


def patterns(count: int) -> dict[str, Any]:
    return {f"^{i:05}$": {} for i in range(count)}


@pytest.mark.parametrize(
    ("whole", "words"),
    [
        (json_schema({"type": "integer", "multipleOf": 1_234_567}), "multipleOf"),
        (json_schema({"type": "integer", "multipleOf": 100_000_007.0}), "multipleOf"),
        (json_schema({"multipleOf": 1e300}), "multipleOf"),
        (json_schema({"multipleOf": 1.234567}), "multipleOf"),
        (lark('start: %json {"multip\\u006ceOf": 1234567}'), "multipleOf"),
        (lark('start: "a" %lark {\nstart: %json\n {"a": [{"multipleOf": 12345.67}]} }'), "multipleOf"),
        (json_schema({"allOf": [{"multipleOf": 997}, {"multipleOf": 991}]}), "multipleOf"),
        (json_schema({"multipleOf": 10**120}), "100 characters"),
        (json_schema({"patternProperties": patterns(2000)}), "patternProperties"),
        (json_schema({"anyOf": [{"patternProperties": patterns(40)}] * 2}), "patternProperties"),
        (json_schema({"allOf": [{"pattern": f"a{i}.*b"} for i in range(100)]}), "hold together"),
        (json_schema(doubling(6, {"pattern": "a.*b"})), "hold together"),
        (json_schema(doubling(300, {"pattern": "a.*b"})), "hold together"),
        (lark("start: X\nX: " + " & ".join(f"/.*a{i}.*/" for i in range(40))), "hold together"),
        (choice(["a" * 2_000_000]), "1048576 characters"),
        (lark("start: " + "%json " * 150_000), "2000 JSON schemas"),
        (lark("start: %json " + '{"a":' * 5000 + "1" + "}" * 5000), "nested"),
        (lark("start: %json " + '{"a":' * 800 + "1" + "}" * 800), "nested"),
    ],
)
def test_what_the_compiler_does_not_bound_is_refused(whole: Grammar, words: str) -> None:
    began = time.perf_counter()
    with pytest.raises(RequestError, match=words) as caught:
        require_bounded(whole)
    assert caught.value.param == "grammar"
    assert time.perf_counter() - began < SECONDS


@pytest.mark.parametrize(
    "schema",
    [
        {
            "properties": {
                f"p{i}": {"type": "string", "pattern": "^a&b$", "format": "uri"} for i in range(200)
            }
        },
        {"properties": {f"p{i}": {"type": "number", "multipleOf": 0.01} for i in range(200)}},
        {"allOf": [{"multipleOf": 5}, {"multipleOf": 0.25}, {"multipleOf": 60}]},
        {"properties": {"pattern": {"type": "string"}, "allOf": {}, "multipleOf": {"type": "number"}}},
        {"$ref": "#/$defs/a~1b", "$defs": {"a/b": {"properties": {"x": {"$ref": "#/$defs/a~1b"}}}}},
        {"const": '%json {"multipleOf": 1234567'},
        {"patternProperties": patterns(64)},
    ],
)
def test_what_people_write_is_not(schema: dict[str, Any]) -> None:
    require_bounded(json_schema(schema))
    compiler().check(json_schema(schema))


def test_numbers_that_the_compiler_would_round_are_refused() -> None:
    grammars = compiler()
    for schema in ({"const": 2**53 + 1}, {"enum": ["a", [{"b": 1234567890123456789}]]}):
        with pytest.raises(RequestError, match="a double can hold"):
            grammars.check(json_schema(schema))
    grammars.check(json_schema({"enum": [2**53, 2**60, 0.1, -1e300]}))


def test_a_number_out_of_all_range_is_refused() -> None:
    with pytest.raises(RequestError, match="out of range"):
        compiler().check(lark('start: %json {"const": 1e99999999999999999999}'))


def test_an_and_of_a_pattern_is_no_operator() -> None:
    grammars = compiler()
    pattern = "&".join(["[&a-c]"] * 20) + r"[a-z&&[^b]]\&"
    whole = regex(pattern)
    grammars.check(whole)
    text = "&".join(["&"] * 20) + "a&"
    assert accepts(grammars, whole, [*text.encode(), END])
    assert not accepts(grammars, whole, [*text.replace("a", "b").encode(), END])
