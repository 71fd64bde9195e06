"""What comes over a connection: how many of them, in how many bytes, and how slowly."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

import pytest

from milepost.server import ServerConfig
from milepost.server.access import connections
from tests.server.scripted_server import MODEL, ServedEngine, read_samples, run_for_long, serving

CHAT = "/v1/chat/completions"


@contextmanager
def connected(served: ServedEngine) -> Iterator[socket.socket]:
    with socket.create_connection(served.address, timeout=10) as connection:
        yield connection


def everything(connection: socket.socket) -> bytes:
    """What comes until the server hangs up."""
    received = bytearray()
    while chunk := connection.recv(65536):
        received += chunk
    return bytes(received)


@pytest.fixture(scope="module")
def small() -> Iterator[ServedEngine]:
    """A server of small bodies and little patience."""
    with serving(ServerConfig(max_body="64KiB", body_timeout=0.3)) as served:
        yield served


def head(**headers: str) -> bytes:
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    return (
        f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n{lines}\r\n".encode()
    )


def test_a_length_over_the_limit_is_refused_before_the_body_comes(small: ServedEngine) -> None:
    with connected(small) as connection:
        connection.sendall(head(Content_Length="65537"))
        began = time.monotonic()
        reply = connection.recv(65536)
        assert time.monotonic() - began < 1
    assert reply.startswith(b"HTTP/1.1 413 ")
    assert b"body_too_large" in reply


def test_a_client_that_goes_on_sending_still_reads_why_it_was_refused(small: ServedEngine) -> None:
    body = b" " * (8 << 20)
    reply = small.call(CHAT, body)
    assert (reply.status, reply.error["code"]) == (413, "body_too_large")
    assert "65536 bytes" in str(reply.error["message"])


@pytest.mark.parametrize(
    ("path", "content_type", "status"),
    [("/nowhere", "application/json", 404), ("/health", "application/json", 405), (CHAT, "text/plain", 415)],
)
@pytest.mark.parametrize("head", ["HTTP/1.1\r\nConnection: close", "HTTP/1.0"])
def test_a_client_that_wants_one_reply_reads_it_though_its_body_is_on_its_way(
    served: ServedEngine, path: str, content_type: str, status: int, head: str
) -> None:
    """What was refused by its head: hanging up at once would take the reply from who still sends."""
    size = 1_500_000
    with connected(served) as connection:
        connection.sendall(
            f"POST {path} {head}\r\nHost: localhost\r\nContent-Type: {content_type}\r\n"
            f"Content-Length: {size}\r\n\r\n".encode()
        )
        time.sleep(0.1)
        for _ in range(10):
            connection.sendall(b" " * (size // 10))
            time.sleep(0.01)
        assert everything(connection).startswith(f"HTTP/1.1 {status} ".encode())


def test_a_client_that_wants_one_reply_and_sends_no_body_does_not_wait(served: ServedEngine) -> None:
    for asked in (b"GET /nowhere", b"POST /nowhere"):
        with connected(served) as connection:
            began = time.monotonic()
            connection.sendall(asked + b" HTTP/1.0\r\nHost: localhost\r\n\r\n")
            assert everything(connection).startswith(b"HTTP/1.1 404 ")
            assert time.monotonic() - began < 1


def test_chunks_are_counted(small: ServedEngine) -> None:
    with connected(small) as connection:
        connection.sendall(head(Transfer_Encoding="chunked"))
        for _ in range(40):
            connection.sendall(b"1000\r\n" + b" " * 4096 + b"\r\n")
        connection.sendall(b"0\r\n\r\n")
        reply = everything(connection)
    assert reply.startswith(b"HTTP/1.1 413 ")


@pytest.mark.parametrize("length", ["9" * 400, "-1", "0x10", "1e9"])
def test_lengths_that_are_none(small: ServedEngine, length: str) -> None:
    with connected(small) as connection:
        connection.sendall(head(Content_Length=length))
        assert everything(connection).startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 413 "))


def test_a_body_that_does_not_come_times_out(small: ServedEngine) -> None:
    with connected(small) as connection:
        connection.sendall(head(Content_Length="1000"))
        began = time.monotonic()
        reply = bytearray()
        connection.settimeout(0.05)
        while b"}}" not in reply:
            assert time.monotonic() - began < 2
            try:
                reply += connection.recv(65536)
            except TimeoutError:
                connection.sendall(b" ")
    assert reply.startswith(b"HTTP/1.1 408 ")
    assert json.loads(reply.partition(b"\r\n\r\n")[2])["error"]["code"] == "body_timeout"


def test_a_body_that_comes_in_time_may_take_as_long_as_its_size_needs(small: ServedEngine) -> None:
    body = json.dumps({"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}).encode()
    body += b" " * (40_000 - len(body))
    with connected(small) as connection:
        connection.sendall(head(Content_Length=str(len(body)), Connection="close"))
        for at in range(0, len(body), 2_000):  # 40 kB/s for a second
            connection.sendall(body[at : at + 2_000])
            time.sleep(0.05)
        assert everything(connection).startswith(b"HTTP/1.1 200 ")


ENDLESS = {
    "headers": (b"GET /health HTTP/1.1\r\nHost: localhost\r\n", b"X: " + b"y" * 1000 + b"\r\n"),
    "one header": (b"GET /health HTTP/1.1\r\nX: ", b"y" * 1000),
    "a name": (b"GET /health HTTP/1.1\r\n", b"y" * 1000),
    "a path": (b"GET /", b"y" * 1000),
    "line ends": (b"", b"\r\n" * 500),
    "trailers": (head(Transfer_Encoding="chunked") + b"1\r\n \r\n0\r\n", b"X: " + b"y" * 1000 + b"\r\n"),
    "one trailer": (head(Transfer_Encoding="chunked") + b"1\r\n \r\n0\r\nX: ", b"y" * 1000),
    "a chunk's extension": (head(Transfer_Encoding="chunked") + b"1;", b"y" * 1000),
}


@pytest.mark.parametrize(("begin", "more"), ENDLESS.values(), ids=ENDLESS)
def test_no_head_is_without_end(begin: bytes, more: bytes) -> None:
    with serving(ServerConfig(body_timeout=20)) as served, connected(served) as connection:
        connection.sendall(begin)
        sent = 0
        reply = b""
        try:
            while sent < 1 << 20:
                connection.sendall(more)
                sent += len(more)
                time.sleep(0.0005)
            raise AssertionError("a megabyte was taken")
        except (BrokenPipeError, ConnectionResetError):
            with suppress(OSError):
                reply = everything(connection)
        assert reply[:13] in (b"", b"HTTP/1.1 431 ", b"HTTP/1.1 400 ", b"HTTP/1.1 408 ")
        assert served.call("/health").status == 200


def test_no_head_is_without_end_behind_a_request_that_runs(served: ServedEngine) -> None:
    run_for_long(served)
    body = json.dumps({"model": MODEL, "prompt": "a", "max_tokens": 900, "stream": True}).encode()
    with connected(served) as connection:
        request = head(Content_Length=str(len(body))).replace(CHAT.encode(), b"/v1/completions") + body
        connection.sendall(request + b"GET /health HTTP/1.1\r\nX: ")
        assert connection.recv(100).startswith(b"HTTP/1.1 200 ")
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            send_for_ever(connection, b"y" * 1000)
    served.wait_until_idle(2)


@pytest.mark.parametrize("rest", [b"", b"nonsense\r\n"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_sends_its_next_request_early_and_leaves_is_missed_at_once(
    served: ServedEngine, caplog: pytest.LogCaptureFixture, stream: bool, rest: bytes
) -> None:
    run_for_long(served)
    body = json.dumps({"model": MODEL, "prompt": "a", "max_tokens": 900, "stream": stream}).encode()
    request = head(Content_Length=str(len(body))).replace(CHAT.encode(), b"/v1/completions") + body
    with connected(served) as connection:
        connection.sendall(request + b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n" + rest)
        time.sleep(0.3)
    served.wait_until_idle(2)
    assert served.front_is_idle()
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def send_for_ever(connection: socket.socket, data: bytes) -> None:
    for _ in range(2000):
        connection.sendall(data)
        time.sleep(0.0005)


def test_a_large_head_that_comes_at_once_is_refused_with_a_reason(small: ServedEngine) -> None:
    with connected(small) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nX: " + b"y" * 70_000 + b"\r\n\r\n")
        reply = everything(connection)
    assert reply.startswith(b"HTTP/1.1 431 ")
    assert json.loads(reply.partition(b"\r\n\r\n")[2])["error"]["code"] == "headers_too_large"


@pytest.mark.parametrize(
    "sent",
    [
        b"hello\r\n\r\n",
        b"GET http://[::bad HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /\xff\xfe HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET http://a:99999999/ HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /health HTTP/9.9\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
)
def test_what_is_no_http_is_told_so_in_json(small: ServedEngine, sent: bytes) -> None:
    with connected(small) as connection:
        connection.sendall(sent)
        reply = everything(connection)
    assert reply.startswith(b"HTTP/1.1 400 ")
    assert json.loads(reply.partition(b"\r\n\r\n")[2])["error"]["code"] == "invalid_http"


@pytest.mark.parametrize(
    "sent", [b"", b"GET /health HTTP/1.1\r\nX", b"\r\n", b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"]
)
def test_a_connection_that_asks_nothing_is_closed(
    small: ServedEngine, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(connections, "HEAD_SECONDS", 0.3)
    with connected(small) as connection:
        connection.sendall(sent)
        began = time.monotonic()
        reply = everything(connection)
        assert 0.2 < time.monotonic() - began < 3
    assert reply[:13] in (b"", b"HTTP/1.1 408 ", b"HTTP/1.1 200 ")


def test_more_connections_than_there_may_be() -> None:
    with serving(ServerConfig(max_connections=2)) as served:
        with connected(served) as first, connected(served):
            with connected(served) as third:
                third.sendall(b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n")
                reply = everything(third)
            assert served.call("/health").status == served.call("/ready").status == 200, "a full server lives"
            with ExitStack() as probes:
                for _ in range(8):
                    probes.enter_context(connected(served))
                with connected(served) as one_too_many:
                    assert everything(one_too_many).startswith(b"HTTP/1.1 503 ")
            assert reply.startswith(b"HTTP/1.1 503 ")
            assert b"Retry-After" in reply
            assert json.loads(reply.partition(b"\r\n\r\n")[2])["error"]["code"] == "too_many_connections"
            first.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert first.recv(65536).startswith(b"HTTP/1.1 200 ")
        time.sleep(0.1)
        assert served.call("/health").status == 200
        with connected(served) as nobody:
            nobody.sendall(b"no HTTP at all\r\n\r\n")
            assert everything(nobody).startswith(b"HTTP/1.1 400 ")
        refused = read_samples(served.call("/metrics").body)
        assert refused['milepost:http_errors_total{code="too_many_connections",status="503"}'] == 2
        assert refused['milepost:http_errors_total{code="invalid_http",status="400"}'] == 1
