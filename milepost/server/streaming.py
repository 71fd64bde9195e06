"""Server-sent events, and giving up work whose client is gone."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Coroutine, Sequence
from contextlib import aclosing, suppress
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from milepost.errors import MilepostError
from milepost.server.errors import to_http_error

__all__ = [
    "DONE",
    "ClientDisconnectedError",
    "EventStream",
    "event",
    "merge",
    "started",
    "stream_events",
    "unless_disconnected",
]

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
    """A reply of server-sent events; when it ends, however it ends, its source is closed at once."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[bytes]) -> None:
        # A proxy that buffers would turn the stream into one late lump.
        super().__init__(events, headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events until they end or the client disconnects."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            # Not left to the garbage collector: closing is what aborts the request and frees its pages.
            await self._events.aclose()


async def unless_disconnected(request: HttpRequest, work: Coroutine[Any, Any, T]) -> T:
    """Await `work`, but cancel it when the client goes away first.

    The request's body must have been read: what arrives after it can only be the disconnect.

    Raises:
        ClientDisconnectedError: the client went away; `work` was cancelled and has ended.
    """
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_wait_for_disconnect(request.receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnectedError
        return task.result()
    finally:
        for each in (task, gone):
            each.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await each


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def merge(sources: Sequence[AsyncGenerator[T]]) -> AsyncGenerator[tuple[int, T]]:
    """Items of several sources as they come, each with the index of its source.

    The first source that fails ends them all. Closing the merged iterator closes the sources.
    """
    items: asyncio.Queue[tuple[int, T] | BaseException | None] = asyncio.Queue()

    async def pump(index: int, source: AsyncGenerator[T]) -> None:
        try:
            async with aclosing(source):
                async for item in source:
                    items.put_nowait((index, item))
        except Exception as error:  # noqa: BLE001 - handed on and raised by the reader below
            items.put_nowait(error)
        else:
            items.put_nowait(None)

    pumps = [asyncio.ensure_future(pump(i, source)) for i, source in enumerate(sources)]
    try:
        running = len(pumps)
        while running:
            item = await items.get()
            if item is None:
                running -= 1
            elif isinstance(item, BaseException):
                raise item
            else:
                yield item
    finally:
        for each in pumps:
            each.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)


async def started(source: AsyncGenerator[T]) -> AsyncGenerator[T]:
    """Wait for a source's first item, so that what it refuses is still an HTTP status and not an event.

    Returns:
        A generator of all items, the first included. Closing it closes the source.
    """
    try:
        first = await anext(source)
    except BaseException:
        await source.aclose()
        raise
    return _from_first(first, source)


async def _from_first(first: T, source: AsyncGenerator[T]) -> AsyncGenerator[T]:
    try:
        yield first
        async for item in source:
            yield item
    finally:
        await source.aclose()


async def stream_events(events: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    """A stream's events and its end; a failure under way is one last event with an error body."""
    try:
        async for item in events:
            yield item
    except Exception as error:
        if not isinstance(error, MilepostError):
            logger.exception("A stream failed under way.")
        yield b"data: " + to_http_error(error).body + b"\n\n"
    finally:
        await events.aclose()
    yield DONE
