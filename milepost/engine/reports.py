"""What an engine tells about itself: a snapshot to be read, and moments to be observed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from milepost.prefix.reports import CacheStats
from milepost.scheduler.reports import SchedulerStats
from milepost.types import FinishReason, Usage

__all__ = ["EngineObserver", "EngineStats", "FirstToken", "RequestReport", "StepReport"]


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


class FirstToken(msgspec.Struct, frozen=True, gc=False):
    """A request got its first token, so all of its prompt is computed.

    Attributes:
        seconds: since it arrived (TTFT).
        prompt_tokens: of its prompt.
        cached_tokens: those of them that were not computed.
    """

    seconds: float
    prompt_tokens: int
    cached_tokens: int


class StepReport(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A step that computed something.

    Attributes:
        control_seconds: what deciding took: planning it, taking its result in, making the outputs.
        run_seconds: what the executor took.
        num_tokens: tokens computed.
        first_tokens: of the requests that got their first token.
        gaps: seconds between the token of each other request that got one and the token before (ITL).
    """

    control_seconds: float
    run_seconds: float
    num_tokens: int
    first_tokens: Sequence[FirstToken]
    gaps: Sequence[float]


class RequestReport(msgspec.Struct, frozen=True, kw_only=True):
    """The life of a request that has ended; times are seconds on the engine's clock.

    Attributes:
        request_id: whose life it was.
        reason: why it ended.
        usage: its tokens.
        max_tokens: most tokens that it asked for, None for no limit of its own.
        arrived: when it was accepted.
        scheduled: when its first step was planned, None if it never had one.
        first_token: when its first token was drawn, None if none was.
        last_token: when its latest token was drawn, None as above.
        ended: when it ended.
    """

    request_id: str
    reason: FinishReason
    usage: Usage
    max_tokens: int | None
    arrived: float
    scheduled: float | None
    first_token: float | None
    last_token: float | None
    ended: float

    @property
    def queue_seconds(self) -> float | None:
        """From its arrival to its first step."""
        return _between(self.arrived, self.scheduled)

    @property
    def prefill_seconds(self) -> float | None:
        """From its first step to its first token."""
        return _between(self.scheduled, self.first_token)

    @property
    def decode_seconds(self) -> float | None:
        """From its first token to its last."""
        return _between(self.first_token, self.last_token)

    @property
    def inference_seconds(self) -> float | None:
        """From its first step to its last token."""
        return _between(self.scheduled, self.last_token)

    @property
    def first_token_seconds(self) -> float | None:
        """From its arrival to its first token (TTFT)."""
        return _between(self.arrived, self.first_token)

    @property
    def seconds(self) -> float:
        """From its arrival to its end."""
        return self.ended - self.arrived


def _between(begin: float | None, end: float | None) -> float | None:
    return None if begin is None or end is None else end - begin


class EngineObserver(Protocol):
    """Told of each step and of each request's end; called from the thread that steps, which waits for it."""

    def stepped(self, step: StepReport, /) -> None:
        """A step ran that computed something."""
        ...

    def finished(self, request: RequestReport, /) -> None:
        """A request ended, in whatever way."""
        ...
