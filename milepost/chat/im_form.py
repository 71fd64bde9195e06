"""Kimi-Linear's chat form: ``<|im_ROLE|>NAME<|im_middle|>TEXT<|im_end|>`` for each message.

NAME is the speaker's, or the role's. The reply's prefix is ``<|im_assistant|>assistant<|im_middle|>``; the
reply ends with ``<|im_end|>``. There is no thinking channel.

Tools are Kimi K2's, whose tokens Kimi-Linear's tokenizer has: a message of ``tool_declare`` comes first, a
reply's calls follow its text in a section of their own, and a result's text begins with ``## Return of ID``.
An id is ``functions.NAME:N``, where N counts the conversation's calls from 0; other ids, which the model has
never seen, are written so too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from milepost.chat.argument_schemas import arguments_schema
from milepost.chat.encoding import ChatOptions, EncodedPrompt, TokenWriter, refuse_template_arguments
from milepost.chat.im_reply import ImReplyParser, ToolMarkers
from milepost.chat.messages import Message, Role, ToolCall, parse_messages
from milepost.chat.reply import PlainReplyParser, ReplyParser
from milepost.chat.response_format import ContentForm, parse_content_form
from milepost.chat.text_pieces import without_surrogates
from milepost.chat.tokenizer import Tokenizer
from milepost.chat.tool_results import in_call_order
from milepost.chat.tools import Function, ToolUse, parse_tool_use
from milepost.errors import RequestError, TokenizerError
from milepost.grammar import texts
from milepost.grammar.texts import Piece
from milepost.types import Grammar

__all__ = ["ImEncoding"]

_ID = re.compile(r"functions\.(.+):\d+\Z", re.DOTALL)
_NUMBER = texts.regex("[0-9]{1,4}")


class ImEncoding:
    """A `milepost.chat.encoding.ChatEncoding`.

    Raises:
        TokenizerError: the tokenizer lacks one of the markers; those of tools may be missing, and tools are
            refused then.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._starts = {
            role: tokenizer.special(f"<|im_{role.value}|>")
            for role in (Role.SYSTEM, Role.USER, Role.ASSISTANT)
        }
        self._starts[Role.TOOL] = self._starts[Role.SYSTEM]
        self._middle = tokenizer.special("<|im_middle|>")
        self._end = tokenizer.special("<|im_end|>")
        self._tools = _tool_markers(tokenizer)

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """``<|im_end|>``."""
        return (self._end,)

    def encode(
        self, messages: Sequence[Mapping[str, Any]], options: ChatOptions = ChatOptions()
    ) -> EncodedPrompt:
        """Write a conversation; see `milepost.chat.encoding.ChatEncoding.encode`."""
        refuse_template_arguments(options)
        if options.thinking or options.thinking_effort not in (None, "none"):
            field = "thinking" if options.thinking else "thinking_effort"
            raise RequestError(f"{field} is not supported: this model has no thinking channel.", param=field)
        tools = parse_tool_use(options.tools, options.tool_choice, options.parallel_tool_calls)
        form = parse_content_form(options)
        writer = TokenWriter(self._tokenizer)
        if tools.declared:
            self._declare(writer, tools)
        ids, checked = _Ids(), parse_messages(messages)
        for i, message in enumerate(checked):
            if message.role is Role.TOOL:
                self._require_tools(f"messages[{i}].role")
        for path, message, call, _ in in_call_order(checked):
            self._write_message(writer, message, ids, call, path)
        self._open(writer, Role.ASSISTANT, Role.ASSISTANT.value)
        return writer.prompt(thinking=False, grammar=self._grammar(form, tools, ids.count))

    def reply_parser(self, prompt: EncodedPrompt) -> ReplyParser:  # noqa: ARG002  # the protocol's signature
        """A parser that knows calls where the tokenizer does."""
        if self._tools is None:
            return PlainReplyParser()
        return ImReplyParser(self._tools, self._tokenizer.token_bytes)

    def _declare(self, writer: TokenWriter, tools: ToolUse) -> None:
        self._require_tools("tools")
        try:
            text = json.dumps(tools.declared, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise RequestError(f"tools must hold JSON values only ({error}).", param="tools") from None
        self._open(writer, Role.SYSTEM, "tool_declare")
        writer.text(text)
        self._close(writer)

    def _write_message(
        self, writer: TokenWriter, message: Message, ids: _Ids, answered: ToolCall | None, path: str
    ) -> None:
        self._open(writer, message.role, message.name or message.role.value)
        if answered is not None:
            writer.text(f"## Return of {ids.of(answered)}\n")
        for part in message.parts:
            writer.text(part)
        if message.tool_calls:
            markers = self._require_tools(f"{path}.tool_calls")
            writer.marker(markers.section_begin)
            for call in message.tool_calls:
                writer.marker(markers.call_begin)
                writer.text(ids.add(call))
                writer.marker(markers.argument_begin)
                writer.text(call.arguments if call.arguments.strip() else "{}")
                writer.marker(markers.call_end)
            writer.marker(markers.section_end)
        self._close(writer)

    def _open(self, writer: TokenWriter, role: Role, name: str) -> None:
        writer.marker(self._starts[role])
        writer.text(name)
        writer.marker(self._middle)

    def _close(self, writer: TokenWriter) -> None:
        writer.marker(self._end)
        writer.end_message()

    def _require_tools(self, field: str) -> ToolMarkers:
        if self._tools is None:
            raise RequestError(
                f"{field}: tools are not supported, for the tokenizer of this model has no tokens for them.",
                param=field,
            )
        return self._tools

    def _grammar(self, form: ContentForm, tools: ToolUse, num_calls: int) -> Grammar | None:
        """What the reply to a conversation of `num_calls` may spell; None when the request leaves it free."""
        if form.grammar is None and not tools.constrained:
            return None
        content = texts.free_text() if form.grammar is None else texts.nested(form.grammar)
        end = texts.token(self._end)
        if tools.choice == "none" or not tools.functions or self._tools is None:
            return texts.grammar(texts.sequence(content, end))
        calls = _calls(tools, self._tools, num_calls)
        if form.grammar is None:
            called = texts.sequence(content, calls if tools.forced else texts.optional(calls))
        else:  # an answer of that form, or calls
            called = calls if tools.forced else texts.either(content, calls)
        return texts.grammar(texts.sequence(called, end))


class _Ids:
    """The ids of a conversation's calls, as the model knows them."""

    def __init__(self) -> None:
        self.count = 0
        self._known: dict[int, str] = {}

    def add(self, call: ToolCall) -> str:
        """The id of the next call."""
        own = _ID.match(call.id)
        written = call.id if own and own[1] == call.name else f"functions.{call.name}:{self.count}"
        self.count += 1
        self._known[id(call)] = written
        return written

    def of(self, call: ToolCall) -> str:
        """The id of a call that was added."""
        return self._known[id(call)]


def _tool_markers(tokenizer: Tokenizer) -> ToolMarkers | None:
    try:
        return ToolMarkers(
            section_begin=tokenizer.special("<|tool_calls_section_begin|>"),
            section_end=tokenizer.special("<|tool_calls_section_end|>"),
            call_begin=tokenizer.special("<|tool_call_begin|>"),
            argument_begin=tokenizer.special("<|tool_call_argument_begin|>"),
            call_end=tokenizer.special("<|tool_call_end|>"),
        )
    except TokenizerError:
        return None


def _calls(tools: ToolUse, markers: ToolMarkers, num_before: int) -> Piece:
    def any_of(number: Piece) -> Piece:
        return texts.either(
            *(_call(function, number, markers, forced=tools.forced) for function in tools.functions)
        )

    pieces = [any_of(texts.literal(str(num_before)))]
    if tools.parallel:
        pieces.append(texts.repeated(any_of(texts.nested(_NUMBER))))
    return texts.sequence(texts.token(markers.section_begin), *pieces, texts.token(markers.section_end))


def _call(function: Function, number: Piece, markers: ToolMarkers, *, forced: bool) -> Piece:
    held = forced or function.strict
    schema = arguments_schema(function.parameters if held else {})
    try:
        arguments = texts.json_schema(schema, lenient=True)
    except RequestError as error:
        raise RequestError(f"{function.path} can't be held to: {error}", param=function.path) from None
    return texts.sequence(
        texts.token(markers.call_begin),
        texts.literal(f"functions.{without_surrogates(function.name)}:"),
        number,
        texts.token(markers.argument_begin),
        texts.nested(arguments),
        texts.token(markers.call_end),
    )
