"""Reading requests to their end, those too that would rather go on in another protocol."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import httptools

__all__ = ["Headers", "RequestParser"]

Headers = Sequence[tuple[bytes, bytes]]

_FRAMING = frozenset({b"content-length", b"transfer-encoding"})


class RequestParser:
    """Uvicorn's parser of requests, to which the header ``Upgrade`` is a header like any other.

    httptools ends a request that has one at its head, so its body would be read as the next request: who
    gets a gateway to pass one on could speak in the name of whoever shares its connection, and clients that
    offer HTTP/2 in passing, as Java's own does, would seem to send nothing. Here the body is read as if a
    second head with the same framing stood before it, which nobody is told of.

    Args:
        parser: uvicorn's own; its protocol must not listen to it while `is_silent`.
        headers: those of the request that is being read, in lower case.

    Attributes:
        is_silent: what the parser tells now is of no request.
        has_more: a body follows the head that is being read, whatever the parser says.
    """

    def __init__(self, parser: httptools.HttpRequestParser, headers: Callable[[], Headers]) -> None:
        self._parser = parser
        self._headers = headers
        self.is_silent = False

    @property
    def has_more(self) -> bool:
        """Whether the body of the request that is being read comes behind an end that is none."""
        return not self.is_silent and bool(self._parser.should_upgrade() and self._framing())

    def feed_data(self, data: bytes) -> None:
        """Read on.

        Raises:
            HttpParserError: what came is no HTTP.
        """
        while data:
            try:
                self._parser.feed_data(data)
            except httptools.HttpParserUpgrade as end_of_head:
                data = data[end_of_head.args[0] :]
                self._begin_body()
            else:
                return

    def get_http_version(self) -> str:
        """As "1.1"."""
        return self._parser.get_http_version()

    def get_method(self) -> bytes:
        """As b"GET"."""
        return self._parser.get_method()

    def should_keep_alive(self) -> bool:
        """Whether more requests may come."""
        return self._parser.should_keep_alive()

    def should_upgrade(self) -> bool:
        """Never: no other protocol is spoken here."""
        return False

    def _begin_body(self) -> None:
        framing = self._framing()
        if not framing:
            return
        self.is_silent = True
        try:
            lines = b"".join(name + b": " + value + b"\r\n" for name, value in framing)
            self._parser.feed_data(b"POST / HTTP/1.1\r\n" + lines + b"\r\n")
        finally:
            self.is_silent = False

    def _framing(self) -> Headers:
        return [(name, value) for name, value in self._headers() if name in _FRAMING]
