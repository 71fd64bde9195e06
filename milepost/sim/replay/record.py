"""Keeps what a run brings forth, request by request, and sums it up."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec
import numpy as np

from milepost.scheduler.reports import TokenUpdate
from milepost.sim.cost.step_work import CostModel
from milepost.sim.replay.setup import Setup
from milepost.sim.replay.state_watch import StateWatch
from milepost.sim.replay.watch import depth_edges
from milepost.sim.runs import Percentiles, RequestOutcome, RunResult, RunSpec, Sample
from milepost.sim.traces.trace import Trace, TraceRequest

__all__ = ["Recorder"]

_SAMPLES = 400


class _Served:
    """A request that is being served, with others."""

    __slots__ = ("first", "request")

    def __init__(self, request: TraceRequest) -> None:
        self.request = request
        self.first: float | None = None


class Recorder:
    """Collects outcomes.

    Args:
        spec: the run.
        trace: its requests.
        setup: what is driven.
        on_request: called with each outcome.
    """

    def __init__(
        self,
        spec: RunSpec,
        trace: Trace,
        setup: Setup,
        on_request: Callable[[RequestOutcome], None] | None,
    ) -> None:
        self._spec = spec
        self._trace = trace
        self._setup = setup
        self._on_request = on_request
        warm_up = int(spec.warm_up * len(trace.requests))
        self._warming = {request.request_id for request in trace.requests[:warm_up]}
        self._num_to_warm = warm_up  # how many of these have neither ended nor been refused
        self._begins_at = trace.requests[warm_up].arrival if warm_up < len(trace.requests) else 0.0
        self._warming_losses: dict[str, int] = {}
        self._losses_before: Mapping[str, int] = setup.cache.stats().losses
        if warm_up:
            setup.policy.on_first_look = self._looked_up
        self._every = max(1, len(trace.requests) // _SAMPLES)
        self._alive: dict[str, _Served] = {}
        self._num_ended = 0
        self._num_refused = 0
        self._ttft: list[float] = []
        self._tpot: list[float] = []
        self._num_good = 0
        self._samples: list[Sample] = []
        self._counted = self._num_input = self._num_hit = self._num_preemptions = 0
        self._state_bytes = self._kv_bytes = 0
        self._num_written_before = 0
        self._states = StateWatch()

    def _warmed(self) -> None:
        """One more of the warm-up is through; snapshots count once all of it is."""
        self._num_to_warm -= 1
        if not self._num_to_warm:
            self._num_written_before = self._setup.cache.stats().snapshots_written
            self._setup.watch.begin(self._setup.cache.index.snapshots)

    def _looked_up(self, request_id: str) -> None:
        """The cache has counted a request's losses; those of the warm-up are kept apart."""
        losses = self._setup.cache.stats().losses
        if request_id in self._warming:
            for cause, count in losses.items():
                before = self._losses_before[cause]
                self._warming_losses[cause] = self._warming_losses.get(cause, 0) + count - before
        self._losses_before = losses

    # -- while it runs --------------------------------------------------------------------------

    def arrived(self, request: TraceRequest) -> None:
        """A request was accepted, to be served with others."""
        self._alive[request.request_id] = _Served(request)

    def refused(self, request: TraceRequest) -> None:
        """A request can never fit."""
        self._num_refused += 1
        if request.request_id in self._warming:
            self._warmed()

    def stepped(self, seconds: float) -> None:
        """A step has run for `seconds`; its results have not been taken in yet."""
        if self._num_to_warm:
            return
        scheduler, index = self._setup.scheduler, self._setup.cache.index
        self._states.saw(
            scheduler.num_running,
            writing=scheduler.num_writing,
            copying=index.num_pinned,
            cached=index.num_snapshots,
            seconds=seconds,
        )

    def drew(self, update: TokenUpdate, now: float) -> None:
        """A request that was accepted drew a token, and may have ended."""
        served = self._alive[update.request_id]
        if served.first is None:
            served.first = now
        if update.finish_reason is None:
            return
        del self._alive[update.request_id]
        usage, request = update.usage, served.request
        assert usage is not None
        drawn = usage.output_tokens
        self.ended(
            RequestOutcome(
                request_id=request.request_id,
                arrival=request.arrival,
                prompt_tokens=usage.prompt_tokens,
                hit_tokens=usage.cached_tokens,
                ttft=served.first - request.arrival,
                tpot=(now - served.first) / (drawn - 1) if drawn > 1 else None,
                preemptions=usage.num_preemptions,
            ),
            now,
        )

    def ended(self, outcome: RequestOutcome, now: float) -> None:
        """A request is done."""
        self._num_ended += 1
        if self._on_request is not None:
            counted = outcome.request_id not in self._warming
            self._on_request(outcome if counted else msgspec.structs.replace(outcome, counted=False))
        if self._num_ended % self._every == 0:
            self._sample(now)
        if outcome.request_id in self._warming:
            self._warmed()
            return
        self._counted += 1
        self._num_input += outcome.prompt_tokens
        self._num_hit += outcome.hit_tokens
        self._num_preemptions += outcome.preemptions
        index = self._setup.cache.index
        self._state_bytes += index.num_snapshots * self._setup.parts.state_bytes
        self._kv_bytes += index.num_kv_pages * self._setup.parts.layout.page_bytes
        if outcome.ttft is not None:
            self._ttft.append(outcome.ttft)
        if outcome.tpot is not None:
            self._tpot.append(outcome.tpot)
        if outcome.ttft is not None and outcome.ttft <= self._spec.ttft_limit:
            self._num_good += (outcome.tpot or 0.0) <= self._spec.tpot_limit

    def _sample(self, now: float) -> None:
        index, parts = self._setup.cache.index, self._setup.parts
        stats = self._setup.scheduler.stats()
        self._samples.append(
            Sample(
                seconds=now,
                state_bytes=index.num_snapshots * parts.state_bytes,
                kv_bytes=index.num_kv_pages * parts.layout.page_bytes,
                running=stats.running,
                waiting=stats.waiting,
            )
        )

    # -- afterwards -----------------------------------------------------------------------------

    def result(self, now: float, cost: CostModel | None, wall_seconds: float) -> RunResult:
        """Everything, summed up."""
        spec, setup, trace = self._spec, self._setup, self._trace
        parts, stats = setup.parts, setup.cache.stats()
        counted = max(self._counted, 1)
        written = stats.snapshots_written - self._num_written_before
        longest = max((request.num_prompt + request.num_output for request in trace.requests), default=1)
        seconds = now - (trace.requests[0].arrival if trace.requests else 0.0)
        counted_seconds = now - self._begins_at
        return RunResult(
            trace=trace.name,
            model=spec.model,
            policy=parts.policy.name,
            eviction=parts.eviction.name,
            layout=parts.layout_name or spec.layout,
            preset=spec.preset,
            trace_block=trace.block_size,
            match_unit=parts.match_unit,
            block_size=parts.layout.block_size,
            budget_bytes=spec.budget_bytes,
            requests=self._counted,
            refused=self._num_refused,
            input_tokens=self._num_input,
            hit_tokens=self._num_hit,
            hit_rate=self._num_hit / max(self._num_input, 1),
            snapshots_written=written,
            snapshots_per_request=written / counted,
            snapshots_used=sum(setup.watch.used_at.counts),
            state_bytes_mean=self._state_bytes / counted,
            kv_bytes_mean=self._kv_bytes / counted,
            losses={
                cause: count - self._warming_losses.get(cause, 0) for cause, count in stats.losses.items()
            },
            ttft=_percentiles(self._ttft),
            tpot=_percentiles(self._tpot),
            goodput=None if cost is None or counted_seconds <= 0 else self._num_good / counted_seconds,
            preemptions=self._num_preemptions,
            hardware="" if cost is None else cost.name,
            queueing=spec.queueing,
            seconds=seconds,
            wall_seconds=wall_seconds,
            samples=tuple(self._samples),
            depth_edges=depth_edges(longest),
            written_by_depth=tuple(setup.watch.written_at.counts),
            used_by_depth=tuple(setup.watch.used_at.counts),
            notes=trace.notes + parts.notes,
            states=self._states.use(),
        )


def _percentiles(seconds: Sequence[float]) -> Percentiles | None:
    if not seconds:
        return None
    p50, p90, p99 = np.percentile(seconds, (50, 90, 99)).tolist()
    return Percentiles(mean=sum(seconds) / len(seconds), p50=p50, p90=p90, p99=p99)
