"""Kimi K3's chat form, "XTML": ``<|open|>tag attr="v"<|sep|> ... <|close|>tag<|sep|>``.

A message is ``<|open|>message role="user"<|sep|>TEXT<|close|>message<|sep|><|end_of_msg|>``. Their
order: the tools (``tool-declare``), how much to think (``thinking-effort``), the messages given,
then ``tool-choice``. Tags and attributes are ordinary text; as in Moonshot's own renderer the tag,
each `` key``, ``="``, value and closing quote are tokenised piece by piece. With thinking, every
assistant turn has a think channel, even an empty one; without, only its response.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

from milepost.chat.encoding import ChatOptions, EncodedPrompt, TokenWriter
from milepost.chat.messages import Message, Role, ToolCall, parse_messages, parse_tools
from milepost.chat.reply import ReplyParser
from milepost.chat.tokenizer import Tokenizer
from milepost.chat.xtml_reply import XtmlMarkers, XtmlReplyParser
from milepost.errors import RequestError, TokenizerError

__all__ = ["XtmlEncoding"]

EFFORTS = ("low", "high", "max")
DEFAULT_EFFORT = "max"
TOOL_CHOICES = ("auto", "none", "required")

_EFFORT_TEXT = (
    "`thinking_effort` guides on how much to think in your thinking channel (not including the response "
    "channel), supported values include `low`, `medium`, `high`, and `max`.\n"
    "Now the system is invoked with `thinking_effort={effort}`."
)
_TOOLS_TEXT = "# Tools\nHere are the available tools, described in JSONSchema.\n\n```json\n{tools}\n```"
_CHOICE_TEXT = {
    "none": "The system is invoked with `tool_choice=none`.\n"
    "You MUST NOT call any tools in the next message.",
    "required": "The system is invoked with `tool_choice=required`.\n"
    "You MUST call tools in the next message.",
}


class XtmlEncoding:
    """A `milepost.chat.encoding.ChatEncoding` for Kimi K3.

    Thinking is on unless tokenizer_config.json's ``default_chat_template_kwargs`` says otherwise.

    Raises:
        TokenizerError: the tokenizer lacks one of the markers, or its default for thinking is not a boolean.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._markers = XtmlMarkers(
            open=tokenizer.special("<|open|>"),
            close=tokenizer.special("<|close|>"),
            sep=tokenizer.special("<|sep|>"),
            end=tokenizer.special("<|end_of_msg|>"),
        )
        self._eos = tokenizer.special("[EOS]")
        thinking = tokenizer.chat_defaults.get("thinking", True)
        if not isinstance(thinking, bool):
            raise TokenizerError(
                "tokenizer_config.json: default_chat_template_kwargs.thinking must be true or false. "
                f"Given: {thinking!r}."
            )
        self._thinks_by_default = thinking

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """``<|end_of_msg|>`` and ``[EOS]``."""
        return (self._markers.end, self._eos)

    def encode(
        self, messages: Sequence[Mapping[str, Any]], options: ChatOptions = ChatOptions()
    ) -> EncodedPrompt:
        """Write a conversation; see `milepost.chat.encoding.ChatEncoding.encode`."""
        checked, declared = parse_messages(messages), parse_tools(options.tools)
        think = self._thinks_by_default if options.thinking is None else options.thinking
        if not isinstance(think, bool):
            raise RequestError(f"thinking must be true or false. Given: {think!r:.60}.", param="thinking")
        effort = _checked_effort(options.thinking_effort, think)
        choice = _checked_choice(options.tool_choice, bool(declared))
        out = _XtmlWriter(self._tokenizer, self._markers)
        if declared:
            out.system("tool-declare", _TOOLS_TEXT.format(tools=_sorted_json(declared)))
        if think:
            out.system("thinking-effort", _EFFORT_TEXT.format(effort=effort))
        for path, message, tool_name, index in _in_order(checked):
            if message.role is Role.TOOL:
                out.message(message.parts, role="tool", tool=tool_name, index=str(index))
            elif message.role is Role.ASSISTANT:
                _write_assistant(out, message, think, path)
            else:
                out.message(message.parts, **_role_attributes(message))
        if choice in _CHOICE_TEXT:
            out.system("tool-choice", _CHOICE_TEXT[choice], lasting=False)
        out.open("message", role="assistant")
        out.open("think" if think else "response")
        reusable = choice not in _CHOICE_TEXT and (not think or _reasoning_comes_back(checked))
        return out.prompt(thinking=think, output_reusable=reusable)

    def reply_parser(self, prompt: EncodedPrompt) -> ReplyParser:
        """A parser that starts in the channel which the generation prefix of `prompt` opened."""
        channel = "think" if prompt.thinking else "response"
        return XtmlReplyParser(self._markers, self._tokenizer.token_bytes, channel)


class _XtmlWriter(TokenWriter):
    """Writes tags and whole messages."""

    def __init__(self, tokenizer: Tokenizer, markers: XtmlMarkers) -> None:
        super().__init__(tokenizer)
        self._markers = markers

    def open(self, tag: str, **attributes: str) -> None:
        """``<|open|>tag key="value"<|sep|>``."""
        self.marker(self._markers.open)
        self.text(tag)
        for key, value in attributes.items():
            for piece in (f" {key}", '="', _escape(value), '"'):
                self.text(piece)
        self.marker(self._markers.sep)

    def close(self, tag: str) -> None:
        """``<|close|>tag<|sep|>``."""
        self.marker(self._markers.close)
        self.text(tag)
        self.marker(self._markers.sep)

    def element(self, tag: str, text: str, **attributes: str) -> None:
        """An element that holds nothing but text."""
        self.open(tag, **attributes)
        self.text(text)
        self.close(tag)

    def end(self, *, lasting: bool = True) -> None:
        """Close the message and end it; one that is not `lasting` is elsewhere in the next turn, or gone."""
        self.close("message")
        self.marker(self._markers.end)
        if lasting:
            self.end_message()

    def message(self, parts: Sequence[str], **attributes: str) -> None:
        """A message that holds nothing but text; each part is tokenised on its own."""
        self.open("message", **attributes)
        for part in parts:
            self.text(part)
        self.end()

    def system(self, kind: str, text: str, *, lasting: bool = True) -> None:
        """A system message of Milepost's own making."""
        self.open("message", role="system", type=kind)
        self.text(text)
        self.end(lasting=lasting)


def _reasoning_comes_back(messages: Sequence[Message]) -> bool:
    """Whether this client sends earlier reasoning along: it did for the last reply. Most never do."""
    replies = [message for message in messages if message.role is Role.ASSISTANT]
    return bool(replies) and bool((replies[-1].reasoning or "").strip())


def _write_assistant(out: _XtmlWriter, message: Message, thinking: bool, path: str) -> None:
    out.open("message", **_role_attributes(message))
    if thinking:
        reasoning = message.reasoning or ""
        out.element("think", reasoning if reasoning.strip() else "")
    out.open("response")
    for part in message.parts:
        out.text(part)
    out.close("response")
    if message.tool_calls:
        out.open("tools")
        for i, call in enumerate(message.tool_calls):
            _write_call(out, call, i + 1, f"{path}.tool_calls[{i}].function.arguments")
        out.close("tools")
    out.end()


def _write_call(out: _XtmlWriter, call: ToolCall, index: int, path: str) -> None:
    out.open("call", tool=call.name, index=str(index))
    arguments = _arguments(call, path)
    if arguments is None:
        # What an earlier reply garbled is shown to the model as it was.
        out.element("json", call.arguments, type="object")
    else:
        for key, value in arguments.items():
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            out.element("argument", text, key=key, type=_json_type(value))
    out.close("call")


def _arguments(call: ToolCall, path: str) -> dict[str, Any] | None:
    """The arguments of a call; None when they are not JSON."""
    if not call.arguments.strip():
        return {}
    try:
        arguments = json.loads(call.arguments)
    except (ValueError, RecursionError):  # nested too deep to be read
        return None
    if not isinstance(arguments, dict):
        raise RequestError(f"{path} must be a JSON object. Given: {call.arguments[:60]!r}.", param=path)
    return arguments


def _in_order(messages: Sequence[Message]) -> Iterator[tuple[str, Message, str, int]]:
    """(path, message, tool name, tool index) with each run of tool results in the order of the calls."""
    calls: tuple[ToolCall, ...] = ()
    answered = 0
    for is_results, run in groupby(enumerate(messages), lambda entry: entry[1].role is Role.TOOL):
        if is_results:
            results: list[tuple[int, str, Message]] = []
            for i, message in run:
                path = f"messages[{i}]"
                results.append((_call_position(message, path, calls, answered + len(results)), path, message))
            for position, path, message in sorted(results, key=itemgetter(0)):
                answered += 1
                yield path, message, calls[position].name, answered
        else:
            for i, message in run:
                if message.role is Role.ASSISTANT:
                    calls, answered = message.tool_calls, 0
                yield f"messages[{i}]", message, "", 0


def _call_position(message: Message, path: str, calls: Sequence[ToolCall], by_order: int) -> int:
    """Which of `calls` a tool result answers: by its id, or by its place when it gives none."""
    field = f"{path}.tool_call_id"
    if message.tool_call_id is None:
        if by_order < len(calls):
            return by_order
        raise RequestError(f"{field} is missing, and no unanswered tool call comes before it.", param=field)
    for position, call in enumerate(calls):
        if call.id == message.tool_call_id:
            return position
    raise RequestError(
        f"{field} must be the id of a call of the assistant message before it. "
        f"Given: {message.tool_call_id!r}; known: {[call.id for call in calls]}.",
        param=field,
    )


def _role_attributes(message: Message) -> dict[str, str]:
    return {"role": message.role.value} | ({"name": message.name} if message.name else {})


def _checked_effort(effort: str | None, thinking: bool) -> str:
    if effort is None:
        return DEFAULT_EFFORT
    if effort not in EFFORTS:
        raise RequestError(
            f"thinking_effort must be one of {', '.join(EFFORTS)}. Given: {effort!r}.",
            param="thinking_effort",
        )
    if not thinking:
        raise RequestError(
            "thinking_effort has no meaning without thinking. Turn thinking on or leave it out.",
            param="thinking_effort",
        )
    return effort


def _checked_choice(choice: str | Mapping[str, Any] | None, has_tools: bool) -> str | None:
    if choice is not None and (not isinstance(choice, str) or choice not in TOOL_CHOICES):
        raise RequestError(
            f"tool_choice must be one of {', '.join(TOOL_CHOICES)}. Given: {choice!r}.", param="tool_choice"
        )
    if choice == "required" and not has_tools:
        raise RequestError(
            "tool_choice is required, but there are no tools. Give tools.", param="tool_choice"
        )
    return choice if has_tools else None


def _escape(value: str) -> str:
    """Attribute values: & first, then the quote."""
    return value.replace("&", "&amp;").replace('"', "&quot;")


def _sorted_json(tools: object) -> str:
    try:
        return json.dumps(tools, ensure_ascii=False, separators=(",", ":"), sort_keys=True, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise RequestError(f"tools must hold JSON values only ({error}).", param="tools") from None


def _json_type(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "number"
    if isinstance(value, str):
        return "string"
    return "object" if isinstance(value, dict) else "array"
