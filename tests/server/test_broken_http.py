"""Bytes that are nearly HTTP: some answer or none, no failure in the log, and every page comes back."""

from __future__ import annotations

import json
import random
import socket
import time

import pytest

from milepost.server import ServerConfig
from tests.server.scripted_server import MODEL, serving

CASES = 250
BODY = json.dumps({"model": MODEL, "prompt": "a", "max_tokens": 3, "stream": True}).encode()
POST = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
WHOLE = (
    b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n",
    POST + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY,
    POST + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n" % len(BODY) + BODY + b"\r\n0\r\nX: y\r\n\r\n",
)
PIECES = (
    b"\r\n",
    b"\0",
    b"%00",
    b"://[",
    b"Upgrade: websocket\r\nConnection: upgrade\r\n",
    b"Content-Length: 5\r\n",
    b"Expect: 100-continue\r\n",
)


def broken(draw: random.Random) -> bytes:
    """One request to three, with up to six changes."""
    data = bytearray(b"".join(draw.choice(WHOLE) for _ in range(draw.randint(1, 3))))
    for _ in range(draw.randint(0, 6)):
        at = draw.randrange(len(data) + 1)
        match draw.randrange(4):
            case 0:
                data[at:at] = draw.randbytes(draw.randint(1, 8))
            case 1:
                del data[at : at + draw.randint(1, 20)]
            case 2:
                data[at : at + 1] = draw.randbytes(1)
            case _:
                data[at:at] = draw.choice(PIECES)
    return bytes(data)


def test_bytes_that_are_nearly_http(caplog: pytest.LogCaptureFixture) -> None:
    draw = random.Random(7)
    statuses = set()
    with serving(ServerConfig(body_timeout=0.5, drain_seconds=5)) as served:
        for _ in range(CASES):
            with socket.create_connection(served.address, timeout=0.03) as connection:
                try:
                    connection.sendall(broken(draw))
                    if draw.random() < 0.7:  # the others leave without a word
                        statuses.add(connection.recv(65536)[9:12])
                except OSError:
                    continue
        deadline = time.monotonic() + 5
        while not served.front_is_idle():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        served.wait_until_idle()
        assert served.call("/health").status == 200
        assert 'status="500"' not in served.call("/metrics").body.decode()
    assert {b"200", b"400"} <= statuses
    assert not {b"500"} & statuses
    assert not [record for record in caplog.records if record.levelname in {"ERROR", "CRITICAL"}]
