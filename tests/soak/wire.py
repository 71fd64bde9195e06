"""A small HTTP/1.1 client over asyncio's streams: strict in what it reads, free to break off anywhere."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

__all__ = ["Connection", "Head", "ProtocolError", "head_of"]

MAX_LINE = 1 << 20


class ProtocolError(Exception):
    """The server sent what HTTP does not allow, or less than it promised."""


@dataclass
class Head:
    """Status and headers of a reply, names in lower case."""

    status: int
    headers: dict[str, str] = field(default_factory=dict)


def head_of(path: str, headers: dict[str, str]) -> bytes:
    """The bytes of a POST before its body."""
    lines = [
        f"POST {path} HTTP/1.1",
        "Host: 127.0.0.1",
        *(f"{name}: {value}" for name, value in headers.items()),
    ]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1", errors="replace")


class Connection:
    """One connection, for one exchange."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, url: str) -> Connection:
        """Connect to the server at `url`."""
        parts = urlsplit(url)
        return cls(*await asyncio.open_connection(parts.hostname, parts.port, limit=MAX_LINE))

    async def send(self, data: bytes) -> None:
        """Send bytes as they are."""
        self._writer.write(data)
        await self._writer.drain()

    async def post(self, path: str, body: Any) -> None:
        """Send a whole request with a JSON body."""
        data = json.dumps(body).encode()
        headers = {
            "Content-Type": "application/json",
            "Content-Length": str(len(data)),
            "Connection": "close",
        }
        await self.send(head_of(path, headers) + data)

    def leave(self, *, rudely: bool) -> None:
        """Go away; rudely is with a reset, so that the server's next write fails at once."""
        if rudely:
            self._writer.transport.abort()
        else:
            self._writer.close()

    def end(self) -> None:
        """Say that nothing more will be sent; the server may still answer."""
        if self._writer.can_write_eof():
            self._writer.write_eof()

    async def head(self) -> Head:
        """Read status and headers.

        Raises:
            ProtocolError: there are none.
        """
        head = await self.head_or_none()
        if head is None:
            raise ProtocolError("the connection ended without a reply")
        return head

    async def head_or_none(self) -> Head | None:
        """Read status and headers; None when the server has closed the connection instead.

        Raises:
            ProtocolError: what came is neither.
        """
        line = await self._reader.readline()
        if not line:
            return None
        version, _, rest = line.decode("latin-1").partition(" ")
        if not version.startswith("HTTP/1.") or not rest[:3].isdigit():
            raise ProtocolError(f"no status line: {line!r}")
        head = Head(int(rest[:3]))
        while header := await self._line():
            name, _, value = header.partition(":")
            head.headers[name.lower()] = value.strip()
        return head

    async def pieces(self, head: Head) -> AsyncIterator[bytes]:
        """The body as it comes.

        Raises:
            ProtocolError: it ended before its end.
        """
        if head.headers.get("transfer-encoding") != "chunked":
            yield await self._exactly(int(head.headers.get("content-length", "0")))
            return
        while size := int(await self._line(), 16):
            yield await self._exactly(size)
            await self._line()
        await self._line()

    async def whole(self, head: Head) -> bytes:
        """The whole body."""
        return b"".join([piece async for piece in self.pieces(head)])

    async def events(self, head: Head) -> AsyncIterator[str]:
        """The data of server-sent events, `[DONE]` included.

        Raises:
            ProtocolError: the body ended in the middle of an event, or holds something else.
        """
        rest = b""
        async for piece in self.pieces(head):
            *whole, rest = (rest + piece).split(b"\n\n")
            for item in whole:
                if item.startswith(b":"):
                    continue
                if not item.startswith(b"data: "):
                    raise ProtocolError(f"no event: {item[:80]!r}")
                yield item.removeprefix(b"data: ").decode()
        if rest:
            raise ProtocolError(f"half an event at the end: {rest[:80]!r}")

    async def _line(self) -> str:
        line = await self._reader.readline()
        if not line.endswith(b"\n"):
            raise ProtocolError("the connection ended in the middle of a reply")
        return line.decode("latin-1").rstrip("\r\n")

    async def _exactly(self, size: int) -> bytes:
        try:
            return await self._reader.readexactly(size)
        except asyncio.IncompleteReadError as error:
            raise ProtocolError(f"a body of {size} bytes ended after {len(error.partial)}") from error
