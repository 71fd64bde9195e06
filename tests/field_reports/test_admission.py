"""Group E: memory and admission. What can be computed is computed, and nothing but memory is ever short."""

from __future__ import annotations

import random

import pytest
import torch

from milepost.config import EngineConfig
from milepost.errors import InvariantError
from milepost.memory.capacity import max_sequences, sequence_pages
from milepost.memory.layout import paged_layout
from milepost.memory.sizing import resolve
from milepost.runtime.arena import Arena
from milepost.runtime.inputs import InputBuffers
from milepost.types import FinishReason, Row
from tests.field_reports.scenes import serve, text
from tests.model_specs import SMALL
from tests.scheduler.harness import SmallLayout, TierOptions, World, cache_config, prompt_of, request


def test_r69_the_length_that_is_reported_is_the_length_that_can_be_served() -> None:
    """R69: the reported limit is filled to its last token by one request, and one page less would not do."""
    layout = paged_layout(SMALL, block_size=16)
    config = EngineConfig(model="m", memory=60 * layout.page_bytes, block_size=16)
    resolved = resolve(config, SMALL, layout)
    longest = resolved.max_model_len
    assert sequence_pages(layout, longest - 1) == resolved.num_pages - 1
    world = World(
        num_pages=resolved.num_pages,
        block_size=layout.block_size,
        pages_per_state=layout.pages_per_state,
        max_model_len=longest,
        cache=cache_config(),
    )
    assert layout.pages_per_block == 1
    assert serve(world, "longest", prompt_of(longest - 5), 5) == 0
    assert serve(world, "again", prompt_of(longest - 5), 5) >= 0
    assert world.scheduler.stats().preemptions == 0


@pytest.mark.parametrize("tokens", [5, 16, 33])
def test_r69_as_many_run_at_once_as_capacity_says_with_a_full_cache(tokens: int) -> None:
    """R69: cached pages count as free, to the page."""
    layout = SmallLayout(block_size=4, pages_per_state=2)
    world = World(num_pages=60, token_budget=1000, max_num_seqs=64, cache=cache_config(match_unit=4))
    for seed in range(5):
        serve(world, f"filler {seed}", prompt_of(40, seed))
    world.add(*(request(f"{i}", text(i, tokens, 2), 1) for i in range(40)))
    batch = world.schedule()
    assert batch is not None
    assert len(batch.rows) == max_sequences(layout, 60, tokens)
    world.finish_step(batch)
    world.run()


@pytest.mark.parametrize("missing", [0, 1])
@pytest.mark.parametrize("resend", [False, True])
def test_r70_a_request_at_the_ceiling_is_served_or_refused(missing: int, resend: bool) -> None:
    """R70: a pool of the need, and of one page less; a hit wants the page for its copy besides."""
    need = sequence_pages(SmallLayout(), 30 + 3)
    world = World(num_pages=1 + need - missing, token_budget=5, cache=cache_config(match_unit=2))
    for i in range(1 + resend):
        world.add(request(f"{i}", prompt_of(30), 4))
        world.run(limit=60)
        reason = world.reason(f"{i}")
        assert reason is FinishReason.LENGTH
        drawn = world.output[f"{i}"]
        assert drawn == world.expected(f"{i}", len(drawn))
        assert len(drawn) == (4 if not missing else 3)


@pytest.mark.parametrize("budget", [1, 7, 16, 33])
def test_r71_a_budget_below_a_block_is_used_up_by_prompts_that_share_it(budget: int) -> None:
    """R71: blocks of 16, two prompts share the budget, their messages end inside blocks; no step is empty."""
    world = World(
        num_pages=120,
        block_size=16,
        token_budget=budget,
        cache=cache_config(match_unit=4, snapshot_policy="turns"),
    )
    world.add(
        request("a", prompt_of(61), 1, message_ends=[5, 19, 50]),
        request("b", prompt_of(47, 1), 1, message_ends=[1, 31, 46]),
    )
    for _ in range((61 + 47) // budget):
        batch = world.step()
        assert batch is not None
        assert batch.num_tokens == budget
    world.run(limit=3)
    assert serve(world, "from a", (*prompt_of(50), 1 - prompt_of(51)[50])) == 50
    assert serve(world, "from b", (*prompt_of(31, 1), 1 - prompt_of(32, 1)[31])) == 31


def test_r72_a_snapshot_that_finds_no_room_is_left_out_and_the_request_goes_on() -> None:
    """R72: every page is taken by requests that run; the states they would leave are skipped, and counted."""
    need = sequence_pages(SmallLayout(), 12 + 7)
    world = World(
        num_pages=1 + 3 * need, token_budget=64, cache=cache_config(match_unit=4, snapshot_policy="every(3)")
    )
    world.add(*(request(f"{i}", prompt_of(12, i), 8) for i in range(3)))
    world.run()
    for i in range(3):
        assert world.output[f"{i}"] == world.expected(f"{i}", 8)
    stats = world.scheduler.cache_stats()
    assert stats is not None
    assert stats.snapshots_skipped > 0
    assert world.scheduler.stats().preemptions == 0


def test_r72_what_is_cached_is_room_for_who_comes() -> None:
    """R72: nothing is free and everything evictable: a prompt as large as the pool is admitted at once."""
    world = World(num_pages=1 + 32, token_budget=200, cache=cache_config(match_unit=4))
    for seed in range(20):
        serve(world, f"{seed}", prompt_of(17, seed))
    assert world.pool.num_free < 6
    world.add(request("large", text("large", 119, 2), 1))
    batch = world.schedule()
    assert batch is not None
    assert batch.num_tokens == 119
    world.finish_step(batch)
    world.run()


def test_r73_states_give_way_to_kv_and_kv_to_states() -> None:
    """R73: one pool: full of one kind it still serves what needs the other, with nothing set aside."""
    states = World(
        num_pages=1 + 42, token_budget=200, cache=cache_config(match_unit=4, snapshot_policy="every(1)")
    )
    serve(states, "short", prompt_of(16))
    stats = states.scheduler.cache_stats()
    assert stats is not None
    assert stats.state_pages > 30
    serve(states, "long", text("long", 150, 2))

    kv = World(
        num_pages=1 + 42,
        token_budget=200,
        max_num_seqs=14,
        cache=cache_config(match_unit=4, snapshot_policy="last"),
    )
    serve(kv, "long", prompt_of(140))
    stats = kv.scheduler.cache_stats()
    assert stats is not None
    assert stats.kv_pages > 30
    kv.add(*(request(f"{i}", (i % 2, i // 2 % 2, i // 4 % 2, i // 8), 1) for i in range(14)))
    batch = kv.schedule()
    assert batch is not None
    assert len(batch.rows) == 14
    kv.finish_step(batch)
    kv.run()


@pytest.mark.parametrize("point", range(12))
def test_r76_an_abort_at_any_point_of_a_hits_life_leaves_nothing_owned(point: int) -> None:
    """R76: waiting, matched with copies planned, computing, decoding; then only the cache uses pages."""
    world = World(num_pages=60, token_budget=4, cache=cache_config(match_unit=3, snapshot_policy="every(5)"))
    serve(world, "first", prompt_of(11))
    world.add(request("hit", prompt_of(17), 4))
    batch = None
    for at in range(point):
        if at % 2 == 0:
            batch = world.schedule()
        elif batch is not None:
            world.finish_step(batch)
            batch = None
    world.abort("hit")
    if batch is not None:
        world.finish_step(batch)
    world.run()  # ends with the proof that nobody owns or holds anything
    counts = world.pool.counts()
    stats = world.scheduler.cache_stats()
    assert stats is not None
    assert counts.cached == stats.state_pages + stats.kv_pages
    assert counts.free + counts.cached == world.pool.num_usable


def test_r77_no_tier_outgrows_its_bytes_and_a_reset_gives_them_back() -> None:
    """R77: snapshots that leave the arena for weeks: the host never holds more than it was given."""
    world = World(
        num_pages=1 + 20,
        token_budget=32,
        cache=cache_config(match_unit=4),
        tiers=TierOptions(host_pages=1 + 24, disk_pages=1 + 30, steps_of=lambda _: 2),
    )
    most = 0
    for i in range(40):
        serve(world, f"{i}", text(i % 13, 25, 2))
        stats = world.scheduler.cache_stats()
        assert stats is not None
        assert all(tier.used_pages <= tier.total_pages for tier in stats.tiers)
        most = max(most, stats.tiers[0].used_pages)
    assert most > 18, "the host was never full"
    world.scheduler.reset_cache()
    world.run()
    stats = world.scheduler.cache_stats()
    assert stats is not None
    assert [tier.used_pages for tier in stats.tiers] == [0, 0]
    assert (stats.state_pages, stats.kv_pages) == (0, 0)


@pytest.mark.parametrize("page", [-1, 9, 1 << 40])
@pytest.mark.parametrize("table", ["state", "block"])
def test_r78_a_page_that_does_not_exist_is_an_error_and_not_another_page(page: int, table: str) -> None:
    """R78: numbers beyond the memory are refused before any tensor is indexed; nothing is clipped."""
    layout = paged_layout(SMALL, block_size=16)
    arena = Arena(layout, 9, kv_dtype=torch.bfloat16, conv_dtype=torch.bfloat16)
    state = [*range(1, 1 + layout.pages_per_state)]
    block = [8]
    (state if table == "state" else block)[-1] = page
    row = Row(request_id="a", start=0, token_ids=(1, 2), block_table=block, state_table=state, samples=True)
    with pytest.raises(InvariantError):
        InputBuffers(arena).fill([row])


@pytest.mark.parametrize("seed", range(4))
def test_r79_who_was_preempted_goes_on_from_a_snapshot_or_from_zero(seed: int) -> None:
    """R79: preempted at random moments, with a cache; each resume starts where a state is its own."""
    draw = random.Random(seed)
    world = World(num_pages=120, token_budget=9, cache=cache_config(match_unit=3, snapshot_policy="last"))
    world.add(request("a", prompt_of(11), 12), request("b", prompt_of(7, 1), 12))
    preempted = 0
    while world.scheduler.has_work:
        running = world.scheduler._roster.running
        if running and draw.random() < 0.3:
            world.scheduler._turns.preempt(draw.choice(running), keep=draw.random() < 0.5)
            preempted += 1
        world.step()
    assert preempted >= 3
    for name in "ab":
        assert world.output[name] == world.expected(name, 12)
    starts = [row.start for batch in world.batches for row in batch.rows if row.request_id == "a"]
    assert len(starts) > 12
    world.check_idle()
