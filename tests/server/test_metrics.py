"""The server's own counters; what they say of whole requests is tested in test_life."""

from __future__ import annotations

import asyncio

import pytest

from milepost.engine.async_engine import AsyncEngine
from milepost.memory.page_states import PageCounts
from milepost.server.telemetry.metrics import Metrics
from tests.engine.harness import Setup, ask
from tests.engine.scripted_cache import STATS, ScriptedCache
from tests.server.scripted_server import read_samples


def sample(metrics: Metrics, name: str) -> float:
    return read_samples(metrics.render())[name]


def test_latencies_are_those_of_the_engine() -> None:
    metrics, now = Metrics(), [100.0]
    setup = Setup({"a": "wxyz"}, clock=lambda: now[0], observer=metrics)
    setup.engine.submit(ask("a", (1,), max_tokens=4))
    for seconds in (0.5, 0.25, 0.25, 0.125):
        now[0] += seconds
        setup.engine.step()
    assert sample(metrics, "milepost:generation_tokens_total") == 4
    assert sample(metrics, "milepost:time_to_first_token_seconds_count") == 1
    assert sample(metrics, "milepost:time_to_first_token_seconds_sum") == 0.5
    assert sample(metrics, "milepost:inter_token_latency_seconds_count") == 3
    assert sample(metrics, "milepost:inter_token_latency_seconds_sum") == pytest.approx(0.625)
    assert sample(metrics, "milepost:e2e_request_latency_seconds_sum") == pytest.approx(1.125)


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
    assert sample(metrics, "milepost:generation_tokens_total") == 4
    assert sample(metrics, "milepost:time_to_first_token_seconds_count") == 1
    assert sample(metrics, "milepost:inter_token_latency_seconds_count") == 3


def samples(metrics: Metrics) -> dict[str, float]:
    """Every sample of the cache by its name and labels."""
    start = "milepost:prefix_cache_"
    found = read_samples(metrics.render()).items()
    return {name.removeprefix(start): value for name, value in found if name.startswith(start)}


def test_the_cache_is_there_sample_by_sample() -> None:
    setup, metrics = Setup({}), Metrics()
    ScriptedCache().install(setup.scheduler)
    metrics.watch(setup.engine.stats)
    found = samples(metrics)
    assert found == {
        'pages{kind="state"}': 12,
        'pages{kind="kv"}': 30,
        'bytes{kind="state"}': 12_000,
        'bytes{kind="kv"}': 30_000,
        'snapshots{reason="turn"}': 3,
        'snapshots{reason="spare"}': 1,
        **{f'lost_tokens_total{{cause="{cause}"}}': count for cause, count in STATS.losses.items()},
        "queries_total": 5000,
        "hits_total": 3500,
        "requests_total": 10,
        "hit_requests_total": 7,
        "waits_total": 2,
        "snapshots_written_total": 9,
        "snapshots_skipped_total": 1,
        "snapshots_withdrawn_total": 3,
        "evicted_snapshots_total": 5,
        "evicted_kv_pages_total": 6,
        "copied_pages_total": 21,
        "resets_total": 8,
        'tier_snapshots{tier="host"}': 2,
        'tier_used_pages{tier="host"}': 40,
        'tier_pages{tier="host"}': 100,
        'tier_hits_total{tier="host"}': 900,
        'tier_stores_total{tier="host"}': 11,
        'tier_loads_total{tier="host"}': 13,
        'tier_failures_total{tier="host"}': 17,
        'tier_evicted_snapshots_total{tier="host"}': 19,
    }


def test_a_cache_that_is_off_has_no_samples() -> None:
    setup, metrics = Setup({}), Metrics()
    metrics.watch(setup.engine.stats)
    assert samples(metrics) == {}


def test_every_state_of_a_page_is_counted() -> None:
    setup, metrics = Setup({}, num_pages=64), Metrics()
    metrics.watch(setup.engine.stats)
    found = read_samples(metrics.render()).items()
    states = {name.split('"')[1]: value for name, value in found if name.startswith("milepost:pages{")}
    assert set(states) == set(PageCounts.__struct_fields__) - {"total"}
    assert sum(states.values()) == 64 - 1, "all but the dummy page"
