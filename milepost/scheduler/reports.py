"""What the scheduler tells: news of requests, and a snapshot of itself."""

from __future__ import annotations

import msgspec

from milepost.memory.page_states import PageCounts
from milepost.types import FinishReason, TokenLogprobs, Usage

__all__ = ["SchedulerStats", "TokenUpdate"]


class TokenUpdate(msgspec.Struct, frozen=True, kw_only=True):
    """News of one request: the tokens that a step drew for it, or its end, or both.

    `stop_reason` is the stop token when `finish_reason` is STOP; the token is the last of
    `token_ids`. `error` says why when `finish_reason` is ERROR.
    """

    request_id: str
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    finish_reason: FinishReason | None = None
    stop_reason: int | None = None
    error: str | None = None
    usage: Usage


class SchedulerStats(msgspec.Struct, frozen=True, kw_only=True):
    """The scheduler at one moment; the fields from `steps` on count since it was built.

    Attributes:
        running: requests that hold pages.
        waiting: requests that hold none.
        pages: pages by state.
        live_state_pages: those of the leased pages that hold the states of running requests; between two
            steps the other ones hold KV, those that a transfer writes apart.
        available_pages: pages that can be had without preempting anybody: free ones, and cached ones that
            nobody uses.
        steps: batches sent.
        computed_tokens: tokens computed, those computed again after a preemption included.
        output_tokens: tokens drawn.
        preemptions: times that a running request lost its pages.
        finished: requests ended, by any reason.
        failed_steps: steps whose rows could not be computed.
    """

    running: int
    waiting: int
    pages: PageCounts
    live_state_pages: int
    available_pages: int
    steps: int
    computed_tokens: int
    output_tokens: int
    preemptions: int
    finished: int
    failed_steps: int
