"""Whatever a client does, and whatever breaks: each request that the engine accepted ends exactly once."""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from milepost.engine.reports import RequestReport
from milepost.types import FinishReason, Request
from tests.server.scripted_server import MODEL, ByteTokenizer, ServedEngine, read_samples
from tests.soak.wire import Connection, head_of

PATHS = ("/v1/chat/completions", "/v1/completions")


class Ends:
    """Counts what the engine of a server accepts, and what it ends."""

    def __init__(self, served: ServedEngine, monkeypatch: pytest.MonkeyPatch) -> None:
        self.accepted: Counter[str] = Counter()
        self.ended: Counter[str] = Counter()
        self.reasons: Counter[FinishReason] = Counter()
        self._served = served
        submit, finished = served.engine.submit, served.services.metrics.finished

        def count_submit(request: Request) -> Any:
            stream = submit(request)
            self.accepted[request.request_id] += 1
            return stream

        def count_finished(report: RequestReport, /) -> None:
            self.ended[report.request_id] += 1
            self.reasons[report.reason] += 1
            finished(report)

        monkeypatch.setattr(served.engine, "submit", count_submit)
        monkeypatch.setattr(served.services.metrics, "finished", count_finished)

    def require_all(self, seconds: float = 5.0) -> None:
        """Every request has its one end, engine and front agree, and nobody holds a page."""
        end = time.monotonic() + seconds
        while not (self.accepted == self.ended and self._front_ended() == len(self.accepted)):
            assert time.monotonic() < end, (self.accepted, self.ended, self._front_ended())
            time.sleep(0.02)
        assert set(self.accepted.values()) <= {1}
        assert self._served.front_is_idle()
        self._served.wait_until_idle()
        self._served.scheduler.check()

    def _front_ended(self) -> float:
        """Requests that the server has counted as ended."""
        samples = read_samples(self._served.call("/metrics").body)
        return sum(value for name, value in samples.items() if name.startswith("milepost:requests_total"))


@pytest.fixture
def ends(served: ServedEngine, monkeypatch: pytest.MonkeyPatch) -> Ends:
    return Ends(served, monkeypatch)


def body_of(path: str, **fields: Any) -> dict[str, Any]:
    asked = (
        {"prompt": "a" * 600}
        if path == "/v1/completions"
        else {"messages": [{"role": "user", "content": "a" * 600}]}
    )
    return {"model": MODEL, "max_tokens": 200, **asked, **fields}


class SlowTokenizer:
    """Tokenises when it is allowed to."""

    def __init__(self) -> None:
        self.entered, self.released = threading.Event(), threading.Event()
        self.released.set()
        self._encode = ByteTokenizer.encode

    def encode(self, tokenizer: ByteTokenizer, text: str) -> list[int]:
        self.entered.set()
        assert self.released.wait(10)
        return self._encode(tokenizer, text)


SLOW = SlowTokenizer()


def slow_encode(tokenizer: ByteTokenizer, text: str) -> list[int]:
    return SLOW.encode(tokenizer, text)


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something that the engine's thread does."""
    while not condition():  # noqa: ASYNC110 - no event tells of it
        await asyncio.sleep(0.01)


async def leave_in_the_body(served: ServedEngine, connection: Connection, path: str, body: Any) -> None:
    data = json.dumps(body).encode()
    headers = {"Content-Type": "application/json", "Content-Length": str(len(data))}
    await connection.send(head_of(path, headers) + data[:-5])
    await asyncio.sleep(0.03)


async def leave_while_it_is_tokenised(_: ServedEngine, connection: Connection, path: str, body: Any) -> None:
    SLOW.entered.clear()
    SLOW.released.clear()
    await connection.post(path, body)
    await until(SLOW.entered.is_set)


async def leave_in_the_queue(served: ServedEngine, connection: Connection, path: str, body: Any) -> None:
    await connection.post(path, body)
    await until(lambda: served.engine.stats().scheduler.waiting > 0)


async def leave_in_the_prompt(served: ServedEngine, connection: Connection, path: str, body: Any) -> None:
    await connection.post(path, body)
    await until(lambda: bool(served.executor.batches))
    assert not served.executor.batches[-1].rows[0].samples


async def leave_in_the_reply(served: ServedEngine, connection: Connection, path: str, body: Any) -> None:
    before = served.engine.stats().scheduler.output_tokens
    await connection.post(path, body)
    if not body["stream"]:
        await until(lambda: served.engine.stats().scheduler.output_tokens > before + 2)
        return
    events = connection.events(await connection.head())
    for _ in range(3):
        await anext(events)


PHASES: dict[str, Callable[..., Any]] = {
    "body": leave_in_the_body,
    "tokenising": leave_while_it_is_tokenised,
    "queue": leave_in_the_queue,
    "prompt": leave_in_the_prompt,
    "reply": leave_in_the_reply,
}


async def ask_and_leave(served: ServedEngine, phase: str, path: str, *, stream: bool, rudely: bool) -> None:
    """One exchange that its client leaves in a phase; others are in the way if it shall wait."""
    others = []
    if phase == "queue":
        for _ in range(2):  # there are pages for one
            others.append(await Connection.open(served.url))
            await others[-1].post(path, body_of(path, stream=True))
        await until(lambda: bool(served.executor.batches))
    connection = await Connection.open(served.url)
    await PHASES[phase](served, connection, path, body_of(path, stream=stream, n=2))
    for one in [connection, *others]:
        one.leave(rudely=rudely)
    await asyncio.sleep(0.03)
    SLOW.released.set()


@pytest.mark.parametrize("phase", PHASES)
def test_a_client_that_leaves(
    served: ServedEngine, ends: Ends, phase: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    served.script.tokens = [ord("x")] * 900
    served.executor.seconds = 0.1 if phase == "prompt" else 0.01  # a prompt of 600 tokens takes three steps
    if phase == "tokenising":
        monkeypatch.setattr(ByteTokenizer, "encode", slow_encode)
    for path, stream, rudely in itertools.product(PATHS, [False, True], [False, True]):
        asyncio.run(asyncio.wait_for(ask_and_leave(served, phase, path, stream=stream, rudely=rudely), 10))
        ends.require_all()
        served.executor.batches.clear()
        assert served.call("/cache/reset", {}).status == 200
    if phase in ("queue", "prompt", "reply"):
        assert len(ends.accepted) >= 16
    assert set(ends.reasons) <= {FinishReason.ABORT}
    served.executor.seconds = 0.0
    assert served.call(PATHS[0], body_of(PATHS[0], max_tokens=2)).status == 200


def test_what_breaks_a_step_ends_one_and_the_others_are_whole(served: ServedEngine, ends: Ends) -> None:
    """Through HTTP: one event with an error for the one, every token for the others."""
    served.script.write("abcdef")
    served.executor.seconds = 0.02
    served.executor.break_next_request = True

    async def read(connection: Connection) -> list[Any]:
        events = [data async for data in connection.events(await connection.head())]
        assert events.pop() == "[DONE]"
        return [json.loads(data) for data in events]

    async def ask_all() -> list[list[Any]]:
        connections = [await Connection.open(served.url) for _ in range(4)]
        for connection in connections:
            await connection.post(PATHS[1], {"model": MODEL, "prompt": "a", "stream": True})
        replies = await asyncio.gather(*map(read, connections))
        for connection in connections:
            connection.leave(rudely=False)
        return replies

    replies = asyncio.run(ask_all())
    broken = [events for events in replies if "error" in events[-1]]
    assert len(broken) == 1
    assert sum("error" in event for event in broken[0]) == 1
    for events in replies:
        if events is not broken[0]:
            assert "".join(event["choices"][0]["text"] for event in events) == "abcdef"
    ends.require_all()
    assert ends.reasons == {FinishReason.ERROR: 1, FinishReason.STOP: 3}
    assert served.engine.failure is None
