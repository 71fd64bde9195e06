"""The step loop: requests in, outputs out, one step at a time in the caller's thread."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from milepost.engine.detokenizer import Detokenizer, TokenDecoder
from milepost.engine.executor import Executor
from milepost.engine.reports import EngineObserver, EngineStats, FirstToken, RequestReport, StepReport
from milepost.errors import EngineStoppedError, InvariantError
from milepost.prefix.reports import Explanation
from milepost.scheduler.limits import Limits
from milepost.scheduler.reports import TokenUpdate
from milepost.scheduler.scheduler import Scheduler
from milepost.types import Batch, FinishReason, Request, RequestOutput, Usage

__all__ = ["Engine", "failure_sentence"]

logger = logging.getLogger(__name__)

_DRAIN_SECONDS = 10.0
_DRAIN_PAUSE_SECONDS = 0.002


class _Live:
    """A request between its acceptance and its last output."""

    __slots__ = (
        "arrived",
        "detokenizer",
        "first_token",
        "last_token",
        "max_tokens",
        "request_id",
        "scheduled",
        "usage",
    )

    def __init__(self, request: Request, detokenizer: Detokenizer | None, arrived: float) -> None:
        self.request_id = request.request_id
        self.detokenizer = detokenizer  # None: whoever reads the outputs makes their text
        self.max_tokens = request.sampling.max_tokens
        self.arrived = arrived
        self.scheduled: float | None = None
        self.first_token: float | None = None
        self.last_token: float | None = None
        self.usage = Usage(prompt_tokens=len(request.prompt_token_ids), output_tokens=0)


class Engine:
    """Drives scheduler, executor and detokeniser; the heart of every front.

    Every accepted request ends in exactly one output with a finish reason: from `step`, from
    `abort` or from `close`. When the executor fails (raises), every request alive ends with
    `FinishReason.ERROR` in that step's outputs, and the engine takes no more.

    Not thread-safe, `limits` apart; `AsyncEngine` is the front for threads and event loops.

    Args:
        executor: computes the steps; the engine closes it.
        scheduler: plans the steps; used by nobody else.
        decoder: token ids to bytes.
        clock: seconds, for latencies; requests whose ``arrival_time`` is set must use the same.
        observer: told of steps and of requests that end, or None.
    """

    def __init__(
        self,
        executor: Executor,
        scheduler: Scheduler,
        decoder: TokenDecoder,
        *,
        clock: Callable[[], float] = time.monotonic,
        observer: EngineObserver | None = None,
    ) -> None:
        self._executor = executor
        self._scheduler = scheduler
        self._decoder = decoder
        self._clock = clock
        self._observer = observer
        self._live: dict[str, _Live] = {}
        self._closed = False
        self._failure: str | None = None
        self._prompt_tokens = 0
        self._output_tokens = 0
        self._finished = dict.fromkeys(FinishReason, 0)
        # Of the step whose outputs are being made; the observer gets them.
        self._first_tokens: list[FirstToken] = []
        self._gaps: list[float] = []
        self._num_computed = 0

    @property
    def has_work(self) -> bool:
        """Whether `step` has something to do: a request is alive, or pages wait to be copied to a tier."""
        return bool(self._live) or (self._failure is None and self._scheduler.has_transfers)

    @property
    def has_transfers(self) -> bool:
        """Whether pages are on their way to or from a tier, or wait to be: `step` lets them go on."""
        scheduler = self._scheduler
        return self._failure is None and (scheduler.has_transfers or scheduler.transfers_running)

    @property
    def failure(self) -> str | None:
        """Why the engine takes no more requests after the executor failed, else None."""
        return self._failure

    @property
    def limits(self) -> Limits:
        """What can be served at all; safe to ask from any thread."""
        return self._scheduler.limits

    @property
    def clock(self) -> Callable[[], float]:
        """The engine's clock, in seconds."""
        return self._clock

    def detokenizer(self, request: Request) -> Detokenizer:
        """A fresh one for the outputs of `request`; safe to ask from any thread."""
        return Detokenizer(self._decoder, request.sampling.stop, min_tokens=request.sampling.min_tokens)

    def submit(self, request: Request, *, with_text: bool = True) -> None:
        """Accept a request.

        Args:
            request: what is asked.
            with_text: False leaves it to the reader to make the outputs' text, away from the step loop.
                Stop strings are found in text, so a request that has any must have it made here.

        Raises:
            RequestError: it can't be served, or its id is alive already.
            EngineStoppedError: the engine is closed or has failed.
        """
        if self._closed:
            raise EngineStoppedError("The engine is closed and takes no new requests. Start another one.")
        if self._failure is not None:
            raise EngineStoppedError(f"{self._failure} It takes no new requests. Start it again.")
        if not with_text and request.sampling.stop:
            raise InvariantError(f"Request {request.request_id!r} has stop strings and is to have no text.")
        detokenizer = self.detokenizer(request) if with_text else None
        live = _Live(request, detokenizer, request.arrival_time or self._clock())
        self._scheduler.add(request)
        self._live[request.request_id] = live
        self._prompt_tokens += len(request.prompt_token_ids)

    def step(self) -> list[RequestOutput]:
        """Run one step; returns what it brought, at most one output a request.

        An empty list is normal: a chunk of a long prompt draws nothing, and when no request is alive
        a step only looks whether transfers have ended, and begins the next ones.
        """
        if not (self.has_work or self.has_transfers):
            return []
        if self._failure is not None:
            return self._end_all(self._failure)
        began = self._clock()
        try:
            # Without a request a batch must not wait: who steps may have better to do soon.
            batch = self._scheduler.schedule() if self._live else self._scheduler.drain()
            if batch is None:
                return []
            for new in batch.new_requests:
                self._live[new.request_id].scheduled = began
            sent = self._clock()
            result = self._executor.run(batch)
            back = self._clock()
            updates = self._scheduler.update(batch, result)
        except Exception as error:  # noqa: BLE001 - whatever a step raises, every client gets its answer
            return self._fail(error)
        except BaseException:
            # Interrupted in the middle of a step: what it wrote is unknown, so nothing may follow it.
            self._failure = "The engine was interrupted in the middle of a step."
            raise
        now = self._clock()
        outputs = [self._output(update, now) for update in updates]
        self._observe_step(batch, run=back - sent, total=self._clock() - began)
        return outputs

    def abort(self, request_id: str) -> RequestOutput | None:
        """End a request because its client gave up.

        Its pages are free when this returns. Returns its last output, None when it isn't alive.
        """
        update = self._scheduler.abort(request_id)
        return None if update is None else self._output(update, self._clock())

    def close(self) -> list[RequestOutput]:
        """Abort what is alive and close the executor; safe to call twice.

        Returns:
            the last outputs of the requests that were alive.
        """
        if self._closed:
            return []
        self._closed = True
        try:
            aborted = [self.abort(request_id) for request_id in [*self._live]]
            self._drain()
        finally:
            self._executor.close()
        return [output for output in aborted if output is not None]

    def stats(self) -> EngineStats:
        """A snapshot for metrics."""
        return EngineStats(
            scheduler=self._scheduler.stats(),
            prompt_tokens=self._prompt_tokens,
            output_tokens=self._output_tokens,
            finished=dict(self._finished),
            failure=self._failure,
            cache=self._scheduler.cache_stats(),
        )

    def explain(self, prompt_token_ids: Sequence[int], *, cache_salt: str = "") -> Explanation:
        """What a prompt would hit now, and why not more; changes nothing.

        Raises:
            RequestError: such a prompt can't be served.
            ConfigError: the prefix cache is off.
            EngineStoppedError: the engine is closed.
        """
        self._require_open()
        prompt = Request(
            request_id="explain", prompt_token_ids=tuple(prompt_token_ids), cache_salt=cache_salt
        )
        self.limits.validate(prompt)
        return self._scheduler.explain(prompt.prompt_token_ids, cache_salt)

    def reset_cache(self) -> int:
        """Drop all that is cached; what running requests use stays with them alone.

        Returns:
            snapshots dropped.

        Raises:
            ConfigError: the prefix cache is off.
            EngineStoppedError: the engine is closed.
        """
        self._require_open()
        return self._scheduler.reset_cache()

    def _require_open(self) -> None:
        if self._closed:
            raise EngineStoppedError("The engine is closed and answers nothing any more. Start another one.")

    def _drain(self) -> None:
        """Let what is on its way to another tier arrive, so that the next process finds it, within limits."""
        deadline = time.monotonic() + _DRAIN_SECONDS
        try:
            while self._failure is None and (batch := self._scheduler.drain()) is not None:
                self._scheduler.update(batch, self._executor.run(batch))
                if time.monotonic() > deadline:
                    logger.warning("Gave up after %.0f s to let the cache reach its disk", _DRAIN_SECONDS)
                    return
                time.sleep(_DRAIN_PAUSE_SECONDS)
        except Exception:
            logger.exception("The cache could not be brought to its other tiers")

    def _output(self, update: TokenUpdate, now: float) -> RequestOutput:
        live = self._live[update.request_id]
        live.usage = update.usage
        self._observe_tokens(live, len(update.token_ids), now)
        reason, stop_reason = update.finish_reason, update.stop_reason
        text, stop = _text_of(live, update)
        if stop is not None and reason not in (FinishReason.ABORT, FinishReason.ERROR):
            if reason is None:
                self._scheduler.finish(update.request_id, FinishReason.STOP)
            return self._final(live, update, text, FinishReason.STOP, stop, now)
        if reason is not None:
            return self._final(live, update, text, reason, stop_reason, now)
        return RequestOutput(
            request_id=update.request_id,
            text=text,
            token_ids=update.token_ids,
            logprobs=update.logprobs,
            usage=update.usage,
        )

    def _final(
        self,
        live: _Live,
        update: TokenUpdate,
        text: str,
        reason: FinishReason,
        stop_reason: str | int | None,
        now: float,
    ) -> RequestOutput:
        del self._live[live.request_id]
        self._finished[reason] += 1
        if self._observer is not None:
            self._observer.finished(_report(live, reason, now))
        return RequestOutput(
            request_id=live.request_id,
            text=text,
            token_ids=update.token_ids,
            logprobs=update.logprobs,
            finish_reason=reason,
            stop_reason=stop_reason,
            error=update.error,
            usage=live.usage,
        )

    def _observe_tokens(self, live: _Live, count: int, now: float) -> None:
        self._output_tokens += count
        if count == 0:
            return
        if live.last_token is None:
            live.first_token = now
            usage = live.usage
            self._first_tokens.append(
                FirstToken(now - live.arrived, usage.prompt_tokens, usage.cached_tokens)
            )
        else:
            self._gaps.append(now - live.last_token)
        live.last_token = now

    def _observe_step(self, batch: Batch, *, run: float, total: float) -> None:
        first_tokens, self._first_tokens = self._first_tokens, []
        gaps, self._gaps = self._gaps, []
        num_computed = self._scheduler.num_computed
        num_tokens, self._num_computed = num_computed - self._num_computed, num_computed
        if self._observer is not None and batch.rows:
            step = StepReport(
                control_seconds=total - run,
                run_seconds=run,
                num_tokens=num_tokens,
                first_tokens=first_tokens,
                gaps=gaps,
            )
            self._observer.stepped(step)

    def _fail(self, error: Exception) -> list[RequestOutput]:
        """End everything after an exception in a step: in the executor, or a bug of our own."""
        self._failure = failure_sentence("The engine failed in a step", error)
        logger.error("The engine failed; %d requests end with it", len(self._live), exc_info=error)
        return self._end_all(self._failure)

    def _end_all(self, failure: str) -> list[RequestOutput]:
        """End every request alive, after a step that failed or was interrupted."""
        try:
            self._scheduler.abandon()
        except Exception:
            # The outputs below don't depend on the scheduler, and nothing runs on it any more.
            logger.exception("The scheduler could not give its pages back")
        now = self._clock()
        return [self._output(self._failed(live, failure), now) for live in [*self._live.values()]]

    @staticmethod
    def _failed(live: _Live, failure: str) -> TokenUpdate:
        return TokenUpdate(
            request_id=live.request_id, finish_reason=FinishReason.ERROR, error=failure, usage=live.usage
        )


def _report(live: _Live, reason: FinishReason, now: float) -> RequestReport:
    return RequestReport(
        request_id=live.request_id,
        reason=reason,
        usage=live.usage,
        max_tokens=live.max_tokens,
        arrived=live.arrived,
        scheduled=live.scheduled,
        first_token=live.first_token,
        last_token=live.last_token,
        ended=now,
    )


def _text_of(live: _Live, update: TokenUpdate) -> tuple[str, str | None]:
    """What an update adds to a request's text, and the stop string that this completes, if any."""
    if live.detokenizer is None:
        return "", None
    return live.detokenizer.take(update.token_ids, update.finish_reason)


def failure_sentence(what: str, error: BaseException) -> str:
    """What failed and why, as one sentence for the user."""
    return f"{what}: {type(error).__name__}: {str(error).rstrip('.')}."
