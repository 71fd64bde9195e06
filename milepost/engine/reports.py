"""What an engine tells about itself: a snapshot to be read, and moments to be observed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import msgspec

from milepost.prefix.reports import CacheStats
from milepost.scheduler.reports import SchedulerStats
from milepost.types import FinishReason, Usage

__all__ = ["EngineObserver", "EngineStats"]


class EngineStats(msgspec.Struct, frozen=True, kw_only=True):
    """An engine at one moment; token and request counts are totals since it was built.

    Attributes:
        scheduler: queues, pages and steps.
        prompt_tokens: prompt tokens of all requests accepted.
        output_tokens: tokens drawn and handed out.
        finished: requests ended, by reason; reasons that never came are 0.
        failure: why the engine takes no more requests after the executor failed, else None.
        cache: the prefix cache, None when it is off.
    """

    scheduler: SchedulerStats
    prompt_tokens: int
    output_tokens: int
    finished: Mapping[FinishReason, int]
    failure: str | None
    cache: CacheStats | None


class EngineObserver(Protocol):
    """Told of each moment that a latency metric is made of; called from the thread that steps."""

    def first_token(self, seconds: float) -> None:
        """A request got its first token, `seconds` after it arrived (TTFT)."""
        ...

    def next_token(self, seconds: float) -> None:
        """A request got another token, `seconds` after its previous one (ITL)."""
        ...

    def finished(self, reason: FinishReason, usage: Usage, seconds: float, /) -> None:
        """A request ended, `seconds` after it arrived."""
        ...
