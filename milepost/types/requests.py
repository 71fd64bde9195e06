"""A request as the control plane sees it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Self, TypeAlias

import msgspec

from milepost.errors import RequestError
from milepost.types.sampling import SamplingParams

__all__ = ["Request", "SymbolicTokens", "TokenIds", "check_cache_salt"]

MAX_SALT_CHARS = 256

TokenIds: TypeAlias = Sequence[int]
"""Token ids to be read, whatever holds them."""


class SymbolicTokens(Sequence[int], ABC):
    """Tokens that are not spelled out, as a trace without text has them; what runs on them knows none.

    The scheduler lets a `copy` grow where it would else make a list, and nothing else differs.
    """

    __slots__ = ()

    @abstractmethod
    def append(self, token_id: int) -> None:
        """Take one drawn token."""

    @abstractmethod
    def copy(self) -> Self:
        """The same tokens, to grow by themselves."""


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One request as the control plane sees it: token ids and numbers, no text.

    Attributes:
        request_id: unique among the requests that are alive.
        prompt_token_ids: the prompt, at least one token; an engine takes a tuple, a simulator also
            `SymbolicTokens`.
        sampling: how tokens are drawn and when the request ends.
        priority: lower runs earlier; equal priorities run first come, first served.
        arrival_time: seconds on the engine's clock.
        message_ends: token positions P (0 < P <= prompt length) at which a message of the prompt
            ends, ascending: the natural places for snapshots. Empty when unknown.
        cache_salt: only requests with the same salt share cached prefixes (a tenant's secret, say).
        output_reusable: whether a later prompt is expected to hold this request's output as it was
            drawn. False when the next turn will strip it, such as thinking.
    """

    request_id: str
    prompt_token_ids: tuple[int, ...] | SymbolicTokens
    sampling: SamplingParams = SamplingParams()
    priority: int = 0
    arrival_time: float = 0.0
    message_ends: tuple[int, ...] = ()
    cache_salt: str = ""
    output_reusable: bool = True


def check_cache_salt(salt: object) -> str:
    """A request's cache salt as it may be used; fronts call it before they build a `Request`.

    Raises:
        RequestError: not a string, too long, or no Unicode text.
    """
    if not isinstance(salt, str):
        raise RequestError(f"cache_salt must be a string. Given: {salt!r:.60}.", param="cache_salt")
    # A salt is a secret: errors, which logs keep, don't show it.
    if len(salt) > MAX_SALT_CHARS:
        raise RequestError(
            f"cache_salt must be at most {MAX_SALT_CHARS} characters. Given: {len(salt)}.", param="cache_salt"
        )
    if any("\ud800" <= char <= "\udfff" for char in salt):
        raise RequestError("cache_salt must be Unicode text. Given: half a character.", param="cache_salt")
    return salt
