"""A chat form given as a Hugging Face template."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

from milepost.chat.encoding import ChatOptions, EncodedPrompt
from milepost.chat.messages import Message, ToolCall, parse_messages
from milepost.chat.reply import ReplyParser
from milepost.chat.response_format import parse_content_form
from milepost.chat.templates.marking import Marks, SpecialSpellings, TemplatePiece
from milepost.chat.templates.sandbox import ChatTemplate
from milepost.chat.templates.text_grammar import TextGrammar
from milepost.chat.templates.text_replies import (
    CALL_CLOSE,
    CALL_OPEN,
    THINK_CLOSE,
    THINK_OPEN,
    TextReplyParser,
    parse_reply_form,
)
from milepost.chat.tokenizer import Tokenizer
from milepost.chat.tools import parse_tool_use
from milepost.errors import RequestError, TokenizerError

__all__ = ["TemplateEncoding"]

# How many messages before the last have their ends looked for, each by one more rendering.
MAX_ENDS = 4
# A template that takes longer for a whole conversation is not rendered again.
MAX_SECONDS_FOR_ENDS = 0.2
# What the template is given by Milepost itself; requests can't set it.
_OWN = frozenset({"messages", "tools", "add_generation_prompt"})
_THINKING_NAMES = ("enable_thinking", "thinking")
_EFFORT_NAMES = ("reasoning_effort", "thinking_effort")


class TemplateEncoding:
    """A `milepost.chat.encoding.ChatEncoding`.

    A request is refused where the template doesn't look at what it asks for, such as tools.

    Args:
        template: the form.
        tokenizer: the model's.
        special_tokens: the variables by which templates name special tokens ("bos_token" and such).
        reply_parser: how replies mark their parts; see `milepost.chat.templates.text_replies`.

    Raises:
        ConfigError: there is no such form of replies.
    """

    def __init__(
        self,
        template: ChatTemplate,
        tokenizer: Tokenizer,
        special_tokens: Mapping[str, str],
        reply_parser: str = "plain",
    ) -> None:
        self._template = template
        self._tokenizer = tokenizer
        self._special_tokens = dict(special_tokens)
        self._forms = parse_reply_form(reply_parser)
        self._spellings = SpecialSpellings(tokenizer)
        self._tags: dict[int, str] = {}
        for tag in (THINK_OPEN, THINK_CLOSE, CALL_OPEN, CALL_CLOSE):
            try:
                self._tags[tokenizer.special(tag)] = tag
            except TokenizerError:  # it is ordinary text
                continue
        self._grammar = TextGrammar(self._forms, {tag: token_id for token_id, tag in self._tags.items()})

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """The tokenizer's ``eos_token``; the model's configuration may name more."""
        name = self._special_tokens.get("eos_token")
        try:
            return () if name is None else (self._tokenizer.special(name),)
        except TokenizerError:
            return ()

    def encode(
        self, messages: Sequence[Mapping[str, Any]], options: ChatOptions = ChatOptions()
    ) -> EncodedPrompt:
        """Write a conversation; see `milepost.chat.encoding.ChatEncoding.encode`."""
        checked = parse_messages(messages)
        tools = parse_tool_use(options.tools, options.tool_choice, options.parallel_tool_calls)
        form = parse_content_form(options)
        if tools.declared:
            self._require(("tools",), "tools")
        given = [_message_of(message) for message in checked]
        arguments = self._arguments(options)
        marks = self._spellings.marks_for([given, tools.declared, arguments])
        variables = (
            self._special_tokens
            | marks.values(arguments)
            | {
                "tools": [_marked_tool(tool, marks) for tool in tools.declared] or None,
                "messages": [_marked_message(message, marks) for message in given],
            }
        )
        started = time.thread_time()
        text = self._template.render(variables | {"add_generation_prompt": True}, marks.mark)
        quick = time.thread_time() - started < MAX_SECONDS_FOR_ENDS
        pieces = self._spellings.split(text, marks.mark)
        thinking = "think-tags" in self._forms and text.rstrip().endswith(THINK_OPEN)
        return EncodedPrompt(
            token_ids=tuple(token_id for piece in pieces for token_id in piece.token_ids),
            message_ends=self._message_ends(variables, marks.mark, text, pieces) if quick else (),
            thinking=thinking,
            grammar=self._grammar.reply(form, tools, thinking=thinking),
            # Templates leave earlier reasoning out.
            output_reusable="think-tags" not in self._forms,
        )

    def reply_parser(self, prompt: EncodedPrompt) -> ReplyParser:
        """A parser of the form that was chosen."""
        return TextReplyParser(self._forms, self._tokenizer.token_bytes, self._tags, thinking=prompt.thinking)

    def _arguments(self, options: ChatOptions) -> dict[str, Any]:
        """The variables that a request sets, all of which the template looks at."""
        arguments = dict(options.template_arguments or {})
        for name in arguments:
            field = f"template_arguments.{name}"
            if name in _OWN or name in self._special_tokens:
                raise RequestError(f"{field} is not for requests to set. Leave it out.", param=field)
            self._require((name,), field)
        effort, think = options.thinking_effort, options.thinking
        if effort is not None and not isinstance(effort, str):
            raise RequestError(
                f"thinking_effort must be a word. Given: {effort!r:.60}.", param="thinking_effort"
            )
        if effort == "none":
            effort, think = None, False
        if effort is not None:
            self._require(_EFFORT_NAMES, "thinking_effort")
            arguments |= dict.fromkeys(_EFFORT_NAMES, effort)
        if think is not None and not isinstance(think, bool):
            raise RequestError(f"thinking must be true or false. Given: {think!r:.60}.", param="thinking")
        if think:
            self._require(_THINKING_NAMES, "thinking")
        return arguments | ({} if think is None else dict.fromkeys(_THINKING_NAMES, think))

    def _require(self, names: Sequence[str], field: str) -> None:
        if not self._template.names.intersection(names):
            raise RequestError(
                f"{field} is not supported: this model's chat template doesn't look at {' or '.join(names)}.",
                param=field,
            )

    def _message_ends(
        self, variables: Mapping[str, Any], mark: str, text: str, pieces: Sequence[TemplatePiece]
    ) -> tuple[int, ...]:
        """Where messages end: where the texts of the conversation's beginnings do, if these come again.

        Looked for behind the system's messages, behind the last message and behind those before it. An end
        within a piece of text is none: other tokens may stand across it.
        """
        messages = variables["messages"]
        total = len(messages)
        leading = next((i for i, message in enumerate(messages) if message["role"] != "system"), total)
        counts = sorted({leading, *range(max(1, total - MAX_ENDS), total + 1)} - {0})
        offsets = _piece_ends(pieces)
        ends: list[int] = []
        for count in counts:
            try:
                some = {"messages": messages[:count], "add_generation_prompt": False}
                beginning = self._template.render(dict(variables) | some, mark)
            except RequestError:  # such as a template that wants a user's message
                continue
            end = offsets.get(len(beginning))
            if end and text.startswith(beginning) and len(beginning) < len(text):
                ends.append(end)
        return tuple(sorted(set(ends)))


def _message_of(message: Message) -> dict[str, Any]:
    """A message as templates know it: one text, and arguments as objects."""
    found: dict[str, Any] = {"role": message.role.value, "content": "\n".join(message.parts)}
    if message.name is not None:
        found["name"] = message.name
    if message.reasoning is not None:
        found["reasoning_content"] = message.reasoning
    if message.tool_calls:
        found["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": _arguments_of(call)},
            }
            for call in message.tool_calls
        ]
    if message.tool_call_id is not None:
        found["tool_call_id"] = message.tool_call_id
    return found


def _arguments_of(call: ToolCall) -> object:
    """Templates write arguments as JSON themselves; what is no JSON stays as it is."""
    try:
        arguments = json.loads(call.arguments or "{}")
    except (ValueError, RecursionError):  # nested too deep to be read
        return call.arguments
    return arguments if isinstance(arguments, dict) else call.arguments


def _marked(value: dict[str, Any], checked: Sequence[str], marks: Marks) -> dict[str, Any]:
    """An object with all but its words that were checked marked."""
    return {name: part if name in checked else marks.values(part) for name, part in value.items()}


def _marked_message(message: dict[str, Any], marks: Marks) -> dict[str, Any]:
    marked = _marked(message, ("role",), marks)
    for call in marked.get("tool_calls", ()):
        call["type"] = "function"
    return marked


def _marked_tool(tool: Mapping[str, Any], marks: Marks) -> dict[str, Any]:
    return _marked(dict(tool), ("type",), marks)


def _piece_ends(pieces: Sequence[TemplatePiece]) -> dict[int, int]:
    """Characters up to each piece's end -> tokens up to there."""
    ends: dict[int, int] = {}
    chars = tokens = 0
    for piece in pieces:
        chars += len(piece.text)
        tokens += len(piece.token_ids)
        ends[chars] = tokens
    return ends
