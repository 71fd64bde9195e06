"""Bytes of requests around a spoilt body: how it is encoded, cut, framed and announced."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from typing import Any

from tests.soak.wire import head_of

__all__ = ["Wrapped", "wrapped"]

CONTENT_TYPES = [
    *(
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "application/JSON",
    ),
    *("application/json; charset=utf-16", "application/json;;;", "", "*/*", "json", "application/json\t"),
]
HEADERS = [
    *(
        ("Accept", "text/html"),
        ("Authorization", "Bearer x"),
        ("Authorization", "\x80\xff"),
        ("Cookie", "a" * 4000),
    ),
    *(
        ("X-Request-Id", "\t;drop"),
        ("X-Request-Id", "r" * 3000),
        ("traceparent", "00-zz-1"),
        ("Origin", "null"),
    ),
    *(
        ("Content-Encoding", "gzip"),
        ("Accept-Encoding", "br"),
        ("Range", "bytes=9-"),
        ("Expect", "a-miracle"),
    ),
    *(
        ("Connection", "upgrade"),
        ("Upgrade", "websocket"),
        ("Host", "example.org"),
        ("X-Forwarded-For", "::1"),
    ),
]
BYTES = [
    b"\x00",
    b"\xff\xfe",
    b"\xc3\x28",
    b"\xed\xa0\x80",
    b"}",
    b'"',
    b",,",
    b"\\u12",
    b"NaN",
    b"//",
    b"1e9999",
]


@dataclass(frozen=True)
class Wrapped:
    """A request as it goes over the wire.

    Attributes:
        data: all of it.
        whole: whether the server gets all that it was promised, so that it must answer.
        framed: whether its framing is HTTP; with any other the server may end the connection instead.
    """

    data: bytes
    whole: bool = True
    framed: bool = True


def _encoded(body: Any, draw: random.Random) -> bytes:
    if draw.random() < 0.01:
        return draw.choice([b"[", b'{"a":', b'{"messages":[']) * draw.choice([500, 5000, 200_000])
    data = json.dumps(body, ensure_ascii=draw.random() < 0.7).encode("utf-8", errors="surrogatepass")
    kind = draw.random()
    if kind < 0.05:
        return data[: draw.randrange(len(data) + 1)]
    if kind < 0.1:
        at = draw.randrange(len(data) + 1)
        return data[:at] + draw.choice(BYTES) + data[at + draw.randrange(3) :]
    if kind < 0.12:
        return bytes(draw.randrange(256) for _ in range(draw.randrange(200)))
    if kind < 0.14:
        return data + draw.choice([b" ", b"\n\n", data, b"{}", b"\x00"])
    if kind < 0.15:
        return data.decode("utf-8", errors="replace").encode("utf-16")
    return data


def _chunked(data: bytes, draw: random.Random) -> tuple[bytes, bool]:
    """In chunks, now and then of wrong lengths."""
    parts, rest = b"", data
    while rest:
        size = draw.randrange(1, len(rest) + 1)
        parts += b"%x\r\n%s\r\n" % (size, rest[:size])
        rest = rest[size:]
    good = draw.random() < 0.7
    return (
        (parts + b"0\r\n\r\n", True)
        if good
        else (parts + draw.choice([b"zz\r\n", b"-1\r\n\r\n", b"fffffffffffffffffff\r\n"]), False)
    )


def wrapped(path: str, body: Any, draw: random.Random) -> Wrapped:
    """A request of `body`, most of them in good form."""
    data = _encoded(body, draw)
    headers = {"Content-Type": "application/json", "Connection": "close"}
    if draw.random() < 0.08:
        headers["Content-Type"] = draw.choice(CONTENT_TYPES)
    if draw.random() < 0.1:
        headers |= dict([draw.choice(HEADERS)])
    kind = draw.random()
    if kind < 0.05:
        chunks, framed = _chunked(data, draw)
        return Wrapped(head_of(path, {**headers, "Transfer-Encoding": "chunked"}) + chunks, framed, framed)
    if kind < 0.07:
        length = draw.choice(["-1", "abc", "1, 2", "99999999999999999999", "+5", "0x10", ""])
        return Wrapped(head_of(path, {**headers, "Content-Length": length}) + data, False, False)
    if kind < 0.1:
        length = str(len(data) + draw.choice([1, 100, 1 << 34]))
        return Wrapped(head_of(path, {**headers, "Content-Length": length}) + data, False)
    if kind < 0.11:
        return Wrapped(bytes(draw.randrange(256) for _ in range(300)) + b"\r\n\r\n", False, False)
    return Wrapped(head_of(path, {**headers, "Content-Length": str(len(data))}) + data)
