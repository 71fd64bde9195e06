"""How much may be asked for: by whom, at once, over time, and in how many bytes."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import OpenAI

from milepost.server import ServerConfig
from milepost.server.access import connections
from milepost.server.access.tenants import Tenant, TenantLimits
from milepost.server.access.usage import Admission, Bucket, Pace
from milepost.server.protocol.errors import HttpError
from milepost.types import Request
from tests.server.scripted_server import MAX_MODEL_LEN, MODEL, ServedEngine, serving

KEY = "ann-0123456789abcdef"
CHAT = "/v1/chat/completions"


def run_for_long(served: ServedEngine) -> None:
    served.script.tokens = [ord("x")] * MAX_MODEL_LEN
    served.executor.seconds = 0.02


@contextmanager
def limited(folder: Path, limits: str, **options: Any) -> Iterator[tuple[ServedEngine, OpenAI]]:
    """A server with one tenant, and its client."""
    file = folder / "keys.toml"
    file.write_text(f'[tenants.ann]\nkeys = ["{KEY}"]\noperator = true\n{limits}\n')
    file.chmod(0o600)
    with serving(ServerConfig(api_keys=str(file), **options)) as served, served.client() as client:
        yield served, client.with_options(api_key=KEY)


@contextmanager
def connected(served: ServedEngine) -> Iterator[socket.socket]:
    address = ("127.0.0.1", int(served.url.rpartition(":")[2]))
    with socket.create_connection(address, timeout=10) as connection:
        yield connection


def everything(connection: socket.socket) -> bytes:
    """What comes until the server hangs up."""
    received = bytearray()
    while chunk := connection.recv(65536):
        received += chunk
    return bytes(received)


# -- tenants and the queue ----------------------------------------------------------------------------


def test_as_many_at_once_as_a_tenant_may_have(tmp_path: Path) -> None:
    with limited(tmp_path, "max_requests = 2") as (served, client):
        run_for_long(served)
        form: Any = {"model": MODEL, "max_tokens": 900}
        streams = [client.completions.create(**form, prompt="a", stream=True) for _ in range(2)]
        for stream in streams:
            next(stream)
        with pytest.raises(openai.RateLimitError) as caught:
            client.completions.create(**form, prompt="b")
        assert caught.value.code == "rate_limit_exceeded"
        assert caught.value.type == "rate_limit_error"
        assert int(caught.value.response.headers["Retry-After"]) >= 1
        streams[0].close()
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline:
            try:
                client.completions.create(model=MODEL, prompt="b", max_tokens=1)
                break
            except openai.RateLimitError:
                time.sleep(0.02)
        else:
            raise AssertionError("a place that was left stays taken")
        with pytest.raises(openai.BadRequestError, match="at most 2 replies"):
            client.completions.create(**form, prompt=["a", "b", "c"])
        streams[1].close()


def test_requests_a_minute(tmp_path: Path) -> None:
    with limited(tmp_path, "requests_per_minute = 2") as (_, client):
        for _ in range(2):
            client.completions.create(model=MODEL, prompt="a")
        with pytest.raises(openai.RateLimitError, match="2 replies a minute") as caught:
            client.completions.create(model=MODEL, prompt="a")
        assert 25 <= int(caught.value.response.headers["Retry-After"]) <= 30


def test_tokens_a_minute(tmp_path: Path) -> None:
    with limited(tmp_path, "tokens_per_minute = 100") as (served, client):
        served.script.tokens = [ord("x")] * 200
        client.completions.create(model=MODEL, prompt="a" * 50, max_tokens=110)
        with pytest.raises(openai.RateLimitError, match="100 tokens a minute") as caught:
            client.completions.create(model=MODEL, prompt="a")
        # 60 too many were taken: 61 must come back, at 100 a minute.
        assert 34 <= int(caught.value.response.headers["Retry-After"]) <= 37


def test_a_prompt_over_a_limit_is_not_even_tokenised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with limited(tmp_path, "requests_per_minute = 1") as (served, client):
        client.completions.create(model=MODEL, prompt="a")

        def fail(*_: object) -> None:
            raise AssertionError("it was tokenised")

        monkeypatch.setattr(served.services.tokenizer, "encode", fail)
        monkeypatch.setattr(served.services.encoding, "encode", fail)
        with pytest.raises(openai.RateLimitError):
            client.completions.create(model=MODEL, prompt="a")
        messages: Any = [{"role": "user", "content": "a"}]
        with pytest.raises(openai.RateLimitError):
            client.chat.completions.create(model=MODEL, messages=messages)


def test_a_full_queue() -> None:
    with serving(ServerConfig(max_waiting=3)) as served:
        run_for_long(served)
        served.executor.seconds = 0.3
        statuses: list[int] = []

        def ask() -> None:
            body = {"model": MODEL, "prompt": "a" * 200, "max_tokens": 1}
            reply = served.call("/v1/completions", body)
            statuses.append(reply.status)
            if reply.status == 429:
                assert reply.error["code"] == "queue_full"
                assert int({k.lower(): v for k, v in reply.headers.items()}["retry-after"]) >= 1

        threads = [threading.Thread(target=ask) for _ in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert set(statuses) == {200, 429}
        assert statuses.count(200) >= 3
        assert served.metric('milepost:http_errors_total{code="queue_full",status="429"}') == statuses.count(
            429
        )
        served.wait_until_idle()
        assert served.call("/v1/completions", {"model": MODEL, "prompt": "a", "max_tokens": 1}).status == 200


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def requests(count: int, tokens: int = 1) -> list[Request]:
    return [Request(request_id=str(i), prompt_token_ids=(1,) * tokens) for i in range(count)]


def retry_after(admission: Admission, tenant: Tenant, count: int = 1) -> tuple[str, int] | None:
    """The code and the seconds of a refusal; None when it may come in."""
    try:
        admission.check(tenant, count)
    except HttpError as refusal:
        return str(refusal.detail.code), int(refusal.headers["Retry-After"])
    return None


def test_a_bucket() -> None:
    bucket = Bucket(60, now=0.0)
    bucket.take(60, 0.0)
    assert bucket.wait(0.0) == pytest.approx(1.0)
    assert bucket.wait(1.0) == 0.0
    bucket.take(100, 1.0)  # more than there ever is: a debt
    assert bucket.wait(1.0) == pytest.approx(100.0)
    bucket.take(0, 10_000.0)
    bucket.take(60, 10_000.0)  # idle time is worth a minute, no more
    assert bucket.wait(10_000.0) == pytest.approx(1.0)


def test_how_long_it_takes_until_others_have_ended() -> None:
    pace = Pace()
    assert pace.seconds_for(2, 0.0) == 10.0  # a guess
    for now in (1.0, 2.0, 3.0, 4.0):
        pace.ended(now)
    assert pace.seconds_for(8, 5.0) == pytest.approx(8.0)
    assert pace.seconds_for(2, 500.0) == 10.0  # what was long ago says nothing


def test_a_tenants_own_queue() -> None:
    waiting = 0
    clock = Clock()
    admission = Admission(100, lambda: waiting, clock)
    ann = Tenant(name="ann", limits=TenantLimits(max_waiting=2))
    bob = Tenant(name="bob", limits=TenantLimits(max_waiting=2))
    for tenant in (ann, ann, ann, bob):
        admission.begin(tenant, requests(1))
    assert retry_after(admission, ann) is None  # the engine has begun with all of them
    waiting = 4
    assert retry_after(admission, ann) == ("queue_full", 10)
    assert retry_after(admission, bob) is None
    admission.begun(ann)
    admission.begun(ann)
    assert retry_after(admission, ann) is None
    waiting = 100
    assert retry_after(admission, bob) == ("queue_full", 5)


def test_an_ended_request_leaves_its_place() -> None:
    admission = Admission(100, lambda: 0, Clock())
    tenant = Tenant(name="ann", limits=TenantLimits(max_requests=2))
    admission.begin(tenant, requests(2))
    assert retry_after(admission, tenant) == ("rate_limit_exceeded", 5)
    admission.begun(tenant)
    admission.ended(tenant)
    assert retry_after(admission, tenant, 1) is None
    assert retry_after(admission, tenant, 2) is not None


def test_limits_that_were_changed_count_from_then_on() -> None:
    clock = Clock()
    admission = Admission(100, lambda: 0, clock)
    ann = Tenant(name="ann", limits=TenantLimits(requests_per_minute=1))
    admission.begin(ann, requests(1))
    assert retry_after(admission, ann) == ("rate_limit_exceeded", 60)
    assert retry_after(admission, Tenant(name="ann")) is None
    more = Tenant(name="ann", limits=TenantLimits(requests_per_minute=2))
    assert retry_after(admission, more) is None


def test_what_runs_under_the_limits_before_a_change_brings_none_of_them_back() -> None:
    clock = Clock()
    admission = Admission(100, lambda: 0, clock)
    before = [Tenant(name="ann", limits=TenantLimits(tokens_per_minute=limit)) for limit in (None, 1000)]
    after = Tenant(name="ann", limits=TenantLimits(tokens_per_minute=10))
    for tenant in before:
        admission.check(tenant, 1)
        admission.begin(tenant, requests(1))
    assert retry_after(admission, after) is None
    admission.begin(after, requests(1, tokens=10))
    for tenant in before:
        admission.begun(tenant)
        admission.drawn(tenant, 1)
        admission.ended(tenant)
    assert retry_after(admission, after) == ("rate_limit_exceeded", 18)  # two tokens of debt, and one to take


def test_a_clock_that_runs_while_limits_are_checked() -> None:
    clock = Clock()

    def tick() -> float:
        clock.now += 1e-6
        return clock.now

    admission = Admission(100, lambda: 0, tick)
    tenant = Tenant(name="ann", limits=TenantLimits(requests_per_minute=1, tokens_per_minute=1))
    assert retry_after(admission, tenant) is None


def test_no_estimate_is_longer_than_five_minutes() -> None:
    admission = Admission(100, lambda: 0, Clock())
    tenant = Tenant(name="ann", limits=TenantLimits(tokens_per_minute=1))
    admission.begin(tenant, requests(1, tokens=5000))
    assert retry_after(admission, tenant) == ("rate_limit_exceeded", 300)


# -- bytes --------------------------------------------------------------------------------------------


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
                reply = everything(third)
            assert reply.startswith(b"HTTP/1.1 503 ")
            assert b"Retry-After" in reply
            assert json.loads(reply.partition(b"\r\n\r\n")[2])["error"]["code"] == "too_many_connections"
            first.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert first.recv(65536).startswith(b"HTTP/1.1 200 ")
        time.sleep(0.1)
        assert served.call("/health").status == 200
