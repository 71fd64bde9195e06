"""What a reply that marks its parts in text may spell, when the request asks for a form of it.

A tag is a special token of some tokenizers and text in others; as text it is matched however it is tokenised.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from milepost.chat.argument_schemas import arguments_schema
from milepost.chat.response_format import ContentForm
from milepost.chat.templates.text_replies import CALL_CLOSE, CALL_OPEN, THINK_CLOSE, THINK_OPEN
from milepost.chat.text_pieces import without_surrogates
from milepost.chat.tools import Function, ToolUse
from milepost.errors import RequestError
from milepost.grammar import texts
from milepost.grammar.texts import Piece
from milepost.types import Grammar

__all__ = ["TextGrammar"]

_SPACE = texts.regex(r"\s{0,4}")


class TextGrammar:
    """Writes grammars of whole replies, from the generation prefix on.

    Args:
        forms: of `milepost.chat.templates.text_replies.parse_reply_form`.
        tags: the tags that are special tokens, with their ids.
    """

    def __init__(self, forms: frozenset[str], tags: Mapping[str, int]) -> None:
        self._forms = forms
        self._tags = tags

    def reply(self, form: ContentForm, tools: ToolUse, *, thinking: bool) -> Grammar | None:
        """What a reply may spell; None when the request leaves it free.

        Raises:
            RequestError: calls can't be held to a form of replies that has none, or to a function's schema.
        """
        calling = tools.constrained and tools.choice != "none"
        if calling and "hermes" not in self._forms:
            field = "tool_choice" if tools.forced or tools.parallel else "parallel_tool_calls"
            if tools.forced or not tools.parallel:
                raise RequestError(
                    f"{field}: how this model writes calls is not known. Start the server with "
                    "--reply-parser hermes if it writes <tool_call>{...}</tool_call>.",
                    param=field,
                )
            calling = False
        if form.grammar is None and not calling:
            return None
        content = self._content(form, tools) if calling else _free_or(form)
        return texts.grammar(self._after_thinking(content, thinking=thinking))

    def _after_thinking(self, content: Piece, *, thinking: bool) -> Piece:
        if "think-tags" not in self._forms:
            return content
        thought = texts.sequence(self._through(THINK_CLOSE), texts.nested(_SPACE), content)
        return thought if thinking else texts.either(texts.sequence(self._tag(THINK_OPEN), thought), content)

    def _content(self, form: ContentForm, tools: ToolUse) -> Piece:
        """Text, calls or both."""
        call = texts.either(*(_call(function, forced=tools.forced) for function in tools.functions))
        first = texts.sequence(call, self._tag(CALL_CLOSE))
        more = texts.sequence(texts.nested(_SPACE), self._tag(CALL_OPEN), call, self._tag(CALL_CLOSE))
        calls = texts.sequence(first, texts.repeated(more)) if tools.parallel else first
        if form.grammar is not None:
            called = texts.sequence(self._tag(CALL_OPEN), calls)
            return called if tools.forced else texts.either(texts.nested(form.grammar), called)
        if tools.forced:
            return texts.sequence(self._through(CALL_OPEN), calls)
        if CALL_OPEN in self._tags:
            return texts.sequence(
                texts.free_text(), texts.optional(texts.sequence(self._tag(CALL_OPEN), calls))
            )
        return _text_or_call(calls)

    def _tag(self, tag: str) -> Piece:
        return texts.token(self._tags[tag]) if tag in self._tags else texts.literal(tag)

    def _through(self, tag: str) -> Piece:
        if tag in self._tags:
            return texts.sequence(texts.free_text(), texts.token(self._tags[tag]))
        return texts.text_through(tag)


def _free_or(form: ContentForm) -> Piece:
    return texts.free_text() if form.grammar is None else texts.nested(form.grammar)


def _text_or_call(calls: Piece) -> Piece:
    """Text without a call's tag, or text through the first of them and then `calls`."""
    tag = texts.literal(CALL_OPEN).lark
    lark = (
        f"start: plain | through {calls.lark}\n"
        "plain: PLAIN\n"
        f"PLAIN: /(?s:.*)/ & ~/(?s:.*{CALL_OPEN}.*)/\n"
        f"through[suffix={tag}]: /(?s:.*)/\n"
    )
    return texts.nested(Grammar(lark=lark))


def _call(function: Function, *, forced: bool) -> Piece:
    """What stands between a call's tags."""
    held = forced or function.strict
    try:
        arguments = texts.json_schema(arguments_schema(function.parameters if held else {}), lenient=True)
    except RequestError as error:
        raise RequestError(f"{function.path} can't be held to: {error}", param=function.path) from None
    name = json.dumps(without_surrogates(function.name), ensure_ascii=False)
    return texts.sequence(
        texts.literal(f'\n{{"name": {name}, "arguments": '),
        texts.nested(arguments),
        texts.literal("}\n"),
    )
