"""Synthetic results, and one that a run over a synthetic trace gave."""

from __future__ import annotations

import msgspec

from milepost.sim.replay.watch import depth_edges
from milepost.sim.runs import Percentiles, RunResult, Sample

__all__ = ["GB", "make_result", "make_sweep"]

GB = 10**9
INPUT = 144_793_823
EDGES = depth_edges(131_072)


def make_result(hit_rate: float = 0.25, **changes: object) -> RunResult:
    """A plausible result; `changes` replace fields."""
    hit = round(INPUT * hit_rate)
    lost = INPUT - hit
    losses = {"unseen": int(lost * 0.75), "evicted_state": int(lost * 0.15), "no_snapshot": 0, "cap": 12_031}
    losses["evicted_kv"] = lost - sum(losses.values())
    budget = changes.get("budget_bytes", 400 * GB)
    full = budget if isinstance(budget, int) else 4000 * GB
    written = [40 + 9 * i * (len(EDGES) - i) for i in range(len(EDGES))]
    slow = 3.0 * (1 - hit_rate)
    result = RunResult(
        trace="conversation",
        model="kimi-k3",
        policy="adaptive",
        eviction="value",
        layout="paged",
        preset="",
        trace_block=512,
        match_unit=512,
        block_size=512,
        budget_bytes=400 * GB,
        requests=12_031,
        refused=0,
        input_tokens=INPUT,
        hit_tokens=hit,
        hit_rate=hit / INPUT,
        snapshots_written=sum(written),
        snapshots_per_request=sum(written) / 12_031,
        snapshots_used=sum(written) // 3,
        state_bytes_mean=full * 0.62,
        kv_bytes_mean=full * 0.35,
        losses=losses,
        ttft=Percentiles(mean=slow, p50=slow * 0.7, p90=slow * 2.2, p99=slow * 4),
        tpot=Percentiles(mean=0.03, p50=0.029, p90=0.034, p99=0.05),
        goodput=3.1 * (1 + hit_rate),
        preemptions=0,
        hardware="8 x H200",
        queueing=False,
        seconds=3600.0,
        wall_seconds=4.2,
        samples=tuple(
            Sample(
                seconds=3600 * i / 120,
                state_bytes=int(full * 0.64 * min(1, i / 40) * (1 - 0.1 * (i % 7) / 7)),
                kv_bytes=int(full * 0.35 * min(1, i / 40)),
            )
            for i in range(1, 121)
        ),
        depth_edges=EDGES,
        written_by_depth=tuple(written),
        used_by_depth=tuple(count // (2 + i % 4) for i, count in enumerate(written)),
        notes=("The trace knows tokens by blocks of 512.",),
    )
    return msgspec.structs.replace(result, **changes)


def make_sweep() -> list[RunResult]:
    """Six policies at four budgets, with hit rates such as the published ones."""
    rates = {
        ("prompt-tail", "lru", "vllm"): (0.044, 0.046, 0.055, 0.23),
        ("turns+branch", "lru", "sglang"): (0.137, 0.220, 0.290, 0.359),
        ("turns+branch", "lru", ""): (0.140, 0.227, 0.301, 0.359),
        ("turns+branch", "value", ""): (0.162, 0.241, 0.313, 0.359),
        ("every(2048)", "value", ""): (0.081, 0.112, 0.171, 0.321),
        ("adaptive", "value", ""): (0.201, 0.262, 0.322, 0.362),
    }
    return [
        make_result(rate, policy=policy, eviction=eviction, preset=preset, budget_bytes=budget)
        for (policy, eviction, preset), row in rates.items()
        for rate, budget in zip(row, (200 * GB, 400 * GB, 800 * GB, None), strict=True)
    ]
