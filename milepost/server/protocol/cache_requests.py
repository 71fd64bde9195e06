"""The fields of ``/cache/explain`` and ``/cache/reset``."""

from __future__ import annotations

import msgspec

from milepost.server.protocol.chat_fields import ChatFields
from milepost.types import check_cache_salt

__all__ = ["ExplainRequest", "ResetRequest"]


class ResetRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Body of ``/cache/reset``, which has no fields: a salt, say, would not limit what is dropped."""


class ExplainRequest(ChatFields, frozen=True, kw_only=True):
    """Body of ``/cache/explain``: a prompt, as text or token ids, or what shapes the prompt of a chat.

    `tenant` names whose part of the cache to look into; left out is the asker's own.
    """

    model: str | None = None
    prompt: str | list[int] | None = None
    cache_salt: str = ""
    tenant: str | None = None

    def check(self) -> None:
        """Check what spans several fields.

        Raises:
            RequestError: with the field at fault.
        """
        check_cache_salt(self.cache_salt)
        self.check_prompt_or_messages(self.prompt)
