"""Grammars' texts: whatever is given is matched as it is, and nothing given becomes syntax."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from milepost.errors import RequestError
from milepost.grammar.texts import (
    Piece,
    choice,
    either,
    free_text,
    grammar,
    json_object,
    json_schema,
    lark,
    literal,
    nested,
    optional,
    regex,
    repeated,
    sequence,
    text_through,
    token,
)
from milepost.types import Grammar
from tests.grammar.vocabularies import CLOSE, END, OPEN, accepts, compiler

GRAMMARS = compiler()

# What is syntax somewhere on the way: in Lark, in JSON, in regular expressions, in names of tokens.
NASTY = st.text(
    st.sampled_from("ab \n\r\t\"'\\/{}[]()<>|&~^$.*+?-#%:;,!=@é\u2028\U0001f600\x00\x7f")
    | st.characters(exclude_categories=["Cs"]),
    max_size=12,
)


def spells(whole: Grammar, text: str) -> bool:
    return accepts(GRAMMARS, whole, list(text.encode()))


@settings(deadline=None)
@given(NASTY)
def test_a_literal_matches_itself_alone(text: str) -> None:
    whole = grammar(sequence(token(OPEN), literal(text), token(CLOSE)))
    assert accepts(GRAMMARS, whole, [OPEN, *text.encode(), CLOSE])
    assert not accepts(GRAMMARS, whole, [OPEN, *text.encode(), ord("x"), CLOSE])


@settings(deadline=None)
@given(st.lists(NASTY, min_size=1, max_size=4), NASTY)
def test_a_choice_matches_its_options_alone(options: list[str], other: str) -> None:
    whole = choice(options)
    assert all(spells(whole, option) for option in options)
    assert spells(whole, other) == (other in options)


@settings(deadline=None)
@given(NASTY, NASTY)
def test_a_schemas_names_and_values_are_never_syntax(name: str, value: str) -> None:
    assume("\x7f" not in name + value)  # whether it is escaped is the compiler's choice
    schema = {
        "type": "object",
        "properties": {name: {"const": value}},
        "required": [name],
        "additionalProperties": False,
        "description": f"%lark {{ {name} }} {value}",
    }
    whole = grammar(sequence(nested(json_schema(schema)), token(CLOSE)))
    text = json.dumps({name: value}, ensure_ascii=False)
    assert accepts(GRAMMARS, whole, [*text.encode(), CLOSE])
    assert not accepts(GRAMMARS, whole, [*json.dumps({name: value + "x"}).encode(), CLOSE])


@settings(deadline=None)
@given(NASTY)
def test_text_runs_through_its_first_ending(ending: str) -> None:
    assume(ending and not {*ending} & {"a", "x"})
    whole = grammar(sequence(text_through(ending), literal("x")))
    assert spells(whole, f"aaa{ending}x")
    assert not spells(whole, f"aaa{ending}aax")


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("a/b", "a/b"),
        (r"a\/b", "a/b"),
        ("[/]", "/"),
        ("/", "/"),
        ("", ""),
        ("^ab$", "ab"),
        (r"a\$", "a$"),
        (r"\\", "\\"),
        ("a\nb", "a\nb"),
        ("a\\\nb", "a\nb"),
        ("(?i)ab", "AB"),
        ("#", "#"),
        ('"', '"'),
        ("é+", "éé"),
        ("(ab)*", "abab"),
        ("a&b", "a&b"),
    ],
)
def test_a_pattern_is_matched_as_a_whole(pattern: str, text: str) -> None:
    assert spells(regex(pattern), text)
    assert not spells(regex(pattern), text + "zz")


@settings(deadline=None)
@given(NASTY)
def test_no_pattern_reaches_out_of_its_slashes(pattern: str) -> None:
    """Whatever the pattern, it matches one text or is refused: the token behind it stays a rule of ours."""
    try:
        whole = grammar(sequence(nested(regex(pattern)), token(CLOSE)))
        GRAMMARS.check(whole)
    except RequestError:
        return
    matcher = GRAMMARS.matcher(whole)
    assert not matcher.mask()[END]


def test_pieces_compose() -> None:
    call = sequence(literal("ab"), token(OPEN), nested(json_schema({"type": "integer"})), token(CLOSE))
    whole = grammar(sequence(optional(literal("x")), repeated(call, 1, 2), either(token(OPEN), literal("y"))))
    one = [*b"ab", OPEN, *b"12", CLOSE]
    assert accepts(GRAMMARS, whole, [*b"x", *one, *b"y"])
    assert accepts(GRAMMARS, whole, [*one, *one, OPEN])
    assert not accepts(GRAMMARS, whole, [*b"x", *b"y"])
    assert not accepts(GRAMMARS, whole, [*one, *one, *one, OPEN])
    assert accepts(GRAMMARS, grammar(sequence()), [])
    assert accepts(GRAMMARS, grammar(sequence(free_text(), token(OPEN, CLOSE))), [*"né".encode(), CLOSE])
    assert accepts(GRAMMARS, grammar(repeated(literal("ab"), 2)), [*b"ababab"])


def test_a_nested_grammars_rules_are_its_own() -> None:
    user = lark('start: x "}" // }\nx: "b"\n%ignore / +/')
    whole = grammar(sequence(nested(user), token(CLOSE), nested(user), nested(json_object())))
    assert accepts(GRAMMARS, whole, [*b"b }", CLOSE, *b"b}{}"])
    GRAMMARS.check(user)
    with pytest.raises(RequestError, match="can't be used"):
        GRAMMARS.check(lark('start: "a" }\nx: %lark {\nstart: "b"'))


def test_json_may_be_laid_out_in_lines_but_not_without_end() -> None:
    value = {"a": [1, {"b": None}], "c": {}}
    for text in (json.dumps(value), json.dumps(value, indent=4), json.dumps(value, separators=(",", ":"))):
        assert spells(json_object(), text)
        assert spells(json_schema(True), text)
    assert not spells(json_object(), "[]")
    assert not spells(json_object(), " {}")
    assert not spells(json_object(), '{"a":  1}')
    assert not spells(json_object(), '{"a":' + "\n" * 2 + "1}")


@pytest.mark.parametrize(
    "build",
    [
        lambda: json_schema(False),
        lambda: json_schema([1]),  # type: ignore[arg-type]
        lambda: json_schema({"x-guidance": {"lenient": True}}),
        lambda: json_schema({"const": float("nan")}),
        lambda: json_schema({"const": {1, 2}}),
        lambda: regex("a\\"),
        lambda: regex(3),  # type: ignore[arg-type]
        lambda: regex("\ud800"),
        lambda: choice([]),
        lambda: choice("abc"),
        lambda: choice([1]),  # type: ignore[list-item]
        lambda: lark(" \n"),
        lambda: literal("\udfff"),
    ],
)
def test_what_a_user_may_not_give_is_refused(build: Callable[[], object]) -> None:
    with pytest.raises(RequestError):
        build()


@pytest.mark.parametrize(
    "build",
    [
        token,
        lambda: token(-1),
        either,
        lambda: text_through(""),
        lambda: repeated(Piece("x"), 2, 1),
        lambda: repeated(Piece("x"), 0, 0),
    ],
)
def test_pieces_that_match_nothing_are_refused(build: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match=r"."):
        build()
