"""The samples of ``/metrics`` that are read off the engine when it is scraped."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from prometheus_client.core import Metric

from milepost.engine.reports import EngineStats
from milepost.server.telemetry.arena_pages import pages_by_kind
from milepost.server.telemetry.cache_metrics import cache_metrics
from milepost.server.telemetry.families import Families

__all__ = ["engine_metrics"]


def engine_metrics(stats: EngineStats, families: Families) -> Iterator[Metric]:
    """Gauges and counters of one snapshot."""
    scheduler = stats.scheduler
    usable = scheduler.pages.total - 1
    in_use = 1 - scheduler.available_pages / usable
    yield families.gauge("num_requests_running", "Requests that hold pages.", scheduler.running)
    yield families.gauge(
        "num_requests_waiting",
        "Requests that hold none: they wait for their turn, for a snapshot or for a transfer.",
        scheduler.waiting,
    )
    yield families.gauge(
        "kv_cache_usage_perc",
        "Share of the pages that can't be had without preempting; 1 is all of them.",
        in_use,
    )
    yield families.counter("num_preemptions", "Preemptions by recompute.", scheduler.preemptions)
    states = {
        state: count for state, count in msgspec.structs.asdict(scheduler.pages).items() if state != "total"
    }
    yield families.gauges("pages", "Pages of the arena by state.", "state", states)
    yield families.gauges(
        "pages_by_kind", "Pages of the arena by what they hold.", "kind", pages_by_kind(stats)
    )
    yield families.counter("steps", "Steps that the engine ran.", scheduler.steps)
    yield families.counter("failed_steps", "Steps whose rows could not be computed.", scheduler.failed_steps)
    yield families.counter(
        "computed_tokens", "Tokens computed, those computed again included.", scheduler.computed_tokens
    )
    yield from cache_metrics(stats, families)
