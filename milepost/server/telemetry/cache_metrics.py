"""The prefix cache's samples of ``/metrics``.

Two names are vLLM's: ``prefix_cache_queries`` and ``prefix_cache_hits`` count tokens, not requests.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import Metric

from milepost.engine.reports import EngineStats
from milepost.server.telemetry.families import Families

__all__ = ["cache_metrics"]

_COUNTERS = (
    ("queries", "looked_up_tokens", "Prompt tokens looked up."),
    ("hits", "hit_tokens", "Prompt tokens that were not computed."),
    ("requests", "lookups", "Requests looked up, once each."),
    ("hit_requests", "hits", "Requests that hit anything."),
    ("waits", "waits", "Times that a request waited for a snapshot that another one was computing."),
    ("snapshots_written", "snapshots_written", "Snapshots published."),
    ("snapshots_skipped", "snapshots_skipped", "Snapshots planned and not left, for lack of memory."),
    (
        "snapshots_withdrawn",
        "snapshots_withdrawn",
        "Snapshots written and not published: aborted, failed, not finite, or there already.",
    ),
    ("evicted_snapshots", "evicted_snapshots", "Snapshots dropped for their pages."),
    ("evicted_kv_pages", "evicted_kv_pages", "KV pages dropped."),
    ("copied_pages", "copied_pages", "Pages copied for requests that resume."),
    ("resets", "resets", "Times that the cache was emptied by hand."),
)

_TIER_GAUGES = (
    ("snapshots", "snapshots", "Snapshots in a tier."),
    ("used_pages", "used_pages", "Pages of a tier in use."),
    ("pages", "total_pages", "Pages of a tier."),
)

_TIER_COUNTERS = (
    ("hits", "hit_tokens", "Prompt tokens that a tier saved."),
    ("stores", "stores", "Transfers into a tier."),
    ("loads", "loads", "Transfers out of a tier."),
    ("failures", "failures", "Transfers that failed."),
    ("evicted_snapshots", "evicted_snapshots", "Snapshots that a tier dropped."),
)


def cache_metrics(stats: EngineStats, families: Families) -> Iterator[Metric]:
    """Gauges and counters of the cache and of the tiers behind it; none when it is off."""
    cache = stats.cache
    if cache is None:
        return
    pages = {"state": cache.state_pages, "kv": cache.kv_pages}
    yield families.gauges(_full("pages"), "Pages cached.", "kind", pages)
    sizes = {kind: count * cache.page_bytes for kind, count in pages.items()}
    yield families.gauges(_full("bytes"), "Bytes cached.", "kind", sizes)
    yield families.gauges(_full("snapshots"), "Snapshots cached.", "reason", cache.snapshots_by_reason)
    yield families.counters(_full("lost_tokens"), "Prompt tokens computed, by cause.", "cause", cache.losses)
    for name, field, text in _COUNTERS:
        yield families.counter(_full(name), text, getattr(cache, field))
    if not cache.tiers:
        return
    for name, field, text in _TIER_GAUGES:
        values = {tier.name: getattr(tier, field) for tier in cache.tiers}
        yield families.gauges(_full(f"tier_{name}"), text, "tier", values)
    for name, field, text in _TIER_COUNTERS:
        values = {tier.name: getattr(tier, field) for tier in cache.tiers}
        yield families.counters(_full(f"tier_{name}"), text, "tier", values)


def _full(name: str) -> str:
    return f"prefix_cache_{name}"
