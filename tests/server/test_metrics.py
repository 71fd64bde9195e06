"""The server's own counters; what they say of whole requests is tested in test_life."""

from __future__ import annotations

import asyncio

import pytest

from milepost.engine.async_engine import AsyncEngine
from milepost.server.metrics import Metrics
from tests.engine.harness import Setup, ask


def sample(metrics: Metrics, name: str) -> float:
    values = [
        line.split()[1] for line in metrics.render().decode().splitlines() if line.startswith(f"{name} ")
    ]
    return float(values[0])


def test_latencies_are_those_of_the_engine() -> None:
    metrics, now = Metrics(), [100.0]
    setup = Setup({"a": "wxyz"}, clock=lambda: now[0], observer=metrics)
    setup.engine.submit(ask("a", (1,), max_tokens=4))
    for seconds in (0.5, 0.25, 0.25, 0.125):
        now[0] += seconds
        setup.engine.step()
    assert sample(metrics, "milepost_output_tokens_total") == 4
    assert sample(metrics, "milepost_time_to_first_token_seconds_count") == 1
    assert sample(metrics, "milepost_time_to_first_token_seconds_sum") == 0.5
    assert sample(metrics, "milepost_inter_token_latency_seconds_count") == 3
    assert sample(metrics, "milepost_inter_token_latency_seconds_sum") == pytest.approx(0.625)
    assert sample(metrics, "milepost_request_duration_seconds_sum") == pytest.approx(1.125)


def test_latencies_are_counted_once_a_token_however_slow_the_reader() -> None:
    """A slow reader gets several tokens at once."""
    metrics = Metrics()

    async def read_late() -> int:
        engine = AsyncEngine(Setup({"a": "wxyz"}, observer=metrics).engine)
        outputs = engine.submit(ask("a", (1,), max_tokens=4))
        assert await engine.drain(10)
        merged = [output async for output in outputs]
        await engine.stop()
        return len(merged)

    assert asyncio.run(read_late()) == 1
    assert sample(metrics, "milepost_output_tokens_total") == 4
    assert sample(metrics, "milepost_time_to_first_token_seconds_count") == 1
    assert sample(metrics, "milepost_inter_token_latency_seconds_count") == 3
