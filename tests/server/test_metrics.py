"""The server's own counters; what they say of whole requests is tested in test_life."""

from __future__ import annotations

import asyncio

import pytest

from milepost.engine.async_engine import AsyncEngine
from milepost.memory.page_states import PageCounts
from milepost.server import ServerConfig
from milepost.server.telemetry.histograms import Histogram
from milepost.server.telemetry.metrics import Metrics
from tests.engine.harness import Setup, ask
from tests.engine.scripted_cache import STATS, ScriptedCache
from tests.server.scripted_server import MODEL, ServedEngine, read_samples, serving


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


# vLLM's own (vllm/v1/metrics/loggers.py), as its dashboards ask for them.
VLLM = {
    "num_requests_running",
    "num_requests_waiting",
    "kv_cache_usage_perc",
    "prefix_cache_queries_total",
    "prefix_cache_hits_total",
    "num_preemptions_total",
    "prompt_tokens_total",
    "generation_tokens_total",
    *(f'request_success_total{{finished_reason="{reason}"}}' for reason in ("stop", "length", "abort")),
    *(
        f"{name}_{part}"
        for part in ("bucket", "count", "sum")
        for name in (
            "time_to_first_token_seconds",
            "inter_token_latency_seconds",
            "request_time_per_output_token_seconds",
            "e2e_request_latency_seconds",
            "request_queue_time_seconds",
            "request_prefill_time_seconds",
            "request_decode_time_seconds",
            "request_inference_time_seconds",
            "request_prompt_tokens",
            "request_generation_tokens",
            "request_max_num_generation_tokens",
            "request_params_n",
            "request_params_max_tokens",
            "iteration_tokens_total",
        )
    ),
}


def test_dashboards_made_for_vllm_find_their_metrics() -> None:
    with serving(ServerConfig(drain_seconds=5, metrics_prefix="vllm")) as served:
        served.call("/v1/completions", {"model": MODEL, "prompt": "a", "max_tokens": 3})
        text = served.call("/metrics").body.decode()
    found = {name.removeprefix("vllm:").partition('{le="')[0] for name in read_samples(text.encode())}
    assert found >= VLLM
    samples = [line for line in text.splitlines() if not line.startswith("#")]
    assert all(line.startswith("vllm:") for line in samples)
    assert all(f'model_name="{MODEL}"' in line and 'engine="0"' in line for line in samples)


def test_a_name_that_would_break_a_line() -> None:
    metrics, setup = Metrics(), Setup({})
    metrics.watch(setup.engine.stats, model_name='a"b\\c\nd')
    line = next(line for line in metrics.render().decode().splitlines() if "num_requests_running{" in line)
    assert r'model_name="a\"b\\c\nd"' in line


def test_where_the_time_of_a_request_goes() -> None:
    metrics, now = Metrics(), [100.0]
    setup = Setup({"a": "wxyz"}, token_budget=2, clock=lambda: now[0], observer=metrics)
    setup.engine.submit(ask("a", (1, 2, 3), max_tokens=3))
    for seconds in (1.0, 0.5, 0.25, 0.125):
        now[0] += seconds
        setup.engine.step()
    assert sample(metrics, "milepost:request_queue_time_seconds_sum") == 1.0
    assert sample(metrics, "milepost:request_prefill_time_seconds_sum") == 0.5
    assert sample(metrics, "milepost:request_decode_time_seconds_sum") == 0.375
    assert sample(metrics, "milepost:request_inference_time_seconds_sum") == 0.875
    assert sample(metrics, "milepost:e2e_request_latency_seconds_sum") == 1.875
    assert sample(metrics, "milepost:request_params_max_tokens_sum") == 3
    assert sample(metrics, "milepost:iteration_tokens_total_sum") == 5
    assert sample(metrics, "milepost:iteration_tokens_total_count") == 4


def test_who_never_ran_has_waited_only() -> None:
    metrics = Metrics()
    setup = Setup({"a": "wxyz"}, observer=metrics)
    setup.engine.submit(ask("a", (1,)))
    setup.engine.abort("a")
    assert sample(metrics, 'milepost:request_success_total{finished_reason="abort"}') == 1
    assert sample(metrics, "milepost:e2e_request_latency_seconds_count") == 1
    assert sample(metrics, "milepost:request_queue_time_seconds_count") == 0
    assert sample(metrics, "milepost:prompt_tokens_total") == 0


def test_labels_come_from_the_server_and_never_from_a_client(served: ServedEngine) -> None:
    def count() -> int:
        return len(read_samples(served.call("/metrics").body))

    def ask_for(name: str) -> None:
        body = {"model": MODEL, "prompt": "a", "max_tokens": 1, "user": name, "cache_salt": name}
        served.call("/v1/completions", body, headers={"X-Request-Id": name, "User-Agent": name})
        served.call("/v1/completions", {"model": name, "prompt": "a"})
        served.call("/v1/completions", {"model": MODEL, "prompt": "a", name: 1})
        served.call(f"/{name}")

    ask_for("first")
    served.wait_until_idle()
    before = count()
    for number in range(20):
        ask_for(f"name-{number}")
    served.wait_until_idle()
    assert count() == before
    prompts = served.metric('milepost:tenant_tokens_total{kind="prompt",tenant="anonymous"}')
    assert prompts == 21
    assert served.metric("milepost:request_params_n_count") == 21


def test_replies_of_a_prompt_are_counted(served: ServedEngine) -> None:
    served.call("/v1/completions", {"model": MODEL, "prompt": ["a", "b", "c"], "max_tokens": 2})
    served.wait_until_idle()
    assert served.metric("milepost:request_params_n_count") == 3
    assert served.metric("milepost:request_params_n_sum") == 3


def test_percentiles_of_buckets_are_cumulative() -> None:
    histogram = Histogram("x", "text", (1.0, 2.5))
    for value, count in ((0.5, 2), (1.0, 1), (2.0, 3), (9.0, 1)):
        histogram.add(value, count)
    (samples,) = [histogram.family("p", {"model_name": "m"}).samples]
    values = {sample.labels.get("le", sample.name): sample.value for sample in samples}
    assert values == {"1.0": 3, "2.5": 6, "+Inf": 7, "p:x_count": 7, "p:x_sum": 17.0}
