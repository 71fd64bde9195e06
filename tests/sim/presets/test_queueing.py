"""Presets when requests wait for each other and share steps; and eviction that need not be asked again."""

from __future__ import annotations

import msgspec
import pytest

from milepost.prefix.eviction import Candidate, Lru
from milepost.sim.cost.step_work import StepWork
from milepost.sim.presets import find_preset
from milepost.sim.presets.slots import SlotCache
from milepost.sim.replay.setup import parts_of
from milepost.sim.replay.simulation import Simulation
from milepost.sim.runs import RequestOutcome, RunSpec
from tests.model_specs import SMALL
from tests.sim.block_traces import random_trace


class SlowCost:
    """Four requests arrive while one runs."""

    name = "slow"

    def seconds(self, work: StepWork) -> float:
        return 1.0 + work.tokens / 1000


@pytest.mark.parametrize("name", ["vllm", "sglang", "marconi", "stateless"])
def test_all_are_served_and_what_is_left_adds_up(name: str) -> None:
    trace = random_trace(4, 100)
    spec = RunSpec(preset=name, budget_bytes=250_000, queueing=True, max_num_seqs=8)
    preset = find_preset(name)
    assert preset is not None
    simulation = Simulation(spec, trace, preset.parts(spec, trace, SMALL), SlowCost())
    result = simulation.run()
    assert (result.requests, result.refused) == (100, 0)
    assert 0 < result.hit_tokens < result.input_tokens
    cache, pool = simulation._setup.cache, simulation._setup.parts.pool
    cache.check()
    pool.check()
    assert pool.num_free + pool.num_evictable == pool.num_usable
    if isinstance(cache, SlotCache):
        assert not cache._running


def test_as_many_run_as_there_are_slots_for() -> None:
    trace = random_trace(4, 40)
    preset = find_preset("sglang")
    assert preset is not None
    spec = RunSpec(preset="sglang", budget_bytes=250_000, queueing=True)
    parts = preset.parts(spec, trace, SMALL)
    simulation = Simulation(spec, trace, parts, SlowCost())
    most = 0

    def watch(outcome: RequestOutcome) -> None:
        nonlocal most
        most = max(most, simulation._setup.scheduler.stats().running)
        assert outcome.hit_tokens < outcome.prompt_tokens

    simulation._recorder._on_request = watch
    simulation.run()
    assert 1 < most <= parts.max_num_seqs


class Ordered(Lru):
    """LRU in which no two snapshots are worth the same: of one moment's the shallower one goes first."""

    def worth(self, candidate: Candidate, now: float) -> float:
        return super().worth(candidate, now) + 1e-6 * candidate.position


class AskedAgain(Ordered):
    """The same, asked anew every second, as policies are whose worths change with time."""

    steady = False


@pytest.mark.parametrize("seed", range(4))
def test_a_worth_that_changes_with_use_alone_need_not_be_asked_again(seed: int) -> None:
    trace = random_trace(seed, 250)
    spec = RunSpec(policy="branch", eviction="lru", budget_bytes=120_000)
    hits: list[list[int]] = [[], []]
    for eviction, found in zip((Ordered(), AskedAgain()), hits, strict=True):
        parts = msgspec.structs.replace(parts_of(spec, trace, SMALL), eviction=eviction)

        def note(outcome: RequestOutcome, found: list[int] = found) -> None:
            found.append(outcome.hit_tokens)

        Simulation(spec, trace, parts, None, note).run()
    assert hits[0] == hits[1]
    assert sum(hits[0])
