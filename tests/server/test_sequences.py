"""Requests one behind the other on one connection, cut anywhere: each is answered once, and in order."""

from __future__ import annotations

import json
import random
import socket
import time
from contextlib import closing

from tests.server.scripted_server import MODEL, ServedEngine

CONNECTIONS = 80
BODY = {"model": MODEL, "prompt": "ab", "max_tokens": 3}
UPGRADES = (
    b"",
    b"",
    b"Connection: Upgrade\r\nUpgrade: h2c\r\n",
    b"Connection: Upgrade\r\nUpgrade: websocket\r\n",
)


def in_chunks(draw: random.Random, body: bytes) -> bytes:
    data = bytearray()
    while body:
        size = draw.randint(1, 30)
        part, body = body[:size], body[size:]
        data += b"%x\r\n%b\r\n" % (len(part), part)
    return bytes(data) + b"0\r\n" + draw.choice((b"", b"Trailer: 1\r\n")) + b"\r\n"


def request(draw: random.Random, *, last: bool) -> tuple[bytes, bytes]:
    """One request, and the status of its reply."""
    method, path, body, status = draw.choice(
        [
            (b"GET", b"/health", b"", b"200"),
            (b"HEAD", b"/health", b"", b"200"),
            (b"POST", b"/v1/completions", json.dumps(BODY).encode(), b"200"),
            (b"POST", b"/v1/completions", json.dumps(BODY | {"stream": True}).encode(), b"200"),
            (b"POST", b"/v1/completions", b'{"prompt": 1}', b"400"),
            (b"POST", b"/nowhere", b"x" * draw.randrange(300), b"404"),
            (b"POST", b"/health", b"GET /health HTTP/1.1\r\n\r\n", b"405"),
        ]
    )
    head = method + b" " + path + b" HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    head += b"Connection: close\r\n" if last else draw.choice(UPGRADES)
    if draw.random() < 0.2:
        head += b"Expect: 100-continue\r\n"
    if method != b"POST":
        return head + b"\r\n", status
    if draw.random() < 0.5:
        return head + b"Content-Length: %d\r\n\r\n" % len(body) + body, status
    return head + b"Transfer-Encoding: chunked\r\n\r\n" + in_chunks(draw, body), status


def send_cut(draw: random.Random, connection: socket.socket, data: bytes) -> None:
    most = draw.choice((len(data), 40, 600))
    while data:
        size = draw.randint(1, most)
        connection.sendall(data[:size])
        data = data[size:]
        if draw.random() < 0.1:
            time.sleep(0.002)


def test_each_is_answered_once_and_in_order(served: ServedEngine) -> None:
    draw = random.Random(3)
    served.script.tokens = [ord("x")] * 9
    address = ("127.0.0.1", int(served.url.rpartition(":")[2]))
    for _ in range(CONNECTIONS):
        count = draw.randint(1, 7)
        requests = [request(draw, last=index == count - 1) for index in range(count)]
        with closing(socket.create_connection(address, timeout=5)) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            send_cut(draw, connection, b"".join(data for data, _ in requests))
            received = bytearray()
            while chunk := connection.recv(65536):
                received += chunk
        statuses = [part[:3] for part in received.split(b"HTTP/1.1 ")[1:]]
        assert [status for status in statuses if status != b"100"] == [status for _, status in requests]
    served.wait_until_idle()
    assert served.front_is_idle()
