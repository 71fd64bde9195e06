"""The one door that every request passes through: admission, metrics, and exactly one end."""

from __future__ import annotations

from typing import Self

from milepost.engine.output_stream import OutputStream
from milepost.errors import EngineStoppedError, ExecutionError
from milepost.server.services import Services
from milepost.server.telemetry.metrics import Metrics
from milepost.types import FinishReason, Request, RequestOutput

__all__ = ["Front", "Run"]


class Front:
    """The server's side of the engine.

    Args:
        services: what to serve with.

    Attributes:
        services: the same.
        metrics: the services' metrics.
        draining: no new request is accepted any more.
    """

    def __init__(self, services: Services) -> None:
        self.services = services
        self.metrics = services.metrics
        self.metrics.watch(services.engine.stats)
        self.draining = False
        self._running: set[Run] = set()

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

    def submit(self, request: Request, endpoint: str) -> Run:
        """Start a request; the caller must iterate over it to the end or close it.

        Raises:
            RequestError: it can't be served.
            EngineStoppedError: the engine takes no more requests.
        """
        run = Run(self.services.engine.submit(request), endpoint, self.metrics, self._running)
        self._running.add(run)
        return run

    def abort_all(self) -> None:
        """End what runs; each client is told that the server stopped."""
        for run in self._running:
            self.services.engine.abort(run.request_id)


class Run:
    """One running request: an iterator over its outputs, the last of which has a finish reason.

    Iterating raises `ExecutionError` when the request fails and `EngineStoppedError` when the engine
    stops under it. `close`, at any time, aborts what has not ended, without waiting.
    """

    def __init__(self, stream: OutputStream, endpoint: str, metrics: Metrics, running: set[Run]) -> None:
        self.request_id = stream.request_id
        self._stream = stream
        self._endpoint = endpoint
        self._metrics = metrics
        self._running = running

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> RequestOutput:
        output = await anext(self._stream)
        if output.finish_reason is not None:
            self._end(output.finish_reason)
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

    def _end(self, reason: FinishReason) -> None:
        if self in self._running:
            self._running.remove(self)
            self._metrics.request_ended(self._endpoint, reason)
