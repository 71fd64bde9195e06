"""Writes grammars: what users ask for, and what chat encodings compose around it.

Two kinds of things are made here. A `Grammar` is whole: `json_object`, `json_schema`, `regex`, `choice` and
`lark` make one from what a user gave, `grammar` from pieces. A `Piece` is a part of one: `token`, `literal`,
`free_text`, `text_through` and `nested` (any whole grammar) make the smallest, `sequence`, `either`,
`optional` and `repeated` compose them::

    call = sequence(token(OPEN), literal(f'call tool="{name}"'), token(SEP), nested(json_schema(parameters)))
    reply = grammar(sequence(free_text(), token(CLOSE), repeated(call), token(END)))

Text that is given may hold anything: quotes, newlines, braces, names of tokens. It is escaped here and can't
become syntax. What only compiling can tell (an unsupported keyword, a broken regular expression) is told by
`milepost.grammar.compiler`.

Text is matched byte by byte, however it is tokenised, and special tokens are no text: they are matched by
`token` alone. A piece of text takes as many bytes as it can before the next piece begins, so what may go on
without end must be followed by a token, by the grammar's end, or by text that it can't itself spell:
``sequence(free_text(), literal("x"))`` matches nothing, `text_through` is for that.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from string import ascii_letters, digits

import msgspec

from milepost.errors import RequestError
from milepost.types import Grammar

__all__ = [
    "Piece",
    "choice",
    "either",
    "free_text",
    "grammar",
    "json_object",
    "json_schema",
    "lark",
    "literal",
    "nested",
    "optional",
    "regex",
    "repeated",
    "sequence",
    "text_through",
    "token",
]

_PLAIN = frozenset(ascii_letters + digits + " _")  # mean nothing else in a regular expression
_ANY_TEXT = "/(?s:.*)/"
# JSON may be laid out in lines, but a model that has lost its thread must not go on with spaces for ever: one
# space, or a new line and what indents it.
_JSON_WHITESPACE = "( |\\x0D?\\x0A[\\x20\\x09]{0,32})"
_JSON_OPTIONS = "x-guidance"  # llguidance's key for options inside a schema


class Piece(msgspec.Struct, frozen=True):
    """A part of a grammar; `grammar` makes a whole one of it.

    Attributes:
        lark: the piece as one operand in llguidance's dialect of Lark.
    """

    lark: str


def json_object() -> Grammar:
    """Any JSON object, without space around it."""
    return json_schema({"type": "object"})


def json_schema(schema: Mapping[str, object] | bool, *, lenient: bool = False) -> Grammar:
    """JSON that a JSON Schema (draft 2020-12) allows; properties come in the schema's order.

    ``True`` and ``{}`` allow any JSON value. There is no space around the value, and little within it.

    Args:
        schema: the schema.
        lenient: pass over keywords that can't be held to, which are refused otherwise.

    Raises:
        RequestError: no JSON, ``False``, or a schema with llguidance's own options, which could undo what
            is promised here.
    """
    if schema is False:
        raise RequestError("A JSON schema must allow something. Given: false.", param="json_schema")
    if not isinstance(schema, Mapping) and schema is not True:
        raise RequestError(f"A JSON schema must be an object. Given: {schema!r:.60}.", param="json_schema")
    fields: dict[str, object] = dict(schema) if isinstance(schema, Mapping) else {}
    if _JSON_OPTIONS in fields:
        raise RequestError(
            f"A JSON schema must not hold {_JSON_OPTIONS!r}. Leave it out.", param="json_schema"
        )
    fields[_JSON_OPTIONS] = {"whitespace_pattern": _JSON_WHITESPACE} | ({"lenient": True} if lenient else {})
    try:
        text = json.dumps(fields, allow_nan=False).replace("&", "\\u0026")  # as in `literal`
    except (TypeError, ValueError, RecursionError) as error:
        raise RequestError(f"A JSON schema must be JSON ({error}).", param="json_schema") from None
    return grammar(Piece(f"%json {text}"))


def regex(pattern: str) -> Grammar:
    """Text that a regular expression matches as a whole.

    The syntax is that of Rust's ``regex`` crate: no look-around, no back references. As in most others of
    this kind, ``^`` first and ``$`` last are allowed and change nothing.

    Raises:
        RequestError: no pattern, or one that ends in the middle of an escape.
    """
    _require_text("A regular expression", pattern, "regex")
    return grammar(Piece(_pattern_of(pattern)))


def choice(options: Sequence[str]) -> Grammar:
    """One of some texts.

    Raises:
        RequestError: there is none, or one is no text.
    """
    if isinstance(options, str) or not options:
        raise RequestError(f"A choice must be a list of texts. Given: {options!r:.60}.", param="choice")
    for option in options:
        _require_text("An option of a choice", option, "choice")
    # One expression and not as many rules: the parser would keep a place in each of them.
    pattern = "|".join(_exactly(option) for option in dict.fromkeys(options))
    return grammar(Piece(f"/(?:{pattern})/"))


def lark(text: str) -> Grammar:
    """A user's own grammar, in llguidance's dialect of Lark, whose top rule is ``start``.

    Check it with `milepost.grammar.compiler` by itself before it is `nested`: only what is a grammar of its
    own can't reach out of its nest.

    Raises:
        RequestError: no text.
    """
    _require_text("A grammar", text, "grammar")
    if not text.strip():
        raise RequestError("A grammar must have a rule `start`. Given: nothing.", param="grammar")
    return Grammar(lark=text)


def grammar(piece: Piece) -> Grammar:
    """A whole grammar of one piece: the reply spells it and ends."""
    return Grammar(lark=f"start: {piece.lark}\n")


def token(*token_ids: int) -> Piece:
    """One token, which is any of these ids; the only way to match a special token.

    Raises:
        ValueError: there is none, or one is negative.
    """
    if not token_ids or min(token_ids) < 0:
        raise ValueError(f"a piece needs token ids that are not negative; given {token_ids}")
    return Piece(f"<[{','.join(map(str, token_ids))}]>")


def literal(text: str) -> Piece:
    """Exactly this text, whatever it holds; ``""`` matches nothing at all, and goes on.

    Raises:
        RequestError: it is no Unicode text.
    """
    _require_text("A literal", text, None)
    # JSON's escapes are Lark's. Behind U+007E everything is escaped too; & would look like Lark's "and".
    return Piece(json.dumps(text).replace("\x7f", "\\u007f").replace("&", "\\u0026"))


def free_text() -> Piece:
    """Any text, also none, that holds no special token; follow it by a token or by nothing."""
    return Piece(_ANY_TEXT)


def text_through(ending: str) -> Piece:
    """Any text that ends where `ending` has first been spelled, which is the piece's last part.

    Raises:
        ValueError: the ending is empty.
    """
    if not ending:
        raise ValueError("a text needs an ending to end with")
    return Piece(f"%lark {{\nstart[suffix={literal(ending).lark}]: {_ANY_TEXT}\n}}")


def nested(whole: Grammar) -> Piece:
    """A whole grammar as a piece: a schema, a choice, a user's own grammar.

    Its rules are its own: their names clash with no others.
    """
    return Piece(f"%lark {{\n{whole.lark}\n}}")


def sequence(*pieces: Piece) -> Piece:
    """One after the other; no piece is `literal("")`."""
    if not pieces:
        return literal("")
    return pieces[0] if len(pieces) == 1 else Piece(f"({' '.join(piece.lark for piece in pieces)})")


def either(*pieces: Piece) -> Piece:
    """Any one of some pieces. They differ in their first token or their first bytes.

    Where a nested grammar and something else can begin alike, one of them is settled on too early.

    Raises:
        ValueError: there is none.
    """
    if not pieces:
        raise ValueError("one of no pieces can't be matched")
    return pieces[0] if len(pieces) == 1 else Piece(f"({' | '.join(piece.lark for piece in pieces)})")


def optional(piece: Piece) -> Piece:
    """The piece or nothing."""
    return Piece(f"(({piece.lark})?)")


def repeated(piece: Piece, least: int = 0, most: int | None = None) -> Piece:
    """The piece as often as `least` to `most` times; None is no limit.

    Raises:
        ValueError: the counts are negative or the wrong way round.
    """
    if least < 0 or (most is not None and most < max(least, 1)):
        raise ValueError(f"a piece can't be repeated {least} to {most} times")
    return Piece(f"(({piece.lark}){{{least},{'' if most is None else most}}})")


def _pattern_of(pattern: str) -> str:
    """A regular expression between Lark's slashes."""
    escaped: list[str] = []
    after_backslash = False
    for at, char in enumerate(pattern):
        if char == "&" and "&" not in (pattern[at - 1 : at], pattern[at + 1 : at + 2]):
            # By itself it would look like Lark's "and"; two are an operator of classes.
            escaped.append("x26" if after_backslash else "\\x26")
            after_backslash = False
        elif after_backslash:
            # An escaped newline is a newline; the others stay as they are.
            escaped.append("n" if char == "\n" else char)
            after_backslash = False
        else:
            after_backslash = char == "\\"
            escaped.append({"/": "\\/", "\n": "\\n", "\r": "\\r"}.get(char, char))
    if after_backslash:
        raise RequestError(
            f"A regular expression must not end in a lone backslash. Given: {pattern!r:.60}.", param="regex"
        )
    return f"/{''.join(escaped)}/" if escaped else '""'  # two slashes would begin a comment


def _exactly(text: str) -> str:
    """A regular expression that matches a text, between Lark's slashes."""
    return "".join(char if char in _PLAIN else f"\\x{{{ord(char):x}}}" for char in text)


def _require_text(what: str, text: object, param: str | None) -> None:
    if not isinstance(text, str):
        raise RequestError(f"{what} must be text. Given: {text!r:.60}.", param=param)
    if any("\ud800" <= char <= "\udfff" for char in text):
        raise RequestError(f"{what} must be Unicode text. Given: half a character.", param=param)
