"""Kimi-Linear's chat form: ``<|im_ROLE|>ROLE<|im_middle|>TEXT<|im_end|>`` for each message.

The reply's prefix is ``<|im_assistant|>assistant<|im_middle|>``; the reply ends with ``<|im_end|>``.
There is no thinking channel, and this encoding declares no tools.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from milepost.chat.encoding import ChatOptions, EncodedPrompt, TokenWriter
from milepost.chat.messages import Message, Role, parse_messages
from milepost.chat.reply import PlainReplyParser, ReplyParser
from milepost.chat.tokenizer import Tokenizer
from milepost.errors import RequestError

__all__ = ["ImEncoding"]


class ImEncoding:
    """A `milepost.chat.encoding.ChatEncoding`.

    Raises:
        TokenizerError: the tokenizer lacks one of the markers.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._starts = {
            role: tokenizer.special(f"<|im_{role.value}|>")
            for role in (Role.SYSTEM, Role.USER, Role.ASSISTANT)
        }
        self._middle = tokenizer.special("<|im_middle|>")
        self._end = tokenizer.special("<|im_end|>")

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """``<|im_end|>``."""
        return (self._end,)

    def encode(
        self, messages: Sequence[Mapping[str, Any]], options: ChatOptions = ChatOptions()
    ) -> EncodedPrompt:
        """Write a conversation; see `milepost.chat.encoding.ChatEncoding.encode`."""
        if options.thinking or options.thinking_effort is not None:
            field = "thinking" if options.thinking else "thinking_effort"
            raise RequestError(f"{field} is not supported: this model has no thinking channel.", param=field)
        if options.tools or options.tool_choice not in (None, "none", "auto"):
            field = "tools" if options.tools else "tool_choice"
            raise RequestError(f"{field} is not supported for Kimi-Linear models.", param=field)
        writer = TokenWriter(self._tokenizer)
        for i, message in enumerate(parse_messages(messages)):
            self._write_message(writer, message, f"messages[{i}]")
        self._open(writer, Role.ASSISTANT)
        return writer.prompt(thinking=False)

    def reply_parser(self, prompt: EncodedPrompt) -> ReplyParser:  # noqa: ARG002  # the protocol's signature
        """The reply is plain text."""
        return PlainReplyParser()

    def _write_message(self, writer: TokenWriter, message: Message, path: str) -> None:
        if message.role is Role.TOOL or message.tool_calls:
            field = f"{path}.role" if message.role is Role.TOOL else f"{path}.tool_calls"
            raise RequestError(f"{field}: tools are not supported for Kimi-Linear models.", param=field)
        self._open(writer, message.role)
        for part in message.parts:
            writer.text(part)
        writer.marker(self._end)
        writer.end_message()

    def _open(self, writer: TokenWriter, role: Role) -> None:
        writer.marker(self._starts[role])
        writer.text(role.value)
        writer.marker(self._middle)
