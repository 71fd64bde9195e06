"""One place that every request passes through: admission, metrics, and exactly one end."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

from milepost.errors import EngineStoppedError, ExecutionError, RequestError
from milepost.server.metrics import Metrics
from milepost.server.services import Services
from milepost.types import FinishReason, Request, RequestOutput, Usage

__all__ = ["Front"]


class Front:
    """The server's side of the engine.

    Args:
        services: what to serve with.

    Attributes:
        services: the same.
        metrics: what was counted.
        draining: no new request is accepted any more.
    """

    def __init__(self, services: Services) -> None:
        self.services = services
        self.metrics = Metrics(services.engine.stats)
        self.draining = False
        self._running: set[_Run] = set()

    @property
    def num_running(self) -> int:
        """Requests that have not ended yet."""
        return len(self._running)

    def check_open(self) -> None:
        """Refuse when the server is shutting down.

        Raises:
            EngineStoppedError: it is.
        """
        if self.draining:
            raise EngineStoppedError("The server is shutting down; send the request to another one.")

    def abort_all(self) -> None:
        """End what runs; each client is told that the server stopped."""
        for run in self._running:
            self.services.engine.abort(run.request_id)

    async def run(self, request: Request, endpoint: str) -> AsyncGenerator[RequestOutput]:
        """Run one request and yield its outputs; the last one has a finish reason.

        Closing the generator, at any time, aborts the request.

        Raises:
            RequestError: it can't be served.
            ExecutionError: it failed while it ran.
            EngineStoppedError: the engine stopped before it was complete.
        """
        run = _Run(request.request_id, endpoint, self.metrics)
        self._running.add(run)
        try:
            async with aclosing(self.services.engine.stream(request)) as outputs:
                async for output in outputs:
                    run.observe(output)
                    yield output
            run.require_end()
        except RequestError:
            run.rejected = True
            raise
        finally:
            self._running.discard(run)
            run.close()


class _Run:
    """What is known of one running request."""

    def __init__(self, request_id: str, endpoint: str, metrics: Metrics) -> None:
        self.request_id = request_id
        self.rejected = False
        self._endpoint = endpoint
        self._metrics = metrics
        self._arrival = time.monotonic()
        self._last_token: float | None = None
        self._usage: Usage | None = None
        self._reason: FinishReason | None = None

    def observe(self, output: RequestOutput) -> None:
        """Count an output.

        Raises:
            ExecutionError, EngineStoppedError: it says that the request failed.
        """
        self._usage = output.usage
        self._reason = output.finish_reason
        if output.token_ids:
            self._count(len(output.token_ids))
        if output.finish_reason is FinishReason.ERROR:
            raise ExecutionError(output.error or "The request failed while it ran.")
        if output.finish_reason is FinishReason.ABORT:
            raise EngineStoppedError("The server stopped before the reply was complete.")

    def require_end(self) -> None:
        """An engine that ends a stream without a last output has stopped under it."""
        if self._reason is None:
            raise EngineStoppedError("The server stopped before the reply was complete.")

    def close(self) -> None:
        """Count the end, whatever it was."""
        if self.rejected:
            return
        reason = self._reason or FinishReason.ABORT
        seconds = time.monotonic() - self._arrival
        self._metrics.finish(self._endpoint, reason.value, seconds, self._usage)

    def _count(self, tokens: int) -> None:
        now = time.monotonic()
        if self._last_token is None:
            self._metrics.first_tokens(tokens, now - self._arrival)
        else:
            self._metrics.more_tokens(tokens, now - self._last_token)
        self._last_token = now
