"""Runs on the lcm layout: the scheduler lives with large pages, and what is lost to them shows."""

from __future__ import annotations

import msgspec
import pytest

from milepost.errors import ConfigError
from milepost.memory.lcm import lcm_layout
from milepost.memory.lcm_pool import LcmPool
from milepost.memory.pool import PagePool
from milepost.sim.replay.setup import parts_of
from milepost.sim.replay.simulation import Simulation
from milepost.sim.runs import RequestOutcome, RunResult, RunSpec
from milepost.sim.traces.trace import Trace
from tests.model_specs import SMALL
from tests.sim.block_traces import random_trace

BLOCK = 4
LAYOUT = lcm_layout(SMALL, block_size=BLOCK)


def run(trace: Trace, spec: RunSpec) -> RunResult:
    """The result; pool and index are proven after each eighth request."""

    def prove(outcome: RequestOutcome) -> None:
        assert outcome.hit_tokens < outcome.prompt_tokens
        if int(outcome.request_id) % 8 == 0:
            simulation._setup.parts.pool.check()
            simulation._setup.cache.check()

    simulation = Simulation(spec, trace, parts_of(spec, trace, SMALL), None, prove)
    result = simulation.run()
    pool = simulation._setup.parts.pool
    assert isinstance(pool, LcmPool)
    assert pool.num_free + pool.num_evictable == pool.num_usable
    return result


def test_a_large_page_holds_several_blocks_here() -> None:
    assert LAYOUT.pages_per_large > 2


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("queueing", [False, True])
def test_every_request_is_served_however_little_fits(seed: int, *, queueing: bool) -> None:
    trace = random_trace(seed, 50)
    longest = max(request.num_prompt + request.num_output for request in trace.requests)
    blocks = -(-longest // BLOCK)
    least = LAYOUT.large_per_state + -(-blocks // LAYOUT.pages_per_large)
    for more in (0, 3, 20):
        budget = (least + more) * LAYOUT.large_bytes
        spec = RunSpec(layout="lcm", block_size=BLOCK, budget_bytes=budget, queueing=queueing)
        result = run(trace, spec)
        assert (result.requests, result.refused) == (50, 0)


@pytest.mark.parametrize("seed", range(3))
def test_large_pages_cost_hits_that_small_ones_keep(seed: int) -> None:
    trace = random_trace(seed, 200)
    spec = RunSpec(
        layout="lcm",
        block_size=BLOCK,
        policy="turns+branch",
        eviction="lru",
        budget_bytes=60 * LAYOUT.large_bytes,
    )
    large = run(trace, spec)
    parts = parts_of(spec, trace, SMALL)
    same = msgspec.structs.replace(parts, pool=PagePool(parts.pool.num_pages))  # and each page by itself
    small = Simulation(spec, trace, same).run()
    assert 0 < large.hit_tokens < small.hit_tokens


def test_without_a_limit_the_layout_makes_no_difference() -> None:
    trace = random_trace(1)
    results = []
    for layout in ("lcm", "paged"):
        spec = RunSpec(layout=layout, policy="turns+branch", eviction="lru")
        results.append(Simulation(spec, trace, parts_of(spec, trace, SMALL)).run())
    assert results[0].hit_tokens == results[1].hit_tokens


def test_a_budget_below_a_state_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"large pages of one state and one more, [\d,]+ bytes. Given: 1"):
        parts_of(RunSpec(layout="lcm", budget_bytes=1), random_trace(0, 3), SMALL)
