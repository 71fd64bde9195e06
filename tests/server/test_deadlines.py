"""A request that takes too long is ended: one last event or a 504, and its pages are free."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from types import SimpleNamespace
from typing import Any

import openai
import pytest

from milepost.server import ServerConfig
from milepost.server.front import Front
from milepost.server.protocol.errors import HttpError
from milepost.server.streaming import merge
from milepost.types import Request, SamplingParams
from tests.server.scripted_server import MODEL, ServedEngine, run_for_long, serving

MESSAGES: Any = [{"role": "user", "content": "hi"}]
SHORT = ServerConfig(request_timeout=0.4, drain_seconds=5)


def assert_ended(served: ServedEngine, endpoint: str, count: int = 1) -> None:
    served.wait_until_idle(2)
    assert served.front_is_idle()
    name = f'milepost:requests_total{{endpoint="{endpoint}",finished_reason="abort"}}'
    assert served.metric(name) == count
    assert served.metric('milepost:aborted_requests_total{cause="deadline"}') == count
    assert served.metric("milepost:num_requests_waiting") == 0


@pytest.mark.parametrize("endpoint", ["chat", "completions"])
def test_a_whole_reply_becomes_a_504(endpoint: str) -> None:
    with serving(SHORT) as served:
        run_for_long(served)
        path = "/v1/chat/completions" if endpoint == "chat" else "/v1/completions"
        body = {"messages": MESSAGES} if endpoint == "chat" else {"prompt": "a", "max_tokens": 900}
        began = time.monotonic()
        reply = served.call(path, {"model": MODEL} | body)
        assert 0.35 < time.monotonic() - began < 2
        assert (reply.status, reply.error["code"]) == (504, "deadline_exceeded")
        assert "0.4 s" in str(reply.error["message"])
        assert_ended(served, endpoint)


@pytest.mark.parametrize("endpoint", ["chat", "completions"])
def test_a_stream_gets_one_last_event(endpoint: str) -> None:
    with serving(SHORT) as served:
        run_for_long(served)
        path = "/v1/chat/completions" if endpoint == "chat" else "/v1/completions"
        body = {"messages": MESSAGES} if endpoint == "chat" else {"prompt": "a", "max_tokens": 900}
        reply = served.call(path, {"model": MODEL, "stream": True} | body)
        events = reply.body.decode().strip().split("\n\n")
        assert reply.status == 200
        assert len(events) > 5
        assert events[-1] == "data: [DONE]"
        assert json.loads(events[-2].removeprefix("data: "))["error"]["code"] == "deadline_exceeded"
        assert sum("error" in event for event in events) == 1
        assert not any('"finish_reason":"' in event for event in events)
        assert_ended(served, endpoint)


def test_openais_client_is_told() -> None:
    with serving(SHORT) as served:
        run_for_long(served)
        with served.client() as client, pytest.raises(openai.APIError) as caught:
            list(client.completions.create(model=MODEL, prompt="a", max_tokens=900, stream=True))
        assert caught.value.code == "deadline_exceeded"


def test_all_choices_end_together() -> None:
    with serving(SHORT) as served:
        run_for_long(served)
        body = {"model": MODEL, "prompt": ["a", "b", "c"], "max_tokens": 900}
        assert served.call("/v1/completions", body).status == 504
        assert_ended(served, "completions", 3)


def test_time_in_the_queue_counts() -> None:
    with serving(ServerConfig(request_timeout=0.6, drain_seconds=5)) as served:
        run_for_long(served)
        prompts = ["x" * 400] * 8  # more than there are pages for: some never run
        reply = served.call("/v1/completions", {"model": MODEL, "prompt": prompts, "max_tokens": 500})
        assert reply.status == 504
        assert_ended(served, "completions", 8)


def test_a_reply_in_time_is_whole_and_nothing_happens_at_its_deadline() -> None:
    with serving(ServerConfig(request_timeout=0.3, drain_seconds=5)) as served:
        served.script.write("abc")
        reply = served.call("/v1/completions", {"model": MODEL, "prompt": "a"})
        assert json.loads(reply.body)["choices"][0]["text"] == "abc"
        time.sleep(0.4)
        assert served.metric('milepost:requests_total{endpoint="completions",finished_reason="stop"}') == 1
        assert served.front_is_idle()


def test_a_client_is_answered_even_while_a_step_hangs() -> None:
    with serving(SHORT) as served:
        run_for_long(served)
        served.executor.seconds = 1.5
        began = time.monotonic()
        assert served.call("/v1/completions", {"model": MODEL, "prompt": "a"}).status == 504
        assert time.monotonic() - began < 1.2
        served.executor.seconds = 0
        served.wait_until_idle(4)


# -- the front alone ----------------------------------------------------------------------------------


def ask(served: ServedEngine, **options: Any) -> list[str]:
    """How a request to the front itself goes: its texts, and the code that it ends with."""

    async def run() -> list[str]:
        front: Front = served.front
        request = Request(request_id="a", prompt_token_ids=(1, 2, 3), sampling=SamplingParams(max_tokens=900))
        seen: list[str] = []
        try:
            (running,) = front.submit([request], "test", **options)
            async for output in running:
                seen += [output.text]
        except HttpError as error:
            seen.append(f"{error.status} {error.detail.code}")
        return seen

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("limit", "asked", "seconds"), [(None, 0.2, 0.2), (0.2, None, 0.2), (0.2, 30.0, 0.2), (30.0, 0.2, 0.2)]
)
def test_the_shorter_of_what_is_asked_and_what_is_allowed(
    limit: float | None, asked: float | None, seconds: float
) -> None:
    with serving(ServerConfig(request_timeout=limit)) as served:
        run_for_long(served)
        began = time.monotonic()
        assert ask(served, timeout=asked)[-1] == "504 deadline_exceeded"
        assert seconds - 0.05 < time.monotonic() - began < 1.5
        served.wait_until_idle()


def test_what_arrived_too_long_ago_never_starts(served: ServedEngine) -> None:
    assert ask(served, timeout=1.0, arrival=time.monotonic() - 2) == ["504 deadline_exceeded"]
    assert served.executor.batches == []
    assert served.front_is_idle()


def test_time_before_the_front_counts(served: ServedEngine) -> None:
    run_for_long(served)
    began = time.monotonic()
    assert ask(served, timeout=2.2, arrival=began - 2)[-1] == "504 deadline_exceeded"
    assert time.monotonic() - began < 1.5


def test_choices_whose_reader_is_told_of_one_have_run_out_of_time_all(
    served: ServedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_for_long(served)
    # A busy loop: each run of the request is set up a while after the one before.
    calls = itertools.count()
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + 0.05 * next(calls))
    monkeypatch.setattr("milepost.server.front.time", clock)

    async def run() -> list[bool]:
        front: Front = served.front
        requests = [
            Request(request_id=name, prompt_token_ids=(1, 2), sampling=SamplingParams(max_tokens=900))
            for name in "abc"
        ]
        runs = front.submit(requests, "test", timeout=0.5)
        with pytest.raises(HttpError):
            async for _ in merge(runs):
                pass
        for each in runs:
            each.close()
        return [each.expired for each in runs]

    assert asyncio.run(run()) == [True] * 3
