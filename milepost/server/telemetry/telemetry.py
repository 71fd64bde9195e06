"""All that a server tells, put together."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress

from milepost.server.services import Services
from milepost.server.telemetry.calls import Call, Calls
from milepost.server.telemetry.history import History
from milepost.server.telemetry.logs import log_call

__all__ = ["Telemetry"]

SAMPLE_SECONDS = 1.0


class Telemetry:
    """The metrics, the log and the traces of one server, and its last quarter of an hour.

    Args:
        services: what the server serves with.

    Attributes:
        metrics: the services'.
        calls: the HTTP requests that are under way.
        history: what the page shows.
    """

    def __init__(self, services: Services) -> None:
        self.metrics = services.metrics
        self.metrics.watch(
            services.engine.stats, prefix=services.config.metrics_prefix, model_name=services.model_name
        )
        self.calls = Calls(self.metrics, self._end, keep_texts=services.config.log_prompts)
        self.history = History(self.metrics, services.engine.stats)
        self._tracing = services.tracing
        self._began = time.monotonic()
        self._sampler: asyncio.Task[None] | None = None

    @property
    def uptime(self) -> float:
        """Seconds since it was built."""
        return time.monotonic() - self._began

    def start(self) -> None:
        """Take a sample each second, on the running event loop."""
        self._sampler = asyncio.get_running_loop().create_task(self._sample())

    async def stop(self) -> None:
        """Take no more, and send the traces that have not been sent."""
        if self._sampler is not None:
            self._sampler.cancel()
            with suppress(asyncio.CancelledError):
                await self._sampler
        if self._tracing is not None:
            await asyncio.to_thread(self._tracing.close)

    async def _sample(self) -> None:
        while True:
            self.history.sample()
            await asyncio.sleep(SAMPLE_SECONDS)

    def _end(self, call: Call) -> None:
        log_call(call)
        if self._tracing is not None:
            self._tracing.trace(call)
