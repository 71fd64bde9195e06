"""Server-sent events, and giving up work whose client is gone."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Coroutine, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from milepost.errors import MilepostError
from milepost.server.front import Run
from milepost.server.protocol.errors import to_http_error
from milepost.types import RequestOutput

__all__ = ["DONE", "ClientDisconnectedError", "EventStream", "event", "merge", "unless_disconnected"]

logger = logging.getLogger(__name__)

T = TypeVar("T")

DONE = b"data: [DONE]\n\n"
_encode = msgspec.json.Encoder().encode


class ClientDisconnectedError(Exception):
    """Nobody waits for the reply any more."""


def event(body: msgspec.Struct) -> bytes:
    """One server-sent event with a JSON body."""
    return b"data: " + _encode(body) + b"\n\n"


class EventStream(StreamingResponse):
    """A reply of server-sent events; when it ends, however it ends, its runs are closed at once.

    Args:
        events: the events; a failure under way becomes one last event with an error body.
        runs: the requests behind them.
    """

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[bytes], runs: Sequence[Run]) -> None:
        # A proxy that buffers would turn the stream into one late lump.
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        super().__init__(_to_the_end(events), headers=headers)
        self._runs = runs

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events until they end or the client disconnects."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            # Not left to the garbage collector: closing is what frees the pages.
            for run in self._runs:
                run.close()


async def _to_the_end(events: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    try:
        async for item in events:
            yield item
    except Exception as error:
        if not isinstance(error, MilepostError):
            logger.exception("A stream failed under way")
        yield b"data: " + to_http_error(error).body + b"\n\n"
    yield DONE


async def unless_disconnected(http: HttpRequest, work: Coroutine[Any, Any, T], runs: Sequence[Run]) -> T:
    """Await `work`, but cancel it when the client goes away first; the runs are closed in any case.

    The request's body must have been read: what arrives after it can only be the disconnect.

    Raises:
        ClientDisconnectedError: the client went away; `work` was cancelled and has ended.
    """
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_wait_for_disconnect(http.receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnectedError
        return task.result()
    finally:
        for run in runs:
            run.close()
        await _cancel(task, gone)


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def merge(runs: Sequence[Run]) -> AsyncGenerator[tuple[int, RequestOutput]]:
    """Outputs of several runs as they come, each with the index of its run; the first failure ends all."""
    # Bounded: what a slow client does not take stays with the runs, where it merges.
    items: asyncio.Queue[tuple[int, RequestOutput] | Exception | None] = asyncio.Queue(len(runs))

    async def pump(index: int, run: Run) -> None:
        try:
            async for output in run:
                await items.put((index, output))
        except Exception as error:  # noqa: BLE001 - handed on, and raised by the reader below
            await items.put(error)
        else:
            await items.put(None)

    pumps = [asyncio.ensure_future(pump(index, run)) for index, run in enumerate(runs)]
    running = len(pumps)
    try:
        while running:
            item = await items.get()
            if item is None:
                running -= 1
            elif isinstance(item, Exception):
                raise item
            else:
                yield item
    finally:
        await _cancel(*pumps)


async def _cancel(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    for task in tasks:
        with suppress(asyncio.CancelledError, Exception):
            await task
