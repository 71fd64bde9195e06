"""Chat encodings: from messages to prompt tokens, and from a reply's tokens to its parts.

A family's encoding is two things that must fit each other: a renderer and a `ReplyParser`. Both know
markers as token ids only, so that text which spells a marker stays text in both directions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec

from milepost.chat.reply import ReplyParser
from milepost.chat.tokenizer import Tokenizer
from milepost.errors import RequestError
from milepost.types import Grammar

__all__ = ["ChatEncoding", "ChatOptions", "EncodedPrompt", "TokenWriter", "refuse_template_arguments"]


class EncodedPrompt(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt as token ids.

    Attributes:
        token_ids: the whole prompt, generation prefix included.
        message_ends: token positions at which each message ends, ascending; all lie before the
            generation prefix, and before whatever the next turn's prompt will not repeat in its place.
        thinking: whether the generation prefix opens a thinking channel.
        grammar: what the reply may spell, its markers included; None when anything.
        output_reusable: whether the next turn's prompt is expected to hold the reply as it is drawn.
    """

    token_ids: tuple[int, ...]
    message_ends: tuple[int, ...]
    thinking: bool = False
    grammar: Grammar | None = None
    output_reusable: bool = True


class ChatOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What shapes a prompt and its reply beside the messages; encodings check the values.

    Attributes:
        thinking: whether the model thinks first; None takes the model's own default.
        thinking_effort: how much it thinks; None takes the model's own default.
        tools: OpenAI-style function tools.
        tool_choice: "auto", "none" or "required", or an object that names a function, as OpenAI has it.
        parallel_tool_calls: False allows one call at most; None and True any number.
        response_format: OpenAI's ``response_format``: text, json_object or json_schema.
        content_grammar: what the reply's content may spell; not together with such a format.
        template_arguments: more arguments of a form that takes any, such as a template.
    """

    thinking: bool | None = None
    thinking_effort: str | None = None
    tools: Sequence[Mapping[str, Any]] | None = None
    tool_choice: str | Mapping[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    response_format: Mapping[str, Any] | None = None
    content_grammar: Grammar | None = None
    template_arguments: Mapping[str, Any] | None = None


class ChatEncoding(Protocol):
    """How one model family writes a conversation."""

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """Tokens that end a reply."""
        ...

    def encode(
        self, messages: Sequence[Mapping[str, Any]], options: ChatOptions = ChatOptions()
    ) -> EncodedPrompt:
        """Write a conversation and the prefix of the reply.

        Args:
            messages: OpenAI-style messages.
            options: everything else that shapes the prompt and the reply.

        Raises:
            RequestError: something can't be written; ``param`` is its path.
        """
        ...

    def reply_parser(self, prompt: EncodedPrompt) -> ReplyParser:
        """A fresh parser for the reply to `prompt`."""
        ...


def refuse_template_arguments(options: ChatOptions) -> None:
    """For forms that are no template.

    Raises:
        RequestError: there are template arguments; the first is named.
    """
    for name in options.template_arguments or ():
        field = f"template_arguments.{name}"
        raise RequestError(f"{field} means nothing to this model's chat form. Leave it out.", param=field)


class TokenWriter:
    """Collects token ids: text as text, markers by name, and where messages end."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._ids: list[int] = []
        self._ends: list[int] = []

    def text(self, text: str) -> None:
        """Append ordinary text, tokenised on its own."""
        if text:
            self._ids.extend(self._tokenizer.encode(text))

    def marker(self, token_id: int) -> None:
        """Append one special token."""
        self._ids.append(token_id)

    def end_message(self) -> None:
        """Note that a message ends here."""
        self._ends.append(len(self._ids))

    def prompt(
        self, *, thinking: bool, grammar: Grammar | None = None, output_reusable: bool = True
    ) -> EncodedPrompt:
        """What was written."""
        return EncodedPrompt(
            token_ids=tuple(self._ids),
            message_ends=tuple(self._ends),
            thinking=thinking,
            grammar=grammar,
            output_reusable=output_reusable,
        )
