"""Clients that ask and do not read: what waits for them is bounded, and so is how long."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager
from typing import Any, cast

import pytest

from milepost.server import ServerConfig
from milepost.server.front import Run
from milepost.server.streaming import merge
from milepost.types import RequestOutput, Usage
from tests.server.scripted_server import MODEL, ServedEngine, run_for_long, serving

SECONDS = 0.6
IMPATIENT = ServerConfig(stalled_reader_timeout=SECONDS, drain_seconds=5)


@contextmanager
def asked(served: ServedEngine, receive_bytes: int = 4096, **fields: Any) -> Iterator[socket.socket]:
    """A completion asked for on a socket with a small buffer of its own, which nobody reads."""
    body = json.dumps({"model": MODEL, "prompt": "a", "max_tokens": 900} | fields).encode()
    head = (
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        connection.settimeout(10)
        connection.connect(served.address)
        connection.sendall(head.encode() + body)
        yield connection


def read_to_the_end(connection: socket.socket) -> None:
    while connection.recv(1 << 20):
        pass


def buffered(served: ServedEngine) -> int:
    """Bytes that the server holds for its clients, the kernel's apart."""
    connections = list(served.server.server_state.connections)
    return max((each.transport.get_write_buffer_size() for each in connections), default=0)


def test_a_stream_that_nobody_reads_is_ended() -> None:
    with serving(IMPATIENT) as served:
        run_for_long(served, 0.005)
        # Log-probabilities make some 2 kB a token: the kernel's buffers fill in a moment.
        with asked(served, stream=True, logprobs=5, prompt=["a"] * 8, max_tokens=600):
            deadline = time.monotonic() + 15
            most = 0
            while most == 0 or not served.front_is_idle():
                assert time.monotonic() < deadline
                most = max(most, buffered(served))
                time.sleep(0.02)
            assert most < 256 * 1024
            served.wait_until_idle(2)
            assert (
                served.metric('milepost:requests_total{endpoint="completions",finished_reason="abort"}') == 8
            )
            assert served.metric('milepost:aborted_requests_total{cause="slow_reader"}') == 1
        assert served.call("/health").status == 200


def test_who_reads_slowly_but_reads_gets_everything() -> None:
    with serving(IMPATIENT) as served:
        run_for_long(served, 0.0)
        with asked(served, stream=True, logprobs=5, prompt=["a"] * 4, max_tokens=200) as connection:
            received = bytearray()
            while not received.endswith(b"0\r\n\r\n"):
                chunk = connection.recv(16384)
                assert chunk, "the server hung up on a client that reads"
                received += chunk
                time.sleep(0.02)
        assert b"[DONE]" in received
        assert served.metric('milepost:requests_total{endpoint="completions",finished_reason="length"}') == 4


def test_a_whole_reply_that_nobody_reads_does_not_keep_its_connection() -> None:
    with serving(IMPATIENT) as served:
        run_for_long(served, 0.0)
        with asked(served, logprobs=5, prompt=["a"] * 16, max_tokens=400, echo=False) as connection:
            deadline = time.monotonic() + 10
            while buffered(served) == 0:
                assert time.monotonic() < deadline
                time.sleep(0.02)
            while buffered(served) > 0:
                assert time.monotonic() < deadline
                time.sleep(0.05)
            with pytest.raises(ConnectionResetError):
                read_to_the_end(connection)
        assert served.front_is_idle()


def test_a_deadline_frees_the_pages_of_a_stream_that_nobody_reads() -> None:
    patient = ServerConfig(request_timeout=0.6, stalled_reader_timeout=60, drain_seconds=0.5)
    with serving(patient) as served:
        run_for_long(served, 0.005)
        with asked(served, stream=True, logprobs=5, prompt=["a"] * 8, max_tokens=600):
            time.sleep(0.7)
            served.wait_until_idle(1)
            assert served.front_is_idle()


def test_a_quiet_stream_is_no_stalled_one() -> None:
    with serving(IMPATIENT) as served:
        run_for_long(served, 1.2 * SECONDS)
        reply = served.call(
            "/v1/completions", {"model": MODEL, "prompt": "a", "max_tokens": 3, "stream": True}
        )
        assert reply.body.endswith(b"data: [DONE]\n\n")
        assert b"error" not in reply.body


def test_several_replies_of_one_request_wait_for_their_reader_too() -> None:
    """Else their outputs would pile up one by one, instead of merging where they are made."""
    made = 0

    async def outputs() -> AsyncGenerator[RequestOutput]:
        nonlocal made
        while True:
            await asyncio.sleep(0)
            made += 1
            yield RequestOutput(request_id="a", usage=Usage(prompt_tokens=1, output_tokens=made))

    async def read_three() -> None:
        runs = [cast(Run, outputs()) for _ in range(4)]
        async with aclosing(merge(runs)) as merged:
            for _ in range(3):
                await anext(merged)
                await asyncio.sleep(0.02)
        assert made <= 3 + 2 * len(runs)

    asyncio.run(read_three())
