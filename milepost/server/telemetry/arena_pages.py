"""What the arena's pages hold: states or KV, of requests that run or cached."""

from __future__ import annotations

from milepost.engine.reports import EngineStats

__all__ = ["pages_by_kind"]


def pages_by_kind(stats: EngineStats) -> dict[str, int]:
    """Every page but the dummy page, counted once.

    A page that a running request shares with the cache counts as the request's as long as the request
    owns it, and as cached when it only reads it.

    Returns:
        ``state`` and ``kv`` of running requests, ``cached_state`` (snapshots), ``cached_kv``, ``free``, and
        ``quarantined``: those that a transfer writes or that wait to be scrubbed.
    """
    scheduler, cache = stats.scheduler, stats.cache
    pages = scheduler.pages
    live = pages.reserved + pages.writing + pages.owned
    cached_state = 0 if cache is None else min(cache.state_pages, pages.cached)
    state = min(scheduler.live_state_pages, live)
    return {
        "state": state,
        "kv": live - state,
        "cached_state": cached_state,
        "cached_kv": pages.cached - cached_state,
        "free": pages.free,
        "quarantined": pages.quarantined + pages.receiving + pages.tainted,
    }
