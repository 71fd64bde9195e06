"""One run: a trace's requests through the scheduler, on simulated time."""

from __future__ import annotations

import time
from collections.abc import Callable

from milepost.errors import RequestTooLargeError, TraceError
from milepost.scheduler.reports import TokenUpdate
from milepost.sim.cost.step_work import CostModel, StepWork, step_seconds
from milepost.sim.replay.executor import SimulatedExecutor
from milepost.sim.replay.record import Recorder
from milepost.sim.replay.setup import Parts, set_up
from milepost.sim.runs import RequestOutcome, RunResult, RunSpec
from milepost.sim.traces.trace import Trace, TraceRequest
from milepost.types import Batch, Request, SamplingParams

__all__ = ["Simulation"]


class Simulation:
    """Replays a trace once.

    Args:
        spec: the run.
        trace: its requests.
        parts: the engine that is simulated.
        cost: a model of time; None to count tokens only.
        on_request: called after each request with its outcome.

    Raises:
        ConfigError: options that can't be used together.
    """

    def __init__(
        self,
        spec: RunSpec,
        trace: Trace,
        parts: Parts,
        cost: CostModel | None = None,
        on_request: Callable[[RequestOutcome], None] | None = None,
    ) -> None:
        self._spec = spec
        self._trace = trace
        self._cost = cost
        self._now = 0.0
        self._setup = set_up(parts, spec, trace, lambda: self._now)
        self._scheduler = self._setup.scheduler
        self._executor = SimulatedExecutor(cost)
        self._recorder = Recorder(spec, trace, self._setup, on_request)
        self._params: dict[int, SamplingParams] = {}

    @property
    def parts(self) -> Parts:
        """The engine that is simulated."""
        return self._setup.parts

    def run(self) -> RunResult:
        """Replay all of it.

        Raises:
            TraceError: the trace does not say which tokens are equal.
        """
        if not self._trace.has_content:
            raise TraceError(
                f"{self._trace.name} ({self._trace.form}) holds lengths only, so no reuse can be computed. "
                "Give a trace of block ids, token ids or messages; 'milepost trace stats' shows the lengths."
            )
        started = time.perf_counter()
        if self._spec.queueing:
            self._run_queue()
        else:
            for request in self._trace.requests:
                self._serve_alone(request)
        return self._recorder.result(self._now, self._cost, time.perf_counter() - started)

    # -- one at a time --------------------------------------------------------------------------

    def _serve_alone(self, request: TraceRequest) -> None:
        """Serve a request in the moment in which it arrives; the clock stands still meanwhile."""
        self._now = request.arrival
        # Output that the trace does not spell out leaves nothing to find: one token is enough.
        length = request.num_output if request.output_ids else 1
        if not self._add(request, length):
            return
        seconds = 0.0
        ttft: float | None = None
        last: TokenUpdate | None = None
        while (batch := self._scheduler.schedule()) is not None:
            for update in self._step(batch):
                last = update
                if ttft is None:
                    ttft = seconds + self._executor.seconds
            seconds += self._executor.seconds
        assert last is not None  # whatever was added ends
        assert last.usage is not None  # and then says what it used
        timed = self._cost is not None
        self._recorder.ended(
            RequestOutcome(
                request_id=request.request_id,
                arrival=request.arrival,
                prompt_tokens=last.usage.prompt_tokens,
                hit_tokens=last.usage.cached_tokens,
                ttft=ttft if timed else None,
                tpot=self._decode_seconds(request) if timed and request.num_output > 1 else None,
            ),
            self._now,
        )

    def _decode_seconds(self, request: TraceRequest) -> float:
        """Of a step that draws one token in the middle of the output, alone."""
        assert self._cost is not None
        context = request.num_prompt + request.num_output // 2
        work = StepWork(tokens=1, rows=1, sampled=1, context=context, pairs=context)
        return step_seconds(self._cost, work)

    # -- all together ---------------------------------------------------------------------------

    def _run_queue(self) -> None:
        """Let requests arrive, wait and share steps, as they would in the engine."""
        arrivals = iter(self._trace.requests)
        upcoming = next(arrivals, None)
        while upcoming is not None or self._scheduler.has_work:
            while upcoming is not None and upcoming.arrival <= self._now:
                if self._add(upcoming, upcoming.num_output):
                    self._recorder.arrived(upcoming)
                upcoming = next(arrivals, None)
            batch = self._scheduler.schedule()
            if batch is None:
                if upcoming is not None:
                    self._now = upcoming.arrival
                continue
            for update in self._step(batch, moves_time=True):
                self._recorder.drew(update, self._now)

    # -- both -----------------------------------------------------------------------------------

    def _step(self, batch: Batch, *, moves_time: bool = False) -> list[TokenUpdate]:
        result = self._executor.run(batch)
        if moves_time:
            self._now += self._executor.seconds
            self._recorder.stepped(self._executor.seconds)
        return self._scheduler.update(batch, result)

    def _add(self, request: TraceRequest, length: int) -> bool:
        try:
            self._scheduler.add(
                Request(
                    request_id=request.request_id,
                    prompt_token_ids=request.prompt,
                    sampling=self._sampling(length),
                    arrival_time=request.arrival,
                    message_ends=request.message_ends,
                    output_reusable=bool(request.output_ids),
                )
            )
        except RequestTooLargeError:
            self._recorder.refused(request)
            return False
        if request.output_ids:
            self._executor.expect(request.request_id, request.output_ids)
        return True

    def _sampling(self, length: int) -> SamplingParams:
        params = self._params.get(length)
        if params is None:
            params = self._params[length] = SamplingParams(
                temperature=0.0, max_tokens=length, ignore_eos=True
            )
        return params
