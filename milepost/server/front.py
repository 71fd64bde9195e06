"""The one door that every request passes through: admission, deadlines, metrics, and exactly one end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Self

from milepost.engine.output_stream import OutputStream
from milepost.errors import EngineStoppedError, ExecutionError
from milepost.server.access.admission import Admission
from milepost.server.access.refusals import deadline_exceeded
from milepost.server.access.tenants import ANONYMOUS, Tenant
from milepost.server.services import Services
from milepost.server.telemetry.telemetry import Telemetry
from milepost.types import FinishReason, Request, RequestOutput

__all__ = ["Front", "Run"]


class Front:
    """The server's side of the engine.

    Args:
        services: what to serve with.

    Attributes:
        services: the same.
        metrics: the services' metrics.
        telemetry: all that is told of requests.
        draining: no new request is accepted any more.
    """

    def __init__(self, services: Services) -> None:
        self.services = services
        self.metrics = services.metrics
        self.telemetry = Telemetry(
            services.config,
            services.metrics,
            services.engine.stats,
            model_name=services.model_name,
            tracing=services.tracing,
        )
        self.draining = False
        self._running: set[Run] = set()
        self._admission = Admission(services.config.max_waiting, self._queue_length)

    @property
    def num_running(self) -> int:
        """Requests that have not ended yet."""
        return len(self._running)

    def check_open(self) -> None:
        """Refuse when the server is shutting down or its engine has failed.

        Raises:
            EngineStoppedError: so it is.
        """
        if self.draining:
            raise EngineStoppedError("The server is shutting down; send the request to another one.")
        self.check_alive()

    def check_alive(self) -> None:
        """Refuse when the engine has failed: nothing but a restart will help.

        Raises:
            EngineStoppedError: so it is.
        """
        if self.services.engine.failure is not None:
            raise EngineStoppedError(f"{self.services.engine.failure} Restart the server.")

    def check_room(self, tenant: Tenant) -> None:
        """Refuse what `submit` would refuse for any request, before its prompt costs anything.

        Raises:
            HttpError: 429 when the tenant or the server has enough to do.
        """
        self._admission.check(tenant, 1)

    def submit(
        self,
        requests: Sequence[Request],
        endpoint: str,
        *,
        tenant: Tenant = ANONYMOUS,
        timeout: float | None = None,
        arrival: float | None = None,
    ) -> list[Run]:
        """Start all of these requests or none; the caller must iterate over each to the end or close it.

        Args:
            requests: what one HTTP request asks for.
            endpoint: whose it is, for metrics.
            tenant: who asks.
            timeout: seconds from `arrival` to the end; the config's ``request_timeout`` if that is less.
            arrival: when it came, on the clock of `time.monotonic`; None for now.

        Raises:
            RequestError: one can't be served.
            HttpError: 429 when the tenant or the server has enough to do, 504 when it is too late already.
            EngineStoppedError: the engine takes no more requests.
        """
        self.check_open()
        deadline = _Deadline.earliest(timeout, self.services.config.request_timeout, arrival)
        bound = [tenant.bound(request) for request in requests]
        for request in bound:
            self.services.engine.limits.validate(request)
        self._admission.check(tenant, len(bound))
        streams: list[OutputStream] = []
        try:
            for request in bound:
                with self.telemetry.calls.submitting(request):
                    stream = self.services.engine.submit(request)
                streams.append(stream)
        except BaseException:
            for stream in streams:
                stream.close()
            raise
        self._admission.begin(tenant, bound)
        runs = [Run(stream, self._ended, self._admission, tenant, endpoint, deadline) for stream in streams]
        self._running.update(runs)
        return runs

    def abort_all(self) -> None:
        """End what runs; each client is told that the server stopped."""
        for run in self._running:
            self.services.engine.abort(run.request_id)

    def _queue_length(self) -> int:
        # What was accepted since the engine last looked counts as waiting.
        return max(0, len(self._running) - self.services.engine.stats().scheduler.running)

    def _ended(self, run: Run, reason: FinishReason) -> None:
        if run in self._running:
            self._running.remove(run)
            self._admission.ended(run.tenant)
            self.metrics.request_ended(run.endpoint, reason)
            if run.expired:
                self.metrics.aborted("deadline")


class _Deadline:
    """The point in time at which all runs of a call are aborted, by one timer: none of them ends before it.

    Attributes:
        seconds: how long the call may take, for messages.
    """

    def __init__(self, at: float, seconds: float) -> None:
        self.seconds = seconds
        self._at = at
        self._runs: set[Run] = set()
        self._timer: asyncio.TimerHandle | None = None

    @classmethod
    def earliest(cls, timeout: float | None, limit: float | None, arrival: float | None) -> _Deadline | None:
        """What the client asks for, within what the server allows.

        Raises:
            HttpError: 504: it is over.
        """
        given = [seconds for seconds in (timeout, limit) if seconds is not None]
        if not given:
            return None
        seconds, now = min(given), time.monotonic()
        at = (now if arrival is None else arrival) + seconds
        if at <= now:
            raise deadline_exceeded(seconds)
        return cls(at, seconds)

    def add(self, run: Run) -> None:
        """Abort this run too, unless it ends in time."""
        self._runs.add(run)
        if self._timer is None:
            seconds = max(0.0, self._at - time.monotonic())
            self._timer = asyncio.get_running_loop().call_later(seconds, self._expire)

    def remove(self, run: Run) -> None:
        """A run has ended."""
        self._runs.discard(run)
        if not self._runs and self._timer is not None:
            self._timer.cancel()

    def _expire(self) -> None:
        # Not left to whoever reads: it may wait for a client that does not.
        for run in [*self._runs]:
            run.expire()


class Run:
    """One running request: an iterator over its outputs, the last of which has a finish reason.

    Iterating raises `ExecutionError` when the request fails, `EngineStoppedError` when the engine stops
    under it, and an `HttpError` of 504 at its deadline: then its pages are freed whether or not anyone
    reads. `close`, at any time, aborts what has not ended, without waiting.

    Attributes:
        request_id: the engine's name for it.
        tenant: whose it is.
        endpoint: whose it is, for metrics.
        expired: whether it was aborted at its deadline.
    """

    def __init__(
        self,
        stream: OutputStream,
        on_end: Callable[[Run, FinishReason], None],
        admission: Admission,
        tenant: Tenant,
        endpoint: str,
        deadline: _Deadline | None,
    ) -> None:
        self.request_id = stream.request_id
        self.tenant = tenant
        self.endpoint = endpoint
        self._stream = stream
        self._on_end = on_end
        self._admission = admission
        self._deadline = deadline
        self._waiting = True
        self._over = False
        self.expired = False
        if deadline is not None:
            deadline.add(self)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> RequestOutput:
        try:
            output = await anext(self._stream)
        except StopAsyncIteration:
            if self.expired and self._deadline is not None:
                raise deadline_exceeded(self._deadline.seconds) from None
            raise
        self._note(output)
        if output.finish_reason is FinishReason.ERROR:
            raise ExecutionError(output.error or "The request failed while it ran.")
        if output.finish_reason is FinishReason.ABORT:
            raise EngineStoppedError(
                "The server stopped before the reply was complete. Send the request again."
            )
        return output

    def close(self) -> None:
        """Abort the request unless it has ended."""
        self._stream.close()
        self._end(FinishReason.ABORT)

    def expire(self) -> None:
        """Abort the request at its deadline, of which its reader is told."""
        self.expired = not self._over
        self.close()

    def _note(self, output: RequestOutput) -> None:
        self._begin()
        if output.token_ids:
            self._admission.drawn(self.tenant, len(output.token_ids))
        if output.finish_reason is not None:
            self._end(output.finish_reason)

    def _begin(self) -> None:
        if self._waiting:
            self._waiting = False
            self._admission.begun(self.tenant)

    def _end(self, reason: FinishReason) -> None:
        if self._over:
            return
        self._over = True
        if self._deadline is not None:
            self._deadline.remove(self)
        self._begin()
        self._on_end(self, reason)
