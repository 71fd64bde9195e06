"""Connections: how many, and how long one may say nothing or take nothing.

Uvicorn's own protocol waits for ever for the head of a request and for a client that does not read, and
holds a head of any length. The limits here are kept by `GuardedConnection.sweep`, which the server calls
about once a second on each connection, so that a request needs no timers of its own.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from milepost.server.config import ServerConfig
from milepost.server.protocol.error_codes import ErrorCode
from milepost.server.protocol.errors import HttpError

__all__ = ["GuardedConnection", "guarded"]

logger = logging.getLogger(__name__)

MAX_HEAD_BYTES = 64 * 1024
HEAD_SECONDS = 30.0
GOODBYE_SECONDS = 2.0
RETRY_SECONDS = 5

# The kernel would take megabytes off our hands for a client that reads nothing; past this much unsent it
# says no, and `asyncio` begins to count.
_UNSENT_BYTES = 16 * 1024
_TCP_NOTSENT_LOWAT = getattr(socket, "TCP_NOTSENT_LOWAT", 25)  # Linux's number, which Python doesn't name

_PHRASES = {408: "Request Timeout", 431: "Request Header Fields Too Large", 503: "Service Unavailable"}


class GuardedConnection(HttpToolsProtocol):
    """One client's connection, within the limits of `options`."""

    options = ServerConfig()

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - uvicorn's own
        super().__init__(*args, **kwargs)
        self._idle_since: float | None = None
        self._head_bytes = 0
        self._stuck: tuple[int, float] | None = None
        self._has_asked = False
        self._closing_since: float | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a client in, or turn it away."""
        super().connection_made(transport)
        self._idle_since = self.loop.time()
        connection = transport.get_extra_info("socket")
        if connection is not None and connection.family in (socket.AF_INET, socket.AF_INET6):
            connection.setsockopt(socket.IPPROTO_TCP, _TCP_NOTSENT_LOWAT, _UNSENT_BYTES)
        if len(self.connections) > self.options.max_connections:
            self._turn_away(
                503,
                f"All {self.options.max_connections} connections are taken.",
                ErrorCode.TOO_MANY_CONNECTIONS,
            )

    def data_received(self, data: bytes) -> None:
        """Read on, but no head without end."""
        if self.transport.is_closing():
            return
        super().data_received(data)
        if self._idle_since is None:
            self._head_bytes = 0
            return
        self._head_bytes += len(data)
        if self._head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self._turn_away(
                431, f"Headers must have at most {MAX_HEAD_BYTES} bytes.", ErrorCode.HEADERS_TOO_LARGE
            )

    def on_headers_complete(self) -> None:
        """A request begins."""
        self._idle_since = None
        self._head_bytes = 0
        self._has_asked = True
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        """A request has ended; another may come."""
        if not self.pipeline:
            self._idle_since = self.loop.time()
        super().on_response_complete()

    def shutdown(self) -> None:
        """The server stops: hang up when what is under way has ended."""
        super().shutdown()
        if self.transport.is_closing():
            # A client need not answer the end of TLS, and the loop would wait half a minute for it.
            self.loop.call_later(GOODBYE_SECONDS, self._end_closing)

    def sweep(self, now: float) -> None:
        """End the connection if its client has kept it too long; `now` is the loop's time."""
        if self._is_stuck(now):
            return
        if self.transport.is_closing():
            self._closing_since = self._closing_since or now
            if now - self._closing_since > self.options.stalled_reader_timeout:
                self._end_closing()
            return
        if self._idle_since is not None and now - self._idle_since > HEAD_SECONDS:
            if self._head_bytes:
                message = f"The head of a request must come within {HEAD_SECONDS:g} s."
                self._turn_away(408, message, ErrorCode.HEAD_TIMEOUT)
            else:
                self.transport.close()

    def _is_stuck(self, now: float) -> bool:
        """Whether the client takes nothing of what waits for it; then it is cut off."""
        waiting = self.transport.get_write_buffer_size()
        # While more is being written, what waits tells nothing of what was taken.
        is_writing = self._has_asked and not self.cycle.response_complete
        if waiting == 0 or (is_writing and not self.flow.write_paused):
            self._stuck = None
            return False
        if self._stuck is None or waiting < self._stuck[0]:
            self._stuck = (waiting, now)
        elif now - self._stuck[1] > self.options.stalled_reader_timeout:
            logger.info("A client took nothing for %g s and was cut off", now - self._stuck[1])
            self._reset()
            return True
        return False

    def _end_closing(self) -> None:
        if self.transport.get_write_buffer_size() == 0:
            self.transport.abort()

    def _reset(self) -> None:
        """Hang up, and let the kernel drop what the client did not take."""
        connection = self.transport.get_extra_info("socket")
        if connection is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()

    def _turn_away(self, status: int, message: str, code: ErrorCode) -> None:
        """Answer without a request, and hang up."""
        body = HttpError(status, message, code=code).body
        head = (
            f"HTTP/1.1 {status} {_PHRASES[status]}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\nRetry-After: {RETRY_SECONDS}\r\nConnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()


def guarded(config: ServerConfig) -> type[GuardedConnection]:
    """The class of connections within the limits of `config`, as uvicorn takes it."""
    return type("GuardedConnection", (GuardedConnection,), {"options": config})
