"""The numbers that the page draws: the body of ``/stats.json``."""

from __future__ import annotations

import msgspec

__all__ = ["Latencies", "Moment", "PageStats"]


class Latencies(msgspec.Struct, frozen=True, kw_only=True):
    """Percentiles of what was measured in a second, in seconds; of nothing there are none."""

    p50: float
    p90: float
    p99: float


class Moment(msgspec.Struct, frozen=True, kw_only=True):
    """A second of the server's life. Rates are per second, over the time since the moment before.

    Attributes:
        number: counts moments since the server started.
        time: Unix time at its end.
        prompt_rate: prompt tokens computed, those computed again after a preemption included.
        cached_rate: prompt tokens found cached.
        output_rate: tokens drawn.
        running: requests that hold pages.
        waiting: requests that hold none.
        ttft: seconds from arrival to the first token.
        itl: seconds between two tokens of a request.
        control: seconds of deciding in a step.
        step: seconds of whole steps.
        busy: share of the time in which a step ran.
        pages: pages by what they hold.
        lost_rates: prompt tokens that were looked up and not found, by cause.
        refused_rates: replies with an error status, by code, and requests that the server ended by itself.
        ended_rate: requests that ended.
    """

    number: int
    time: float
    prompt_rate: float
    cached_rate: float
    output_rate: float
    running: int
    waiting: int
    ttft: Latencies | None
    itl: Latencies | None
    control: Latencies | None
    step: Latencies | None
    busy: float
    pages: dict[str, int]
    lost_rates: dict[str, float]
    refused_rates: dict[str, float]
    ended_rate: float


class PageStats(msgspec.Struct, frozen=True, kw_only=True):
    """The body of ``/stats.json``.

    Attributes:
        model: its served name.
        version: Milepost's.
        time: Unix time of the server.
        uptime: seconds since the model was served.
        draining: whether the server is about to end.
        failure: whether the engine has failed.
        total_pages: pages of the arena, the dummy page aside.
        page_bytes: bytes of one; 0 when the prefix cache, which knows, is off.
        seconds: between two moments.
        kept: moments that are kept.
        totals: tokens and requests since the start.
        moments: those that were asked for, oldest first.
    """

    model: str
    version: str
    time: float
    uptime: float
    draining: bool
    failure: bool
    total_pages: int
    page_bytes: int
    seconds: float
    kept: int
    totals: dict[str, int]
    moments: list[Moment]
