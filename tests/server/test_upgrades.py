"""Requests that would rather speak another protocol: they are answered in this one, and whole."""

from __future__ import annotations

import json
import re
import socket
import time
from contextlib import closing

import pytest

from tests.server.scripted_server import MODEL, ServedEngine

BODY = json.dumps({"model": MODEL, "prompt": "a", "max_tokens": 3}).encode()
# What Java's own client sends with its first request, whatever the method.
H2C = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAAAAIAAAAB\r\n"
WEBSOCKET = b"Connection: Upgrade\r\nUpgrade: websocket\r\n"
PING = b"GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n"


def post(framing: bytes, extra: bytes) -> bytes:
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return head + extra + framing + b"\r\n"


SIZED = b"Content-Length: %d\r\n" % len(BODY)
CHUNKS = b"%x\r\n" % len(BODY) + BODY + b"\r\n0\r\n\r\n"


def statuses(served: ServedEngine, *pieces: bytes) -> list[bytes]:
    """Of the replies to what is sent, the last of which closes the connection."""
    *first, last = pieces
    address = ("127.0.0.1", int(served.url.rpartition(":")[2]))
    with closing(socket.create_connection(address, timeout=10)) as connection:
        for piece in first:
            connection.sendall(piece)
            time.sleep(0.1)
        connection.sendall(last + PING.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
        received = bytearray()
        while chunk := connection.recv(65536):
            received += chunk
    return re.findall(rb"HTTP/1\.1 (\d+)", received)


@pytest.mark.parametrize("upgrade", [H2C, WEBSOCKET])
@pytest.mark.parametrize(("framing", "body"), [(SIZED, BODY), (b"Transfer-Encoding: chunked\r\n", CHUNKS)])
def test_the_body_is_read(shared: ServedEngine, upgrade: bytes, framing: bytes, body: bytes) -> None:
    head = post(framing, upgrade)
    assert statuses(shared, head + body) == [b"200", b"200"]
    assert statuses(shared, head, body) == [b"200", b"200"]
    assert statuses(shared, head + body[:7], body[7:] + head, body) == [b"200", b"200", b"200"]


@pytest.mark.parametrize("upgrade", [H2C, WEBSOCKET])
def test_a_body_is_no_request_of_its_own(shared: ServedEngine, upgrade: bytes) -> None:
    head = post(b"Content-Length: %d\r\n" % len(PING), upgrade)
    assert statuses(shared, head, PING) == [b"400", b"200"]
    assert statuses(shared, head + PING) == [b"400", b"200"]


@pytest.mark.parametrize("upgrade", [H2C, WEBSOCKET])
def test_what_comes_behind_it_is_answered(shared: ServedEngine, upgrade: bytes) -> None:
    asking = PING.replace(b"\r\n\r\n", b"\r\n" + upgrade + b"\r\n")
    assert statuses(shared, asking + asking + PING) == [b"200"] * 4
    assert statuses(shared, asking[:-3], asking[-3:] + PING) == [b"200"] * 3


def test_bodies_of_such_requests_are_counted_too(shared: ServedEngine) -> None:
    too_large = post(b"Content-Length: 99999999999\r\n", H2C)
    with closing(
        socket.create_connection(("127.0.0.1", int(shared.url.rpartition(":")[2])), 10)
    ) as connection:
        connection.sendall(too_large)
        assert connection.recv(65536).startswith(b"HTTP/1.1 413 ")
