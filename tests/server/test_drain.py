"""The server's end: every accepted request gets exactly one last word, and nobody can hold it up."""

from __future__ import annotations

import json
import socket
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from milepost.server import ServerConfig
from tests.server.scripted_server import MODEL, ServedEngine, run_for_long, serving
from tests.server.test_slow_readers import asked, buffered

KEY = "ann-0123456789abcdef"
FINISHED = '"finish_reason":"'


def complete(served: ServedEngine, **fields: Any) -> bytes:
    """A completion's status and body, each event of a stream included."""
    body = {"model": MODEL, "prompt": "a" * 200, "max_tokens": 700} | fields
    reply = served.call("/v1/completions", body)
    return f"{reply.status} ".encode() + reply.body


def wait_until_open(served: ServedEngine, count: int) -> None:
    deadline = time.monotonic() + 5
    while served.front.num_running < count:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_running_and_waiting_requests_get_one_last_event_at_the_drains_end() -> None:
    with serving(ServerConfig(drain_seconds=0.3)) as served:
        run_for_long(served)
        replies: list[bytes] = []
        threads = [
            threading.Thread(target=lambda i=i: replies.append(complete(served, stream=i % 2 == 0)))
            for i in range(24)
        ]
        for thread in threads:
            thread.start()
        wait_until_open(served, 24)
        while served.engine.stats().scheduler.waiting == 0:
            time.sleep(0.01)
            assert served.front.num_running == 24
        served.drain()
        for thread in threads:
            thread.join(10)
        served.join()
        assert len(replies) == 24
        streams = [reply for reply in replies if b"data: " in reply]
        assert len(streams) == 12
        for reply in streams:
            assert reply.endswith(b"data: [DONE]\n\n")
            assert reply.count(b'"error"') == 1
            assert FINISHED.encode() not in reply
        for reply in set(replies) - set(streams):
            assert reply.startswith(b"503 ")
            assert json.loads(reply[4:])["error"]["code"] == "shutting_down"
        assert served.front_is_idle()


def test_requests_that_end_in_time_are_whole() -> None:
    with serving(ServerConfig(drain_seconds=5)) as served:
        served.script.tokens = [ord("x")] * 30
        served.executor.seconds = 0.02
        replies: list[bytes] = []
        threads = [threading.Thread(target=lambda: replies.append(complete(served))) for _ in range(20)]
        for thread in threads:
            thread.start()
        wait_until_open(served, 20)
        served.drain()
        served.join()
        for thread in threads:
            thread.join(10)
        texts = {json.loads(reply[4:])["choices"][0]["text"] for reply in replies}
        assert (len(replies), texts) == (20, {"x" * 30})


def test_idle_connections_and_half_sent_requests_hold_nothing_up() -> None:
    with serving(ServerConfig(drain_seconds=0.2)) as served, ExitStack() as stack:
        idle, head, body = (
            stack.enter_context(socket.create_connection(served.address, 10)) for _ in range(3)
        )
        idle.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert idle.recv(65536).startswith(b"HTTP/1.1 200 ")
        head.sendall(b"GET /health HTTP/1.1\r\nHo")
        body.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: 1000\r\n\r\n{"
        )
        time.sleep(0.1)
        began = time.monotonic()
        served.drain()
        served.join()
        assert time.monotonic() - began < 3


def test_a_tenant_gets_all_its_places_back_however_its_requests_ended(tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    file.write_text(f'[tenants.ann]\nkeys = ["{KEY}"]\nmax_requests = 4\nmax_waiting = 4\noperator = true\n')
    file.chmod(0o600)
    headers = {"Authorization": f"Bearer {KEY}"}
    with serving(ServerConfig(api_keys=str(file), request_timeout=0.3, drain_seconds=5)) as served:

        def ask(**fields: Any) -> int:
            body = {"model": MODEL, "prompt": "a"} | fields
            return served.call("/v1/completions", body, headers=headers).status

        def all_places() -> int:
            deadline = time.monotonic() + 5
            while not served.front_is_idle():
                assert time.monotonic() < deadline
                time.sleep(0.01)
            return ask(prompt=["a"] * 4, max_tokens=1)

        served.script.write("abc")
        assert ask() == 200
        assert all_places() == 200
        served.executor.fail_next = "non-finite logits"
        assert ask() == 500
        assert all_places() == 200
        assert ask(prompt=["a", ""]) == 400
        assert all_places() == 200
        run_for_long(served)
        assert ask(prompt=["a"] * 4, max_tokens=900) == 504
        assert all_places() == 200
        with socket.create_connection(served.address, 10) as connection:
            body = json.dumps({"model": MODEL, "prompt": ["a"] * 4, "max_tokens": 900}).encode()
            head = f"Host: localhost\r\nAuthorization: Bearer {KEY}\r\nContent-Length: {len(body)}\r\n"
            connection.sendall(
                f"POST /v1/completions HTTP/1.1\r\nContent-Type: application/json\r\n{head}\r\n".encode()
                + body
            )
            wait_until_open(served, 4)
            assert ask() == 429
        assert all_places() == 200


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_that_runs_when_the_engine_stops(stream: bool) -> None:
    with serving(ServerConfig(drain_seconds=0)) as served:
        run_for_long(served)
        replies: list[bytes] = []
        thread = threading.Thread(target=lambda: replies.append(complete(served, stream=stream)))
        thread.start()
        wait_until_open(served, 1)
        served.drain()
        thread.join(10)
        served.join()
        (reply,) = replies
        assert reply.count(b'"error"') == 1
        assert b"stopped before the reply was complete" in reply


def test_who_reads_nothing_is_hung_up_on_without_a_fuss(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("milepost.server.serving.FLUSH_SECONDS", 1)
    with serving(ServerConfig(drain_seconds=0.2)) as served, ExitStack() as readers:
        run_for_long(served, 0.005)
        readers.enter_context(asked(served, stream=True, logprobs=5, prompt=["a"] * 8, max_tokens=600))
        deadline = time.monotonic() + 15
        while buffered(served) == 0:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        began = time.monotonic()
        served.drain()
        served.join()
        assert time.monotonic() - began < 3
        assert served.front_is_idle()
    told = [record.getMessage() for record in caplog.records if record.levelname in ("WARNING", "ERROR")]
    assert told == ["The time to drain is over: aborting 8 requests"]
