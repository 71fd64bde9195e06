"""The fields of ``/tokenize`` and ``/detokenize``, and what they answer, as vLLM has them."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from milepost.server.protocol.chat_fields import CHAT_PROMPT_HARMLESS, ChatFields
from milepost.server.protocol.fields import HarmlessValues

__all__ = [
    "TOKENIZE_HARMLESS",
    "DetokenizeReply",
    "DetokenizeRequest",
    "TokenizeReply",
    "TokenizeRequest",
]

TOKENIZE_HARMLESS: HarmlessValues = {**CHAT_PROMPT_HARMLESS, "add_special_tokens": (True, False)}


class TokenizeRequest(ChatFields, frozen=True, kw_only=True):
    """Body of ``/tokenize``: a prompt as text, or what shapes the prompt of a chat."""

    model: str | None = None
    prompt: str | None = None
    return_token_strs: bool = False

    def check(self) -> None:
        """Check what spans several fields.

        Raises:
            RequestError: with the field at fault.
        """
        self.check_prompt_or_messages(self.prompt)


class TokenizeReply(msgspec.Struct, frozen=True, kw_only=True):
    """Token ids of a prompt, and their texts if they were asked for."""

    count: int
    max_model_len: int
    tokens: tuple[int, ...]
    token_strs: list[str] | UnsetType = UNSET


class DetokenizeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Body of ``/detokenize``."""

    tokens: list[int]
    model: str | None = None


class DetokenizeReply(msgspec.Struct, frozen=True, kw_only=True):
    """The text of the tokens, special ones by name; torn UTF-8 becomes U+FFFD."""

    prompt: str
