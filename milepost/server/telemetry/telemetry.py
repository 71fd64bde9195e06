"""All that a server tells, put together."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress

from milepost.engine.reports import EngineStats
from milepost.server.config import ServerConfig
from milepost.server.telemetry.calls import Call, Calls
from milepost.server.telemetry.history import History
from milepost.server.telemetry.logs import log_call
from milepost.server.telemetry.metrics import Metrics
from milepost.server.telemetry.tracing import Tracing

__all__ = ["SAMPLE_SECONDS", "Telemetry"]

SAMPLE_SECONDS = 1.0


class Telemetry:
    """The metrics, the log and the traces of one server, and its last quarter of an hour.

    Args:
        config: what of it is told, and under which names.
        metrics: told of what happens by whoever does it.
        engine_stats: takes a snapshot of the engine.
        model_name: as served.
        tracing: where traces go, None for nowhere.

    Attributes:
        calls: the HTTP requests that are under way.
        history: what the page shows.
    """

    def __init__(
        self,
        config: ServerConfig,
        metrics: Metrics,
        engine_stats: Callable[[], EngineStats],
        *,
        model_name: str,
        tracing: Tracing | None,
    ) -> None:
        metrics.watch(engine_stats, prefix=config.metrics_prefix, model_name=model_name)
        self.calls = Calls(metrics, self._end, keep_texts=config.log_prompts)
        self.history = History(metrics, engine_stats)
        self._tracing = tracing
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
