"""Kimi K3's chat form, "XTML": ``<|open|>tag attr="v"<|sep|> ... <|close|>tag<|sep|>``.

A message is ``<|open|>message role="user"<|sep|>TEXT<|close|>message<|sep|><|end_of_msg|>``. Their
order: the tools (``tool-declare``), how much to think (``thinking-effort``), the messages given, then what
is asked of the next reply alone (``tool-choice``, ``response-format``). Tags and attributes are ordinary
text; as in Moonshot's own renderer the tag, each `` key``, ``="``, value and closing quote are tokenised
piece by piece. With thinking, every assistant turn has a think channel, even an empty one; without, only
its response.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from milepost.chat.encoding import ChatOptions, EncodedPrompt, refuse_template_arguments
from milepost.chat.messages import Message, Role, parse_messages
from milepost.chat.reply import ReplyParser
from milepost.chat.response_format import ContentForm, parse_content_form
from milepost.chat.tokenizer import Tokenizer
from milepost.chat.tool_results import in_call_order
from milepost.chat.tools import ToolUse, parse_tool_use
from milepost.chat.xtml_grammar import XtmlGrammar
from milepost.chat.xtml_reply import XtmlMarkers, XtmlReplyParser
from milepost.chat.xtml_writer import XtmlWriter, sorted_json
from milepost.errors import RequestError, TokenizerError

__all__ = ["XtmlEncoding"]

EFFORTS = ("low", "high", "max")
DEFAULT_EFFORT = "max"
NO_EFFORT = "none"

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
    "named": "The system is invoked with `tool_choice=specified`.\n"
    "You MUST call the tool `{name}` in the next message.",
}
_FORMAT_TEXT = (
    "The system is invoked with `response_format={kind}`.\n"
    "Your response must be raw JSON data without markdown code blocks (```json) "
    "or any additional formatting."
)
_SCHEMA_TEXT = "\nThe JSON data must match the following schema:\n```json\n{schema}\n```"


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
        self._grammar = XtmlGrammar(self._markers)

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """``<|end_of_msg|>`` and ``[EOS]``."""
        return (self._markers.end, self._eos)

    def encode(
        self, messages: Sequence[Mapping[str, Any]], options: ChatOptions = ChatOptions()
    ) -> EncodedPrompt:
        """Write a conversation; see `milepost.chat.encoding.ChatEncoding.encode`."""
        refuse_template_arguments(options)
        checked = parse_messages(messages)
        tools = parse_tool_use(options.tools, options.tool_choice, options.parallel_tool_calls)
        form = parse_content_form(options)
        effort = self._effort(options)
        out = XtmlWriter(self._tokenizer, self._markers)
        if tools.declared:
            out.system("tool-declare", _TOOLS_TEXT.format(tools=sorted_json(tools.declared, "tools")))
        if effort is not None:
            out.system("thinking-effort", _EFFORT_TEXT.format(effort=effort))
        for path, message, call, index in in_call_order(checked):
            if call is not None:
                out.message(message.parts, role="tool", tool=call.name, index=str(index))
            elif message.role is Role.ASSISTANT:
                out.assistant(message, path, thinking=effort is not None)
            else:
                out.spoken(message)
        asked = _write_asked(out, tools, form)
        out.open("message", role="assistant")
        out.open("response" if effort is None else "think")
        return out.prompt(
            thinking=effort is not None,
            grammar=self._grammar.reply(form, tools, thinking=effort is not None),
            # What was asked for stands before the reply now, and nowhere in the next turn.
            output_reusable=not asked and (effort is None or _reasoning_comes_back(checked)),
        )

    def _effort(self, options: ChatOptions) -> str | None:
        """How much the model thinks; None for not at all."""
        effort, think = options.thinking_effort, options.thinking
        if think is not None and not isinstance(think, bool):
            raise RequestError(f"thinking must be true or false. Given: {think!r:.60}.", param="thinking")
        if effort is not None and effort not in (*EFFORTS, NO_EFFORT):
            raise RequestError(
                f"thinking_effort must be one of {', '.join((NO_EFFORT, *EFFORTS))}. Given: {effort!r:.60}.",
                param="thinking_effort",
            )
        if think is not None and effort is not None and think is (effort == NO_EFFORT):
            raise RequestError(
                f"thinking_effort is {effort!r}, but thinking is {str(think).lower()}. Leave one out.",
                param="thinking_effort",
            )
        if effort is not None:
            return None if effort == NO_EFFORT else effort
        return DEFAULT_EFFORT if (self._thinks_by_default if think is None else think) else None

    def reply_parser(self, prompt: EncodedPrompt) -> ReplyParser:
        """A parser that starts in the channel which the generation prefix of `prompt` opened."""
        channel = "think" if prompt.thinking else "response"
        return XtmlReplyParser(self._markers, self._tokenizer.token_bytes, channel)


def _write_asked(out: XtmlWriter, tools: ToolUse, form: ContentForm) -> bool:
    """Write what is asked of the next reply alone; returns whether anything is."""
    choice = _CHOICE_TEXT.get(tools.choice)
    if choice is not None:
        name = tools.functions[0].name if tools.choice == "named" else ""
        # The name is put in last: whatever it holds, it is not looked through for braces.
        out.system("tool-choice", choice.replace("{name}", name), lasting=False)
    if form.kind != "text":
        text = _FORMAT_TEXT.replace("{kind}", form.kind)
        if form.schema is not None:
            path = "response_format.json_schema.schema"
            text += _SCHEMA_TEXT.replace("{schema}", sorted_json(form.schema, path))
        out.system("response-format", text, lasting=False)
    return choice is not None or form.kind != "text"


def _reasoning_comes_back(messages: Sequence[Message]) -> bool:
    """Whether this client sends earlier reasoning along: it did for the last reply. Most never do."""
    replies = [message for message in messages if message.role is Role.ASSISTANT]
    return bool(replies) and bool((replies[-1].reasoning or "").strip())
