"""The fields that shape the prompt of a chat, for every endpoint that writes one."""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

from milepost.chat.encoding import ChatOptions
from milepost.errors import RequestError
from milepost.server.protocol.fields import HarmlessValues
from milepost.types import Grammar

__all__ = ["CHAT_PROMPT_HARMLESS", "CHAT_WIRE_NAMES", "ChatFields", "ShapesChat", "chat_options"]

CHAT_PROMPT_HARMLESS: HarmlessValues = {
    "add_generation_prompt": (True,),
    "chat_template": (),  # a template is a program: only whoever runs the server chooses one
    "continue_final_message": (False,),
    "documents": ([],),
    "media_io_kwargs": (),
    "mm_processor_kwargs": (),
}

# What the chat encodings call otherwise.
CHAT_WIRE_NAMES = {
    "thinking": "chat_template_kwargs.thinking",
    "thinking_effort": "reasoning_effort",
    "template_arguments": "chat_template_kwargs",
}


class ChatFields(msgspec.Struct, frozen=True, kw_only=True):
    """Messages, and what shapes the prompt beside them; the chat encoding checks what they hold.

    ``chat_template_kwargs`` is vLLM's: ``thinking`` turns thinking on or off, everything else goes to the
    model's chat template, if its form is one.
    """

    messages: list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = None
    chat_template_kwargs: dict[str, Any] = {}  # msgspec gives each struct its own copy

    def check_prompt_or_messages(self, prompt: object) -> None:
        """Check that there is one of the two, and that nothing shapes a chat that there isn't.

        Args:
            prompt: the endpoint's field beside ``messages``; None when it is left out.

        Raises:
            RequestError: with the field at fault.
        """
        if (prompt is None) == (self.messages is None):
            given = "neither" if prompt is None else "both"
            raise RequestError(f"Give prompt or messages, one of them. Given: {given}.", param="prompt")
        if self.messages is None:
            for field in ChatFields.__struct_fields__:
                if getattr(self, field):
                    raise RequestError(
                        f"{field} only means something with messages. Leave it out.", param=field
                    )


class ShapesChat(Protocol):
    """Has the fields of `ChatFields`; a struct can't inherit from two that have fields."""

    @property
    def tools(self) -> list[dict[str, Any]] | None: ...  # noqa: D102 - as in ChatFields, like the others
    @property
    def tool_choice(self) -> str | dict[str, Any] | None: ...  # noqa: D102
    @property
    def parallel_tool_calls(self) -> bool | None: ...  # noqa: D102
    @property
    def reasoning_effort(self) -> str | None: ...  # noqa: D102
    @property
    def chat_template_kwargs(self) -> dict[str, Any]: ...  # noqa: D102


def chat_options(
    asked: ShapesChat,
    *,
    response_format: dict[str, Any] | None = None,
    content_grammar: Grammar | None = None,
) -> ChatOptions:
    """The chat encoding's form of the fields.

    Raises:
        RequestError: fields that contradict each other, or of the wrong kind.
    """
    arguments = {key: value for key, value in asked.chat_template_kwargs.items() if key != "thinking"}
    return ChatOptions(
        thinking=_thinking(asked),
        thinking_effort=None if asked.reasoning_effort == "none" else asked.reasoning_effort,
        tools=asked.tools or None,
        tool_choice=asked.tool_choice,
        parallel_tool_calls=asked.parallel_tool_calls,
        response_format=response_format,
        content_grammar=content_grammar,
        template_arguments=arguments or None,
    )


def _thinking(asked: ShapesChat) -> bool | None:
    """Whether to think: the effort "none" is another way to say no."""
    thinking = asked.chat_template_kwargs.get("thinking")
    if thinking is not None and not isinstance(thinking, bool):
        raise RequestError(
            f"chat_template_kwargs.thinking must be true or false. Given: {thinking!r:.60}.",
            param="chat_template_kwargs.thinking",
        )
    if asked.reasoning_effort != "none":
        return thinking
    if thinking:
        raise RequestError(
            "reasoning_effort none has no meaning with chat_template_kwargs.thinking. Leave one of them out.",
            param="reasoning_effort",
        )
    return False
