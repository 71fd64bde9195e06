"""The oracle: exact where memory is unlimited, better than those that don't know the future elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from milepost.errors import ConfigError
from milepost.prefix.eviction import parse_eviction
from milepost.prefix.policies import parse_policy
from milepost.sim.clairvoyant.future_uses import FutureUses
from milepost.sim.clairvoyant.oracle import CLAIRVOYANT, clairvoyant_parts
from milepost.sim.models import find_model
from milepost.sim.replay.simulation import Simulation
from milepost.sim.runs import RunResult, RunSpec
from milepost.sim.traces.reading import read_trace
from milepost.sim.traces.trace import Trace
from tests.model_specs import SMALL
from tests.sim.block_traces import block_trace, expected_hits, random_trace
from tests.sim.replay.test_published import CLAUDE_CODE, FOLDER, MOONCAKE, SAMPLES

BLOCK = 64


def replay(
    trace: Trace,
    policy: str = CLAIRVOYANT,
    eviction: str = CLAIRVOYANT,
    budget: int | None = None,
    *,
    queueing: bool = False,
) -> RunResult:
    spec = RunSpec(model="small", policy=policy, eviction=eviction, budget_bytes=budget, queueing=queueing)
    return Simulation(spec, trace, clairvoyant_parts(spec, trace, SMALL)).run()


def sizes() -> tuple[int, int]:
    """Bytes of a page, and pages of a state."""
    spec = RunSpec(model="small", policy="none", budget_bytes=1 << 24)
    layout = clairvoyant_parts(spec, random_trace(0), SMALL).layout
    return layout.page_bytes, layout.pages_per_state


@pytest.mark.parametrize("seed", range(8))
def test_without_a_limit_it_hits_all_that_could_be_hit(seed: int) -> None:
    trace = random_trace(seed)
    bound, _ = expected_hits(trace, lambda request, _shared: range(BLOCK, request.num_prompt + 1, BLOCK))
    result = replay(trace)
    assert result.hit_tokens == bound == sum(FutureUses(trace).resumes)
    assert result.snapshots_used == result.snapshots_written  # and leaves none in vain
    assert (result.policy, result.eviction) == (CLAIRVOYANT, CLAIRVOYANT)
    assert "bound" in " ".join(result.notes)


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.name)
def test_on_samples_of_public_traces_too(path: Path) -> None:
    trace = read_trace(path)
    size = trace.block_size
    bound, _ = expected_hits(trace, lambda request, _shared: range(size, request.num_prompt + 1, size))
    assert replay(trace).hit_tokens == bound > 0


@pytest.mark.slow
@pytest.mark.skipif(FOLDER is None, reason="MILEPOST_TRACES names no folder with the whole traces")
@pytest.mark.parametrize(("name", "bound"), [(MOONCAKE, 37.34), (CLAUDE_CODE, 96.31)])
def test_whole_traces_reach_the_published_bound(name: str, bound: float) -> None:
    assert FOLDER is not None
    trace = read_trace(Path(FOLDER) / name)
    spec = RunSpec(policy=CLAIRVOYANT, eviction=CLAIRVOYANT)
    _, model = find_model(spec.model)
    result = Simulation(spec, trace, clairvoyant_parts(spec, trace, model)).run()
    assert round(100 * result.hit_rate, 2) == bound
    assert result.hit_tokens == sum(FutureUses(trace).resumes)


def test_with_a_queue_it_hits_no_more_than_could_be_hit() -> None:
    trace = random_trace(3)
    result = replay(trace, queueing=True)
    assert 0 < result.hit_tokens <= sum(FutureUses(trace).resumes)
    assert result.requests == len(trace.requests)


@pytest.mark.parametrize("states", [2, 4, 8])
def test_under_a_budget_it_beats_those_that_do_not_know(states: int) -> None:
    """Over some traces together; on a single one luck may beat a rule that is only nearly the best."""
    page_bytes, state_pages = sizes()
    budget = page_bytes * (states * state_pages + 120)
    hits = {
        (policy, eviction): sum(
            replay(random_trace(seed), policy, eviction, budget).hit_tokens for seed in range(5)
        )
        for policy in (CLAIRVOYANT, "turns+branch")
        for eviction in (CLAIRVOYANT, "value", "lru")
    }
    for policy in (CLAIRVOYANT, "turns+branch"):
        assert hits[policy, CLAIRVOYANT] > max(hits[policy, "value"], hits[policy, "lru"])
    assert hits[CLAIRVOYANT, CLAIRVOYANT] == max(hits.values())


def test_it_keeps_what_is_used_soon_and_not_what_was_used_last() -> None:
    """Two conversations that come back at once, and many that never do, in memory for two."""
    page_bytes, state_pages = sizes()
    once = [([100 * n + k for k in range(4)], 256) for n in range(2, 12)]
    back = [([0, 1, 2, 3, 9], 320), ([100, 101, 102, 103, 109], 320)]
    trace = block_trace([([0, 1, 2, 3], 256), ([100, 101, 102, 103], 256), *once, *back])
    budget = page_bytes * (4 * state_pages + 2 * 5 + 6)
    assert replay(trace, CLAIRVOYANT, CLAIRVOYANT, budget).hit_tokens == 512
    assert replay(trace, "turns", CLAIRVOYANT, budget).hit_tokens == 512
    assert replay(trace, "turns", "lru", budget).hit_tokens == 0


def test_a_snapshot_that_a_deeper_one_stands_in_for_waits_for_those_who_leave_before() -> None:
    """The first prompt's end is passed by its next turn, but used by the third request alone."""
    trace = block_trace(
        [
            ([0, 1, 2], 192),
            ([0, 1, 2, 3, 4], 320),
            ([0, 1, 2, 3, 4, 5], 384),
            ([0, 1, 2, 8], 256),
        ]
    )
    result = replay(trace)
    assert (result.snapshots_written, result.snapshots_used) == (2, 2)  # at 192, used twice, and 320
    assert result.hit_tokens == 192 + 320 + 192


def test_the_names_are_known_to_the_simulator_alone() -> None:
    with pytest.raises(ConfigError, match="snapshot_policy"):
        parse_policy(CLAIRVOYANT)
    with pytest.raises(ConfigError, match="eviction"):
        parse_eviction(CLAIRVOYANT)


def test_specs_without_it_are_as_ever() -> None:
    trace = random_trace(1)
    result = replay(trace, "turns+branch", "value", 1 << 24)
    assert (result.policy, result.eviction, result.notes) == ("turns+branch", "value", trace.notes)


def test_places_are_whole_blocks_where_a_later_prompt_fills_a_block_that_was_partly_filled() -> None:
    trace = block_trace([(range(2), 100), (range(3), 192), (range(2), 128)])
    spec = RunSpec(policy=CLAIRVOYANT)
    result = Simulation(spec, trace, clairvoyant_parts(spec, trace, SMALL)).run()
    assert (result.hit_tokens, result.snapshots_written) == (64 + 64, 1)
