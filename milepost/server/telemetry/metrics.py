"""Prometheus metrics: told by the engine and by the endpoints, and read off the engine when scraped.

Names and labels are vLLM's (``vllm/v1/metrics/loggers.py``) where they mean the same, behind a prefix of
one's choice: with the prefix ``vllm`` the dashboards made for it carry over. Ours stand beside them.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from milepost.engine.reports import EngineStats, RequestReport, StepReport
from milepost.server.telemetry.engine_metrics import engine_metrics
from milepost.server.telemetry.families import Families
from milepost.server.telemetry.histograms import (
    CONTROL_BUCKETS,
    COUNT_BUCKETS,
    LATENCY_BUCKETS,
    Histogram,
)
from milepost.types import FinishReason

__all__ = ["Metrics", "Recent"]

CHOICE_BUCKETS = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0)

# Samples kept for whoever looks every second; a server that nobody watches keeps the last ones.
RECENT_SAMPLES = 8192


class Recent:
    """The latest samples, for whoever takes them once a second.

    Attributes:
        first_tokens: seconds to the first token of requests.
        gaps: seconds between two tokens of a request, and how many requests waited that long.
        control: seconds of a step's control plane, and of its executor.
    """

    def __init__(self) -> None:
        self.first_tokens: deque[float] = deque(maxlen=RECENT_SAMPLES)
        self.gaps: deque[tuple[float, int]] = deque(maxlen=RECENT_SAMPLES)
        self.steps: deque[tuple[float, float]] = deque(maxlen=RECENT_SAMPLES)


class Metrics:
    """The server's counters and histograms, and a window on the engine's.

    The `milepost.engine.reports.EngineObserver` that the engine is built with: latencies are taken
    where tokens are drawn, since outputs that a slow client has not taken yet merge into one. What the
    engine tells is counted on its thread; all else on the event loop's.

    Attributes:
        recent: the latest samples of what has a distribution.
        prompt_tokens: of prompts that were computed to their end, or found cached.
        cached_tokens: those of them that were not computed.
        output_tokens: tokens drawn.
        first_tokens: those of them that were a request's first.
        on_finished: called with each report, on the engine's thread.
    """

    def __init__(self) -> None:
        self.recent = Recent()
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.output_tokens = 0
        self.first_tokens = 0
        self.on_finished: Callable[[RequestReport], None] | None = None
        self._finished = dict.fromkeys(FinishReason, 0)
        self._replies: Counter[tuple[str, str]] = Counter()
        self._requests: Counter[tuple[str, str]] = Counter()
        self._tenant_tokens: Counter[tuple[str, str]] = Counter()
        self._aborts: Counter[str] = Counter()
        self._families = Families("milepost", {})
        # A registry of our own: two servers in one process don't clash, tests least of all.
        self._registry = CollectorRegistry()
        self._registry.register(_OwnCollector(self._own))
        self._histograms: list[Histogram] = []
        seconds, counts = LATENCY_BUCKETS, COUNT_BUCKETS
        add = self._histogram
        self._first_token = add("time_to_first_token_seconds", "From arrival to the first token.", seconds)
        self._gap = add("inter_token_latency_seconds", "Between two tokens of a request.", seconds)
        self._duration = add("e2e_request_latency_seconds", "From a request's arrival to its end.", seconds)
        self._queue = add("request_queue_time_seconds", "From arrival to the first step.", seconds)
        self._prefill = add(
            "request_prefill_time_seconds", "From the first step to the first token.", seconds
        )
        self._decode = add("request_decode_time_seconds", "From the first token to the last.", seconds)
        self._inference = add(
            "request_inference_time_seconds", "From the first step to the last token.", seconds
        )
        self._per_token = add(
            "request_time_per_output_token_seconds",
            "Mean time of a request's tokens after its first.",
            seconds,
        )
        self._prompt_size = add("request_prompt_tokens", "Tokens of a request's prompt.", counts)
        self._output_size = add("request_generation_tokens", "Tokens that a request drew.", counts)
        self._largest_output = add(
            "request_max_num_generation_tokens", "Tokens that the longest reply of a request has.", counts
        )
        self._max_tokens = add("request_params_max_tokens", "The limit that a request set itself.", counts)
        self._num_choices = add("request_params_n", "Replies that a prompt asked for.", CHOICE_BUCKETS)
        self._step_tokens = add("iteration_tokens_total", "Tokens computed in a step.", counts)
        self._control = add(
            "step_control_seconds",
            "Deciding in a step: planning, taking in, making outputs.",
            CONTROL_BUCKETS,
        )
        self._run = add("step_run_seconds", "The executor's part of a step.", seconds)

    def watch(
        self, engine_stats: Callable[[], EngineStats], *, prefix: str = "milepost", model_name: str = ""
    ) -> None:
        """Report a snapshot of the engine too, taken at each scrape, and name what is reported.

        Args:
            engine_stats: takes it.
            prefix: before the colon of all names.
            model_name: a label of all samples; so is ``engine``, since vLLM's dashboards sum over it.
        """
        self._families = Families(prefix, {"model_name": model_name, "engine": "0"})
        self._registry.register(_EngineCollector(engine_stats, self._families))

    def render(self) -> bytes:
        """Everything in Prometheus' text format."""
        return generate_latest(self._registry)

    # -- told by the engine, on its thread --------------------------------------------------------

    def stepped(self, step: StepReport, /) -> None:
        """A step ran that computed something."""
        self._step_tokens.add(step.num_tokens)
        self._control.add(step.control_seconds)
        self._run.add(step.run_seconds)
        self.recent.steps.append((step.control_seconds, step.run_seconds))
        for first in step.first_tokens:
            self.prompt_tokens += first.prompt_tokens
            self.cached_tokens += first.cached_tokens
            self._first_token.add(first.seconds)
            self.recent.first_tokens.append(first.seconds)
        self.first_tokens += len(step.first_tokens)
        self.output_tokens += len(step.first_tokens) + len(step.gaps)
        # Those that drew a token in the step before too, nearly all, waited equally long.
        for gap, count in Counter(step.gaps).items():
            self._gap.add(gap, count)
            self.recent.gaps.append((gap, count))

    def finished(self, request: RequestReport, /) -> None:
        """A request ended."""
        self._finished[request.reason] += 1
        self._duration.add(request.seconds)
        for histogram, seconds in (
            (self._queue, request.queue_seconds),
            (self._prefill, request.prefill_seconds),
            (self._decode, request.decode_seconds),
            (self._inference, request.inference_seconds),
        ):
            if seconds is not None:
                histogram.add(seconds)
        num_output = request.usage.output_tokens
        if num_output > 1 and request.decode_seconds is not None:
            self._per_token.add(request.decode_seconds / (num_output - 1))
        self._prompt_size.add(request.usage.prompt_tokens)
        self._output_size.add(num_output)
        if request.max_tokens is not None:
            self._max_tokens.add(request.max_tokens)
        if self.on_finished is not None:
            self.on_finished(request)

    # -- told by the server, on its event loop ----------------------------------------------------

    def http_error(self, status: int, code: str | None = None) -> None:
        """A reply had an error status; `code` is the word for programs in its body."""
        self._replies[str(status), code or ""] += 1

    def request_ended(self, endpoint: str, reason: FinishReason) -> None:
        """An endpoint's request ended for `reason`."""
        self._requests[endpoint, reason.value] += 1

    def aborted(self, cause: str) -> None:
        """The server ended a request by itself; `cause` is ``deadline``, ``slow_reader`` or the like."""
        self._aborts[cause] += 1

    def asked(self, num_choices: int) -> None:
        """A prompt asked for that many replies."""
        self._num_choices.add(num_choices)

    def answered(self, tenant: str, reports: list[RequestReport]) -> None:
        """All replies of an HTTP request of `tenant` have ended."""
        if reports:
            self._largest_output.add(max(report.usage.output_tokens for report in reports))
        for report in reports:
            usage = report.usage
            self._tenant_tokens[tenant, "prompt"] += usage.prompt_tokens
            self._tenant_tokens[tenant, "cached"] += usage.cached_tokens
            self._tenant_tokens[tenant, "output"] += usage.output_tokens

    def refusals(self) -> dict[str, int]:
        """Replies with an error status so far, by the code in their body or their status."""
        found: Counter[str] = Counter()
        for (status, code), count in [*self._replies.items()]:
            found[code or status] += count
        return dict(found)

    def aborts(self) -> dict[str, int]:
        """Requests that the server ended by itself so far, by cause."""
        return dict(self._aborts)

    # --------------------------------------------------------------------------------------------

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        histogram = Histogram(name, text, buckets)
        self._histograms.append(histogram)
        return histogram

    def _own(self) -> Iterator[Metric]:
        families = self._families
        yield families.counter(
            "prompt_tokens", "Tokens of prompts computed or found cached.", self.prompt_tokens
        )
        yield families.counter(
            "cached_tokens", "Those of the prompt tokens that were not computed again.", self.cached_tokens
        )
        yield families.counter("generation_tokens", "Tokens drawn.", self.output_tokens)
        reasons = {reason.value: count for reason, count in self._finished.items()}
        yield families.counters(
            "request_success",
            "Requests that ended, by why: stop, length, abort, error.",
            "finished_reason",
            reasons,
        )
        for histogram in self._histograms:
            yield histogram.family(families.prefix, families.labels)
        yield self._table(
            "http_errors",
            "Replies with an error status, by it and the body's code.",
            ("status", "code"),
            self._replies,
        )
        yield self._table(
            "requests",
            "Requests that ended, by endpoint and why.",
            ("endpoint", "finished_reason"),
            self._requests,
        )
        yield self._table(
            "tenant_tokens",
            "Tokens of ended requests, by tenant and kind.",
            ("tenant", "kind"),
            self._tenant_tokens,
        )
        aborts: dict[str, float] = {"deadline": 0, "slow_reader": 0, **self._aborts}
        yield families.counters(
            "aborted_requests", "Requests that the server ended by itself, by cause.", "cause", aborts
        )

    def _table(
        self, name: str, text: str, labels: tuple[str, ...], counts: Counter[tuple[str, str]]
    ) -> CounterMetricFamily:
        families = self._families
        family = CounterMetricFamily(f"{families.prefix}:{name}", text, labels=[*families.labels, *labels])
        for values, count in [*counts.items()]:
            family.add_metric([*families.labels.values(), *values], count)
        return family


class _OwnCollector(Collector):
    """Renders what is counted here."""

    def __init__(self, collect: Callable[[], Iterator[Metric]]) -> None:
        self._collect = collect

    def describe(self) -> list[Metric]:
        """Nothing: names are known once the server watches."""
        return []

    def collect(self) -> Iterator[Metric]:
        """All counters and histograms."""
        return self._collect()


class _EngineCollector(Collector):
    """Reads the engine's numbers at each scrape."""

    def __init__(self, engine_stats: Callable[[], EngineStats], families: Families) -> None:
        self._stats = engine_stats
        self._families = families

    def describe(self) -> list[Metric]:
        """Nothing: registering must not read an engine that has not started."""
        return []

    def collect(self) -> Iterator[Metric]:
        """The gauges and counters of one snapshot."""
        return engine_metrics(self._stats(), self._families)
