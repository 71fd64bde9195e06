"""Malformed requests over every path that takes a body: each gets its answer, none gets a 500 or a page.

`make test` sends some; all ten thousand are `python -m pytest -m fuzz tests/fuzz`. The seed is in every
failure's message, and $MILEPOST_FUZZ_SEED sets it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from milepost.server import ServerConfig
from tests.fuzz.mutations import mutated
from tests.fuzz.seeds import VALID
from tests.fuzz.wrappings import Wrapped, wrapped
from tests.server.scripted_server import ServedEngine, serving
from tests.soak.wire import Connection, Head, ProtocolError

SEED = os.environ.get("MILEPOST_FUZZ_SEED", "1")
AT_ONCE = 16
SECONDS = 20.0  # for one exchange; an answer takes a few milliseconds
TEXT = "It is seven miles.<|close|>response<|sep|><|close|>message<|sep|><|end_of_msg|>"


@dataclass
class Verdict:
    """What came of a run: replies by status, and each fault with the request that made it."""

    statuses: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)


def request(number: int) -> tuple[str, Wrapped]:
    """The request of that number, whatever was sent before."""
    draw = random.Random(f"{SEED}/{number}")
    path = draw.choice(list(VALID))
    return path, wrapped(path, mutated(draw.choice(VALID[path]), draw), draw)


async def send(url: str, number: int, verdict: Verdict) -> None:
    """Send a request and judge its answer."""
    path, asked = request(number)
    try:
        async with asyncio.timeout(SECONDS):
            status = await answer(url, asked)
    except TimeoutError:
        status = "none in time"
    except (ProtocolError, ValueError) as error:
        status = f"broken: {error}"
    verdict.statuses[status] += 1
    silent = status == "closed"
    if (status not in {"200", "closed"} and not status.startswith("4")) or (silent and asked.whole):
        verdict.faults.append(f"{status} for request {number} of seed {SEED}, {path}: {asked.data[:1500]!r}")


async def answer(url: str, asked: Wrapped) -> str:
    """The status of a whole and sound reply, or that the server closed the connection without one."""
    connection = await Connection.open(url)
    try:
        await connection.send(asked.data)
        if not asked.whole:
            connection.end()
        head = await connection.head_or_none()
        if head is None:
            return "closed"
        if head.headers.get("content-type", "").startswith("text/event-stream"):
            async for data in connection.events(head):
                assert data == "[DONE]" or json.loads(data)
        else:
            require_error_form(head, await connection.whole(head))
        return str(head.status)
    except ConnectionError:
        return "closed"
    finally:
        connection.leave(rudely=False)


def require_error_form(head: Head, body: bytes) -> None:
    """A refusal says why, in OpenAI's form; but for one of what is no HTTP, which no endpoint sees."""
    if head.status >= 400 and head.headers.get("content-type") == "application/json":
        error = json.loads(body)["error"]
        if not error["message"] or "Traceback" in error["message"] or "/milepost/" in error["message"]:
            raise ProtocolError(f"an error that says nothing, or too much: {body[:300]!r}")


async def send_all(url: str, numbers: range, verdict: Verdict) -> None:
    """Send requests, some at a time."""
    turns = asyncio.Semaphore(AT_ONCE)

    async def send_one(number: int) -> None:
        async with turns:
            await send(url, number, verdict)

    async with asyncio.TaskGroup() as group:
        for number in numbers:
            group.create_task(send_one(number))


def fuzz(served: ServedEngine, count: int, caplog: pytest.LogCaptureFixture) -> None:
    verdict = Verdict()
    with caplog.at_level(logging.ERROR):
        asyncio.run(send_all(served.url, range(count), verdict))
    assert not verdict.faults, "\n".join([f"{len(verdict.faults)} faults:", *verdict.faults[:10]])
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR], caplog.text
    # Neither all refused, which would test one check only, nor all taken.
    assert verdict.statuses["200"] > count / 20, verdict.statuses
    assert verdict.statuses["400"] > count / 5, verdict.statuses
    served.wait_until_idle()
    assert served.front_is_idle()
    served.scheduler.check()
    assert served.call("/health").status == 200


@pytest.fixture
def served() -> Iterator[ServedEngine]:
    """A server whose every request draws the same reply."""
    with serving(ServerConfig(max_body="1MiB", drain_seconds=5)) as served:
        served.script.write(TEXT)
        yield served


def test_malformed_requests(served: ServedEngine, caplog: pytest.LogCaptureFixture) -> None:
    fuzz(served, 1500, caplog)


@pytest.mark.fuzz
def test_ten_thousand_malformed_requests(served: ServedEngine, caplog: pytest.LogCaptureFixture) -> None:
    fuzz(served, 10_000, caplog)
