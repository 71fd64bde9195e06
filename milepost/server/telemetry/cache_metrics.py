"""The prefix cache's samples of ``/metrics``.

Two names follow vLLM's, whose dashboards then need another prefix only: ``prefix_cache_queries`` and
``prefix_cache_hits`` count tokens, not requests.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from milepost.engine.reports import EngineStats

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


def cache_metrics(stats: EngineStats) -> Iterator[Metric]:
    """Gauges and counters of the cache and of the tiers behind it; none when it is off."""
    cache = stats.cache
    if cache is None:
        return
    pages = {"state": cache.state_pages, "kv": cache.kv_pages}
    yield _labelled(GaugeMetricFamily, "pages", "Pages cached.", "kind", pages)
    yield _labelled(
        GaugeMetricFamily,
        "bytes",
        "Bytes cached.",
        "kind",
        {kind: count * cache.page_bytes for kind, count in pages.items()},
    )
    yield _labelled(GaugeMetricFamily, "snapshots", "Snapshots cached.", "reason", cache.snapshots_by_reason)
    yield _labelled(
        CounterMetricFamily, "lost_tokens", "Prompt tokens computed, by cause.", "cause", cache.losses
    )
    for name, field, text in _COUNTERS:
        yield CounterMetricFamily(_full(name), text, getattr(cache, field))
    for kind, fields in ((GaugeMetricFamily, _TIER_GAUGES), (CounterMetricFamily, _TIER_COUNTERS)):
        for name, field, text in fields:
            if cache.tiers:
                values = {tier.name: getattr(tier, field) for tier in cache.tiers}
                yield _labelled(kind, f"tier_{name}", text, "tier", values)


def _full(name: str) -> str:
    return f"milepost_prefix_cache_{name}"


def _labelled(
    kind: type[GaugeMetricFamily | CounterMetricFamily],
    name: str,
    text: str,
    label: str,
    values: Mapping[str, int],
) -> Metric:
    family = kind(_full(name), text, labels=[label])
    for value, count in values.items():
        family.add_metric([value], count)
    return family
