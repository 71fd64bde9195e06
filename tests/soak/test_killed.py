"""A server that is killed in the middle of its traffic, and another one that takes over its disk cache."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from pathlib import Path

import pytest

from milepost.cli.shipped_model import shipped_model
from tests.soak.probes import ask, ask_all, cached_tokens, probes
from tests.soak.test_soak import load
from tests.soak.traffic import CHAT, COMPLETIONS, MODEL, OPTIONS
from tests.soak.watched import Watched
from tests.soak.wire import Connection

PROMPT = {
    "model": MODEL,
    "prompt": "the code for amber is 7412 and the road " * 12,
    "temperature": 0,
    "max_tokens": 20,
}


def stores_on_disk(watched: Watched) -> float:
    return watched.scrape().total("milepost:prefix_cache_tier_stores_total", tier="disk")


@pytest.mark.slow
def test_sigkill_in_the_middle_of_traffic_and_a_restart_with_the_disk_cache(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    options = (
        "--memory",
        "24MiB",
        "--host-cache",
        "24MiB",
        "--disk-cache",
        f"{folder},96MiB",
        "--threads",
        "1",
    )
    asked = probes(set(OPTIONS))
    for life in range(3):
        watched = Watched.start(shipped_model(), MODEL, *options)
        try:
            cached = cached_tokens(watched.url, COMPLETIONS, PROMPT)
            if life == 0:
                assert cached == 0
                first = ask(watched.url, COMPLETIONS, PROMPT)
                alone = ask_all(watched.url, asked, at_once=1)
            else:
                # What the killed process had written is found, and nothing of it is torn.
                assert cached > 50
                assert ask(watched.url, COMPLETIONS, PROMPT) == first
                assert ask_all(watched.url, asked, at_once=4) == alone
            before = stores_on_disk(watched)
            clients = load(watched, 4, set(OPTIONS))
            try:
                time.sleep(3.5)
                assert stores_on_disk(watched) > before
                watched.kill()
            finally:
                report = json.loads(clients.communicate()[0])
            assert report["num_faults"] > 0, "all were served: it was killed too late"
            assert report["ends"]["complete"] > 0
        finally:
            watched.kill()


@pytest.mark.slow
def test_sigterm_with_a_deadline_ends_each_reply_once_and_the_process_well() -> None:
    watched = Watched.start(
        shipped_model(), MODEL, "--memory", "32MiB", "--threads", "1", "--drain-seconds", "1"
    )
    endless = {"temperature": 1.0, "max_tokens": 1500, "ignore_eos": True, "stream": True, "model": MODEL}
    bodies = {
        CHAT: {**endless, "messages": [{"role": "user", "content": "how far"}], "n": 2},
        COMPLETIONS: {**endless, "prompt": "how far"},
    }

    async def read(connection: Connection) -> list[str]:
        return [data async for data in connection.events(await connection.head())]

    async def ask_and_stop() -> list[list[str]]:
        connections = [await Connection.open(watched.url) for _ in range(6)]
        for number, connection in enumerate(connections):
            path = (CHAT, COMPLETIONS)[number % 2]
            await connection.post(path, bodies[path])
        reading = [asyncio.ensure_future(read(connection)) for connection in connections]
        await asyncio.sleep(1)
        watched.process.send_signal(signal.SIGTERM)
        replies = await asyncio.wait_for(asyncio.gather(*reading), 20)
        for connection in connections:
            connection.leave(rudely=False)
        return replies

    try:
        begun = time.monotonic()
        replies = asyncio.run(ask_and_stop())
        assert watched.process.wait(20) == 0
        assert time.monotonic() - begun < 15
    finally:
        watched.kill()
    for events in replies:
        assert events.pop() == "[DONE]"
        *_, last = map(json.loads, events)
        assert "stopped before the reply was complete" in last["error"]["message"]
        assert sum("error" in json.loads(event) for event in events) == 1
    assert ["time to drain is over" in line for line in watched.log[1:]] == [True]
