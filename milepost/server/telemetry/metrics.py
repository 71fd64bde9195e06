"""Prometheus metrics: told by the engine and by the endpoints, and read off the engine when scraped."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from milepost.engine.reports import EngineStats
from milepost.server.telemetry.cache_metrics import cache_metrics
from milepost.types import FinishReason, Usage

__all__ = ["Metrics"]

# Seconds. From a toy model's step on a laptop to a long prompt on a busy machine.
LATENCY_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


class Metrics:
    """The server's counters and histograms, and a window on the engine's.

    The `milepost.engine.reports.EngineObserver` that the engine is built with: latencies are taken
    where tokens are drawn, since outputs that a slow client has not taken yet merge into one.
    """

    def __init__(self) -> None:
        # A registry of our own: two servers in one process don't clash, tests least of all.
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "milepost_requests",
            "Requests that ended, by endpoint and how: stop, length, abort, error.",
            ["endpoint", "finish_reason"],
            registry=self._registry,
        )
        self._errors = Counter(
            "milepost_http_errors",
            "Replies with an error status, by that status.",
            ["status"],
            registry=self._registry,
        )
        self._prompt_tokens = self._counter("milepost_prompt_tokens", "Prompt tokens of ended requests.")
        self._cached_tokens = self._counter(
            "milepost_cached_tokens", "Prompt tokens of ended requests that were not computed again."
        )
        self._output_tokens = self._counter("milepost_output_tokens", "Tokens drawn.")
        self._first_token = self._histogram(
            "milepost_time_to_first_token_seconds", "From a request's arrival to its first token (TTFT)."
        )
        self._inter_token = self._histogram(
            "milepost_inter_token_latency_seconds", "Between the tokens of one request (ITL)."
        )
        self._duration = self._histogram(
            "milepost_request_duration_seconds", "From a request's arrival to its end."
        )

    def watch(self, engine_stats: Callable[[], EngineStats]) -> None:
        """Also report a snapshot of the engine, taken at each scrape."""
        self._registry.register(_EngineCollector(engine_stats))

    def render(self) -> bytes:
        """Everything in Prometheus' text format."""
        return generate_latest(self._registry)

    def http_error(self, status: int) -> None:
        """A reply had an error status."""
        self._errors.labels(str(status)).inc()

    def request_ended(self, endpoint: str, reason: FinishReason) -> None:
        """An endpoint's request ended for `reason`."""
        self._requests.labels(endpoint, reason.value).inc()

    def first_token(self, seconds: float) -> None:
        """A request got its first token, `seconds` after it arrived."""
        self._output_tokens.inc()
        self._first_token.observe(seconds)

    def next_token(self, seconds: float) -> None:
        """A request got another token, `seconds` after its previous one."""
        self._output_tokens.inc()
        self._inter_token.observe(seconds)

    def finished(self, _reason: FinishReason, usage: Usage, seconds: float) -> None:
        """The engine ended a request, `seconds` after it arrived."""
        self._duration.observe(seconds)
        self._prompt_tokens.inc(usage.prompt_tokens)
        self._cached_tokens.inc(usage.cached_tokens)

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(name, text, registry=self._registry)

    def _histogram(self, name: str, text: str) -> Histogram:
        return Histogram(name, text, buckets=LATENCY_BUCKETS, registry=self._registry)


class _EngineCollector(Collector):
    """Reads the engine's numbers at each scrape."""

    def __init__(self, engine_stats: Callable[[], EngineStats]) -> None:
        self._stats = engine_stats

    def describe(self) -> list[Metric]:
        """Nothing: registering must not read an engine that has not started."""
        return []

    def collect(self) -> Iterator[Metric]:
        """The gauges and counters of one snapshot."""
        engine = self._stats()
        stats = engine.scheduler
        yield GaugeMetricFamily("milepost_running_requests", "Requests that hold pages.", stats.running)
        yield GaugeMetricFamily("milepost_waiting_requests", "Requests in the queue.", stats.waiting)
        pages = GaugeMetricFamily("milepost_pages", "Pages of the arena by state.", labels=["state"])
        for state, count in msgspec.structs.asdict(stats.pages).items():
            if state != "total":
                pages.add_metric([state], count)
        yield pages
        yield CounterMetricFamily("milepost_preemptions", "Preemptions by recompute.", stats.preemptions)
        yield CounterMetricFamily("milepost_steps", "Steps that the engine ran.", stats.steps)
        yield CounterMetricFamily(
            "milepost_computed_tokens",
            "Tokens computed, those computed again included.",
            stats.computed_tokens,
        )
        yield from cache_metrics(engine)
