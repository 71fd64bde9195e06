"""What a reply of Kimi K3 may spell, when the request asks for a form of it.

The thinking channel is always free. Then come the content, the calls, or both:

    [think text] content <close>response<sep> [<open>tools<sep> calls <close>tools<sep>] <close>message<sep>

A call's arguments are held to its function's schema when it must be called or is ``strict``. Up to six
may come in any order; more come in the order of their names, which is how the tools are declared.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from milepost.chat.argument_schemas import ArgumentSet, Value, argument_set, values_of
from milepost.chat.response_format import ContentForm
from milepost.chat.text_pieces import without_surrogates
from milepost.chat.tools import Function, ToolUse
from milepost.chat.xtml_reply import XtmlMarkers
from milepost.chat.xtml_writer import escaped
from milepost.errors import RequestError
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

MAX_IN_ANY_ORDER = 6
# Each argument brings the definitions that it refers to: a request must not grow a hundredfold here.
MAX_GRAMMAR_CHARS = 1024 * 1024
_LATER = regex("[2-9]|[1-9][0-9]{1,3}")  # the index of a call that is not the first
# Text between an attribute's quotes, as `escaped` writes it: its units, and how many are told apart.
_UNIT = re.compile("&amp;|&quot;|.", re.DOTALL)
_ENTITIES = ("&amp;", "&quot;")
_ANY_UNIT = '(?:[^"&]|&amp;|&quot;)'
MAX_NAME_UNITS = 128
MAX_NAMES_IN_ANOTHER = 24  # such as a, ab, abc; each is a group in a group


class XtmlGrammar:
    """Writes grammars of whole replies, from the generation prefix on."""

    def __init__(self, markers: XtmlMarkers) -> None:
        self._tags = _Tags(markers)

    def reply(self, form: ContentForm, tools: ToolUse, *, thinking: bool) -> Grammar | None:
        """What a reply may spell; None when the request leaves it free.

        Raises:
            RequestError: a function's schema can't be held to.
        """
        if form.grammar is None and not tools.constrained:
            return None
        tags, rules = self._tags, _Rules()
        pieces = [self._after_content(form, tools, rules), tags.closing("message"), tags.end]
        if thinking:
            pieces = [free_text(), tags.closing("think"), tags.opening("response"), *pieces]
        return rules.grammar(sequence(*pieces))

    def _after_content(self, form: ContentForm, tools: ToolUse, rules: _Rules) -> Piece:
        closed = self._tags.closing("response")
        content = free_text() if form.grammar is None else nested(form.grammar)
        if tools.choice == "none" or not tools.functions:
            return sequence(content, closed)
        calls = self._calls(tools, rules)
        if form.grammar is None:
            return sequence(content, closed, calls if tools.forced else optional(calls))
        # Content of a form is an answer, and so is a call: there is one or the other.
        called = sequence(closed, calls)
        return called if tools.forced else either(sequence(content, closed), called)

    def _calls(self, tools: ToolUse, rules: _Rules) -> Piece:
        tags = self._tags
        # The arguments of each function are written once, for the first call and for those after it.
        bodies = [
            (function, rules.named(self._body(function, rules, forced=tools.forced)))
            for function in tools.functions
        ]
        first = either(*(self._call(function, literal("1"), body) for function, body in bodies))
        if not tools.parallel:
            return sequence(tags.opening("tools"), first, tags.closing("tools"))
        more = either(*(self._call(function, nested(_LATER), body) for function, body in bodies))
        return sequence(tags.opening("tools"), first, repeated(more), tags.closing("tools"))

    def _call(self, function: Function, index: Piece, body: Piece) -> Piece:
        name = literal(f'call tool="{_spelled(function.name)}" index="')
        return sequence(self._tags.open, name, index, literal('"'), self._tags.sep, body)

    def _body(self, function: Function, rules: _Rules, *, forced: bool) -> Piece:
        held = forced or function.strict
        arguments = argument_set(function.parameters if held else {})
        pieces = _arguments(arguments, self._tags, rules, function.path)
        return sequence(*pieces, self._tags.closing("call"))


class _Tags:
    """The pieces of tags."""

    def __init__(self, markers: XtmlMarkers) -> None:
        self.open = token(markers.open)
        self.close = token(markers.close)
        self.sep = token(markers.sep)
        self.end = token(markers.end)

    def opening(self, tag: str) -> Piece:
        return sequence(self.open, literal(tag), self.sep)

    def closing(self, tag: str) -> Piece:
        return sequence(self.close, literal(tag), self.sep)

    def argument(self, name: str | None, values: Sequence[Value], others: Iterable[str] = ()) -> Piece:
        """One argument; of any name but `others` when it is None."""
        key = nested(_name_but(others)) if name is None else literal(_spelled(name))
        forms = (sequence(literal(f'" type="{value.kind}"'), self.sep, value.piece) for value in values)
        start = (literal('argument key="'), *([] if name == "" else [key]))
        return sequence(self.open, *start, either(*forms), self.closing("argument"))


def _name_but(names: Iterable[str]) -> Grammar:
    """An attribute's value that is none of some: they bear a schema of their own, and come once."""
    taken: dict[str, Any] = {}
    for name in names:
        units = _UNIT.findall(_spelled(name))
        if 0 < len(units) <= MAX_NAME_UNITS:
            place = taken
            for unit in units:
                place = place.setdefault(unit, {})
            place[""] = {}
    return regex(_going_on(taken))


def _going_on(taken: Mapping[str, Any], depth: int = 0) -> str:
    """A pattern for one or more units that are no way through `taken` to an end of it."""
    ways = [_away(taken)]
    for unit in filter(None, taken):
        start, after = _matching(unit), taken[unit]
        while True:  # as long as there is one way on, without a group in a group
            if "" not in after:
                ways.append(start)
            units = list(filter(None, after))
            if len(units) != 1:
                break
            ways.append(start + _away(after))
            start, after = start + _matching(units[0]), after[units[0]]
        told_apart = bool(units) and depth < MAX_NAMES_IN_ANOTHER
        ways.append(start + (_going_on(after, depth + 1) if told_apart else f"{_ANY_UNIT}+"))
    return f"(?:{'|'.join(ways)})"


def _away(taken: Mapping[str, Any]) -> str:
    """A pattern for all that begins with another unit than some."""
    chars = "".join(_matching(unit) for unit in taken if len(unit) == 1)
    ways = [f'[^"&{chars}]', *(entity for entity in _ENTITIES if entity not in taken)]
    return f"(?:{'|'.join(ways)}){_ANY_UNIT}*"


def _matching(unit: str) -> str:
    """A pattern for one unit."""
    if len(unit) > 1 or (unit.isascii() and unit.isalnum()):
        return unit
    return f"\\x{{{ord(unit):x}}}"


def _spelled(value: str) -> str:
    """An attribute's value as the model was shown it."""
    return escaped(without_surrogates(value))


class _Rules:
    """Pieces that a grammar has by name, since they occur in many places."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._chars = 0

    def named(self, piece: Piece) -> Piece:
        """A piece that stands for `piece`, which is written once.

        Raises:
            RequestError: the grammar gets too large.
        """
        self._chars += len(piece.lark)
        if self._chars > MAX_GRAMMAR_CHARS:
            raise RequestError(
                f"tools must be small enough to hold a reply to: a grammar of {MAX_GRAMMAR_CHARS:,} "
                "characters at most. Give fewer or smaller schemas, or leave out tool_choice and strict.",
                param="tools",
            )
        name = f"part_{len(self._lines)}"
        self._lines.append(f"{name}: {piece.lark}\n")
        return Piece(name)

    def grammar(self, start: Piece) -> Grammar:
        """The whole grammar."""
        return Grammar(lark=grammar(start).lark + "".join(self._lines))


def _arguments(given: ArgumentSet, tags: _Tags, rules: _Rules, path: str) -> list[Piece]:
    """The pieces for all arguments of a call, one after the other; none when there are none."""
    closed = given.root.get("additionalProperties") is False
    schemas = dict.fromkeys(given.required, False if closed else given.others) | dict(given.properties)
    every = {
        name: rules.named(tags.argument(name, values_of(schemas[name], given.root, path)))
        for name in sorted(schemas)
    }
    if len(every) <= MAX_IN_ANY_ORDER:
        orders = _orders(frozenset(every), every, given.required, rules, {})
        pieces = [] if orders is None else [orders]
    else:
        pieces = [piece if name in given.required else optional(piece) for name, piece in every.items()]
    if given.others is not None:
        others = values_of(given.others, given.root, path)
        pieces.append(repeated(rules.named(tags.argument(None, others, every))))
    return pieces


def _orders(
    left: frozenset[str],
    every: Mapping[str, Piece],
    required: frozenset[str],
    rules: _Rules,
    known: dict[frozenset[str], Piece],
) -> Piece | None:
    """The arguments that are `left`, in any order, the required ones among them; None for none."""
    if not left:
        return None
    if left not in known:
        branches = []
        for name in sorted(left):
            after = _orders(left - {name}, every, required, rules, known)
            branches.append(sequence(every[name], *([] if after is None else [after])))
        whole = either(*branches)
        known[left] = rules.named(whole if required & left else optional(whole))
    return known[left]
