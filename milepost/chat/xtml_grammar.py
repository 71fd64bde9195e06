"""What a reply of Kimi K3 may spell, when the request asks for a form of it.

The thinking channel is always free. Then come the content, the calls, or both:

    [think text] content <close>response<sep> [<open>tools<sep> calls <close>tools<sep>] <close>message<sep>

A call's arguments are held to its function's schema when it must be called or is ``strict``. Up to four
may come in any order; more come in the order of their names, which is how the tools are declared.
"""

from __future__ import annotations

from collections.abc import Mapping

from milepost.chat.argument_schemas import ArgumentSet, argument_set, values_of
from milepost.chat.response_format import ContentForm
from milepost.chat.tools import Function, ToolUse
from milepost.chat.xtml_reply import XtmlMarkers
from milepost.chat.xtml_writer import escaped
from milepost.grammar.texts import (
    Piece,
    either,
    free_text,
    grammar,
    literal,
    nested,
    optional,
    regex,
    repeated,
    sequence,
    token,
)
from milepost.types import Grammar

__all__ = ["XtmlGrammar"]

MAX_IN_ANY_ORDER = 4
_NUMBER = regex("[1-9][0-9]{0,3}")
# Text between an attribute's quotes, as `escaped` writes it.
_ATTRIBUTE = regex('([^"&]|&amp;|&quot;)+')


class XtmlGrammar:
    """Writes grammars of whole replies, from the generation prefix on."""

    def __init__(self, markers: XtmlMarkers) -> None:
        self._open = token(markers.open)
        self._close = token(markers.close)
        self._sep = token(markers.sep)
        self._end = token(markers.end)

    def reply(self, form: ContentForm, tools: ToolUse, *, thinking: bool) -> Grammar | None:
        """What a reply may spell; None when the request leaves it free.

        Raises:
            RequestError: a function's schema can't be held to.
        """
        if form.grammar is None and not tools.constrained:
            return None
        pieces = [self._after_content(form, tools), self._closing("message"), self._end]
        if thinking:
            pieces = [free_text(), self._closing("think"), self._opening("response"), *pieces]
        return grammar(sequence(*pieces))

    def _after_content(self, form: ContentForm, tools: ToolUse) -> Piece:
        closed = self._closing("response")
        content = free_text() if form.grammar is None else nested(form.grammar)
        if tools.choice == "none" or not tools.functions:
            return sequence(content, closed)
        calls = self._calls(tools)
        if form.grammar is None:
            return sequence(content, closed, calls if tools.forced else optional(calls))
        # Content of a form is an answer, and so is a call: there is one or the other.
        called = sequence(closed, calls)
        return called if tools.forced else either(sequence(content, closed), called)

    def _calls(self, tools: ToolUse) -> Piece:
        call = either(*(self._call(function, forced=tools.forced) for function in tools.functions))
        several = repeated(call, 1, None if tools.parallel else 1)
        return sequence(self._opening("tools"), several, self._closing("tools"))

    def _call(self, function: Function, *, forced: bool) -> Piece:
        held = forced or function.strict
        arguments = argument_set(function.parameters if held else {})
        return sequence(
            self._open,
            literal(f'call tool="{escaped(function.name)}" index="'),
            nested(_NUMBER),
            literal('"'),
            self._sep,
            *self._arguments(arguments, function.path),
            self._closing("call"),
        )

    def _arguments(self, given: ArgumentSet, path: str) -> list[Piece]:
        """The pieces for all arguments; none when there are no arguments."""
        every = {name: self._argument(name, given, path) for name in sorted(given.properties)}
        unknown = sorted(given.required - every.keys())
        every |= {name: self._named(name, True, given, path) for name in unknown}
        pieces: list[Piece] = []
        if len(every) <= MAX_IN_ANY_ORDER:
            anyhow = _in_any_order(every, given.required)
            pieces += [] if anyhow is None else [anyhow]
        else:
            pieces += [
                piece if name in given.required else optional(piece) for name, piece in sorted(every.items())
            ]
        if given.others is not None:
            pieces.append(repeated(self._named(None, given.others, given, path)))
        return pieces

    def _argument(self, name: str, given: ArgumentSet, path: str) -> Piece:
        return self._named(name, given.properties[name], given, path)

    def _named(self, name: str | None, schema: object, given: ArgumentSet, path: str) -> Piece:
        """One argument, of any name when it is None."""
        key = nested(_ATTRIBUTE) if name is None else literal(escaped(name))
        forms = [
            sequence(literal(f'" type="{value.kind}"'), self._sep, value.piece)
            for value in values_of(schema, given.root, path)
        ]
        start = [literal('argument key="')] + ([key] if name != "" else [])
        return sequence(self._open, *start, either(*forms), self._closing("argument"))

    def _opening(self, tag: str) -> Piece:
        return sequence(self._open, literal(tag), self._sep)

    def _closing(self, tag: str) -> Piece:
        return sequence(self._close, literal(tag), self._sep)


def _in_any_order(every: Mapping[str, Piece], required: frozenset[str]) -> Piece | None:
    """Each piece once at most, and the required ones once, in any order; None for no pieces."""
    branches = [_first(name, every, required) for name in every]
    if not branches:
        return None
    whole = either(*branches)
    return whole if required & every.keys() else optional(whole)


def _first(name: str, every: Mapping[str, Piece], required: frozenset[str]) -> Piece:
    """The orders that begin with `name`."""
    rest = {other: piece for other, piece in every.items() if other != name}
    after = _in_any_order(rest, required)
    return sequence(every[name], *([] if after is None else [after]))
