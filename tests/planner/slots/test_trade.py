"""A larger batch takes memory from the cache."""

from __future__ import annotations

import msgspec
import pytest

from milepost.errors import ConfigError, InputError
from milepost.planner.slots.trade import trade_of
from milepost.sim.models import find_model
from milepost.sim.replay.setup import parts_of
from milepost.sim.runs import RunSpec
from milepost.sim.traces.trace import Trace
from tests.sim.block_traces import random_trace

MODEL = "milepost-toy-k3"
SPEC = RunSpec(model=MODEL, hardware="cpu")


def crowd(seed: int) -> Trace:
    """Chats that all arrive at once."""
    trace = random_trace(seed, num_requests=80)
    at_once = [msgspec.structs.replace(request, arrival=0.0, num_output=20) for request in trace.requests]
    return msgspec.structs.replace(trace, requests=at_once)


def room(trace: Trace, sequences: int) -> int:
    """Bytes of so many of the longest sequences."""
    parts = parts_of(SPEC, trace, find_model(MODEL)[1])
    longest = max(request.num_prompt for request in trace.requests) + 20
    return sequences * (parts.state_bytes + parts.layout.blocks_for(longest) * parts.layout.page_bytes)


def test_a_larger_batch_keeps_less_and_draws_faster() -> None:
    trace = crowd(5)
    budget = room(trace, 12)
    small, large = (trade_of(trace, SPEC, batch_limit=limit, budget_bytes=budget) for limit in (1, 12))
    assert small.running_mean == 1.0
    assert 1 < large.running_mean <= 12
    assert large.kept_slots_mean < small.kept_slots_mean
    assert large.hit_rate < small.hit_rate
    assert large.output_tokens_per_second > small.output_tokens_per_second


def test_more_memory_keeps_more() -> None:
    trace = crowd(6)
    tight, wide = (trade_of(trace, SPEC, batch_limit=4, budget_bytes=room(trace, n)) for n in (5, 40))
    assert wide.kept_slots_mean > tight.kept_slots_mean
    assert wide.hit_rate > tight.hit_rate


def test_nonsense() -> None:
    trace = crowd(7)
    with pytest.raises(ConfigError, match=r"batch_limit must be at least 1\. Given: 0"):
        trade_of(trace, SPEC, batch_limit=0, budget_bytes=10**9)
    single = msgspec.structs.replace(
        trace, requests=[msgspec.structs.replace(request, num_output=1) for request in trace.requests]
    )
    with pytest.raises(InputError, match="drew two tokens"):
        trade_of(single, SPEC, batch_limit=4, budget_bytes=room(trace, 10))
