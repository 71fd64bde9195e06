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
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from milepost.server.access.request_parser import RequestParser
from milepost.server.config import ServerConfig
from milepost.server.protocol.error_codes import ErrorCode
from milepost.server.protocol.errors import HttpError

__all__ = ["GuardedConnection", "guarded"]

logger = logging.getLogger(__name__)

MAX_HEAD_BYTES = 64 * 1024
HEAD_SECONDS = 30.0
GOODBYE_SECONDS = 2.0
RETRY_SECONDS = 5

# Beyond `max_connections`, for those who look whether the server lives: a full server is none to restart.
_PROBE_CONNECTIONS = 8
_PROBE_PATHS = frozenset({b"/health", b"/ready"})

# The kernel would take megabytes off our hands for a client that reads nothing; past this much unsent it
# says no, and `asyncio` begins to count.
_UNSENT_BYTES = 16 * 1024
_TCP_NOTSENT_LOWAT = getattr(socket, "TCP_NOTSENT_LOWAT", 25)  # Linux's number, which Python doesn't name

_PHRASES = {
    400: "Bad Request",
    408: "Request Timeout",
    431: "Request Header Fields Too Large",
    503: "Service Unavailable",
}


class GuardedConnection(HttpToolsProtocol):
    """One client's connection, within the limits of `options`."""

    options = ServerConfig()
    on_refusal: Callable[[int, str], None] | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - uvicorn's own
        super().__init__(*args, **kwargs)
        self._parser = RequestParser(self.parser, lambda: self.headers)
        self.parser = self._parser  # type: ignore[assignment] # has all that is asked of it
        self._idle_since: float | None = None
        self._head_bytes = 0
        self._unreported_bytes = 0
        self._stuck: tuple[int, float] | None = None
        self._has_asked = False
        self._earlier: list[RequestResponseCycle] = []  # of requests whose successors came early
        self._closing_since: float | None = None
        self._has_no_place = False
        self._is_beyond = False  # the limit of connections, when it was made

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a client in, or turn it away."""
        super().connection_made(transport)
        self._idle_since = self.loop.time()
        connection = transport.get_extra_info("socket")
        if connection is not None and connection.family in (socket.AF_INET, socket.AF_INET6):
            connection.setsockopt(socket.IPPROTO_TCP, _TCP_NOTSENT_LOWAT, _UNSENT_BYTES)
        self._is_beyond = len(self.connections) > self.options.max_connections
        if len(self.connections) > self.options.max_connections + _PROBE_CONNECTIONS:
            self._refuse_connection()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone: tell all of its requests, not only the one that came last."""
        for cycle in self._earlier:
            cycle.disconnected = True
            cycle.message_event.set()
        self._earlier.clear()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read on, but nothing without end."""
        if self.transport.is_closing():
            return
        self._unreported_bytes += len(data)
        super().data_received(data)
        if self._unreported_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self._refuse_head()

    def on_message_begin(self) -> None:
        """The first byte of a request."""
        if self._parser.is_silent:
            return
        self._head_bytes = self._unreported_bytes = 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        """A part of the request's target."""
        if self._parser.is_silent:
            return
        self._count(url)
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header, or a trailer behind the body."""
        if self._parser.is_silent:
            return
        self._count(name + value)
        super().on_header(name, value)

    def on_body(self, body: bytes) -> None:
        """A part of the body."""
        self._unreported_bytes = 0
        super().on_body(body)

    def on_headers_complete(self) -> None:
        """A request begins."""
        if self._parser.is_silent:
            return
        if self._is_full and self.url not in _PROBE_PATHS:
            self._has_no_place = True
            raise _RefusedError  # which the parser makes its own, and `send_400_response` answers
        self._idle_since = None
        self._unreported_bytes = 0
        if self._has_asked and not self.cycle.response_complete:
            self._earlier.append(self.cycle)
        super().on_headers_complete()
        self._has_asked = True

    def on_message_complete(self) -> None:
        """A request has come to its end."""
        if not self._parser.has_more:
            super().on_message_complete()

    def on_response_complete(self) -> None:
        """A request has ended; another may come."""
        self._head_bytes = 0
        if not self.pipeline:
            self._earlier.clear()
            self._idle_since = self.loop.time()
        super().on_response_complete()

    def shutdown(self) -> None:
        """The server stops: hang up when what is under way has ended."""
        super().shutdown()
        if self._has_asked and self.cycle.more_body and not self.cycle.response_started:
            self.transport.close()  # it would be refused when the rest of it came
        if self.transport.is_closing():
            # A client need not answer the end of TLS, and the loop would wait half a minute for it.
            self.loop.call_later(GOODBYE_SECONDS, self._end_closing)

    def sweep(self, now: float) -> bool:
        """End the connection if its client has kept it too long; `now` is the loop's time.

        Returns:
            whether it was cut off for taking nothing of a reply.
        """
        if self._is_stuck(now):
            return True
        self._end_if_idle(now)
        return False

    def _end_if_idle(self, now: float) -> None:
        if self.transport.is_closing():
            self._closing_since = self._closing_since or now
            if now - self._closing_since > self.options.stalled_reader_timeout:
                self._end_closing()
            return
        if self._idle_since is not None and now - self._idle_since > HEAD_SECONDS:
            if self._head_bytes or self._unreported_bytes:
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

    def _count(self, part: bytes) -> None:
        # The parser keeps what it has not told yet, and we keep what it has: both have an end.
        self._unreported_bytes = 0
        self._head_bytes += len(part)
        if self._head_bytes > MAX_HEAD_BYTES:
            raise _RefusedError  # likewise

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP, or was refused while its head was read."""
        if self._has_no_place:
            self._refuse_connection()
        elif self._head_bytes > MAX_HEAD_BYTES:
            self._refuse_head()
        else:
            self._turn_away(400, msg, ErrorCode.INVALID_HTTP)

    @property
    def _is_full(self) -> bool:
        """Whether the connection has no place but those of probes."""
        return self._is_beyond and len(self.connections) > self.options.max_connections

    def _refuse_connection(self) -> None:
        self._turn_away(
            503,
            f"All {self.options.max_connections} connections are taken.",
            ErrorCode.TOO_MANY_CONNECTIONS,
        )

    def _refuse_head(self) -> None:
        self._turn_away(
            431, f"Headers must have at most {MAX_HEAD_BYTES} bytes.", ErrorCode.HEADERS_TOO_LARGE
        )

    def _turn_away(self, status: int, message: str, code: ErrorCode) -> None:
        """Answer without a request, and hang up; in the middle of a reply hang up only."""
        if self._has_asked and self.cycle.response_started and not self.cycle.response_complete:
            self._reset()
            return
        if self.on_refusal is not None:
            self.on_refusal(status, code)
        body = HttpError(status, message, code=code).body
        again = f"Retry-After: {RETRY_SECONDS}\r\n" if status == 503 else ""
        head = (
            f"HTTP/1.1 {status} {_PHRASES[status]}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n{again}Connection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()


class _RefusedError(Exception):
    """A head that is not read to its end: too large, or of a client that has no place."""


def guarded(config: ServerConfig, on_refusal: Callable[[int, str], None]) -> type[GuardedConnection]:
    """The class of connections within the limits of `config`, as uvicorn takes it.

    `on_refusal` is told the status and the code of each answer that no request of the app's has.
    """
    told = {"options": config, "on_refusal": staticmethod(on_refusal)}
    return type("GuardedConnection", (GuardedConnection,), told)
