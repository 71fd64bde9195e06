"""A server that may have few files open, and clients that want more connections than that."""

from __future__ import annotations

import asyncio
import json
from collections import Counter

import pytest

from milepost.cli.shipped_model import shipped_model
from tests.soak.traffic import COMPLETIONS, MODEL
from tests.soak.watched import Watched
from tests.soak.wire import Connection, ProtocolError

FEW = 64
LIMITED = ("sh", "-c", f'ulimit -n {FEW}; exec "$@"', "sh")
BODY = {"model": MODEL, "prompt": "amber", "max_tokens": 3, "stream": True}


async def ask_over_many(url: str) -> Counter[int]:
    """All connections are open before any asks; how many replies had which status."""
    connections = [await Connection.open(url) for _ in range(2 * FEW)]
    found: Counter[int] = Counter()
    for connection in connections:
        try:
            await connection.post(COMPLETIONS, BODY)
            head = await connection.head()
            found[head.status] += 1
            if head.status == 200:
                events = [data async for data in connection.events(head)]
                assert events[-1] == "[DONE]"
                assert "error" not in json.loads(events[-2])
        except (OSError, ProtocolError):
            found[0] += 1
    for connection in connections:
        connection.leave(rudely=True)
    return found


@pytest.mark.slow
def test_more_clients_than_files() -> None:
    watched = Watched.start(shipped_model(), MODEL, "--memory", "24MiB", "--threads", "1", within=LIMITED)
    try:
        for _ in range(2):  # it recovers
            found = asyncio.run(ask_over_many(watched.url))
            # At least those that have a place, and at most those too that wait in the places of probes.
            assert FEW // 2 <= found[200] <= FEW // 2 + 8, found
            assert sum(found.values()) == 2 * FEW
            assert set(found) <= {200, 503, 0}
            assert watched.idle().unfinished == 0
        assert watched.stop() == 0
    finally:
        watched.kill()
