"""Lives over a prefix cache, step by step: what is copied, kept, resumed, scrubbed and given back."""

from __future__ import annotations

import pytest

from milepost.memory.capacity import sequence_pages
from milepost.prefix.cache import Match
from milepost.prefix.plan import Reason
from milepost.prefix.reports import CacheStats
from milepost.types import Batch, FinishReason, Row, Tier, Transfer
from tests.scheduler.harness import SmallLayout, TierOptions, World, cache_config, prompt_of, request

PROMPT = prompt_of(10)


def world_of(policy: str = "prompt-tail+last", **options: object) -> World:
    settings: dict[str, object] = {"num_pages": 64, "token_budget": 64, **options}
    return World(cache=cache_config(match_unit=4, snapshot_policy=policy), **settings)  # type: ignore[arg-type]


def stats(world: World) -> CacheStats:
    found = world.scheduler.cache_stats()
    assert found is not None
    return found


def standing(world: World) -> dict[int, str]:
    assert world.cache is not None
    return {one.position: one.reason.value for one in world.cache.index.snapshots}


def row_of(batch: Batch | None, request_id: str) -> Row:
    assert batch is not None
    return next(row for row in batch.rows if row.request_id == request_id)


def serve(world: World, request_id: str, prompt: tuple[int, ...], max_tokens: int = 1) -> int:
    world.add(request(request_id, prompt, max_tokens))
    world.run()
    assert world.output[request_id] == world.expected(request_id, max_tokens)
    return world.finished[request_id].usage.cached_tokens


def test_the_last_snapshot_is_the_live_state_s_own_pages() -> None:
    world = world_of("last")
    world.add(request("a", PROMPT, 1))
    batch = world.step()
    row = row_of(batch, "a")
    assert world.cache is not None
    (snapshot,) = world.cache.index.snapshots
    assert (snapshot.position, snapshot.pages) == (10, tuple(row.state_table))
    assert world.cache.index.block_table(snapshot.node) == list(row.block_table)
    assert stats(world).copied_pages == 0
    assert world.pool.counts().cached == 2 + 3


def test_a_hit_shares_whole_blocks_and_copies_the_state_and_the_block_begun() -> None:
    world = world_of("last")
    world.add(request("a", PROMPT, 1))
    source = row_of(world.step(), "a")
    first_blocks, first_state = list(source.block_table), list(source.state_table)
    world.add(request("b", (*PROMPT, 1, 0), 1))
    batch = world.schedule()
    row = row_of(batch, "b")
    assert batch is not None
    assert row.start == 10
    assert list(row.block_table)[:2] == first_blocks[:2]
    assert row.block_table[2] not in first_blocks
    copies = [*zip(first_state, row.state_table, strict=True), (first_blocks[2], row.block_table[2])]
    assert sorted(batch.copies) == sorted(copies)
    assert all(world.pool.holds(page) for page, _ in copies), "until the copies have run"
    world.finish_step(batch)
    assert not any(world.pool.holds(page) for page in first_state)
    assert stats(world).copied_pages == 3


def test_a_hit_at_a_block_s_end_copies_the_state_alone() -> None:
    world = world_of("last")
    serve(world, "a", PROMPT[:8])
    world.add(request("b", PROMPT, 1))
    batch = world.schedule()
    assert batch is not None
    assert len(batch.copies) == 2


def test_a_preempted_request_goes_on_where_it_stood() -> None:
    """What it has drawn and computed is not computed again: R79."""
    world = world_of("none", num_pages=1 + 11)
    world.add(request("a", PROMPT, 6), request("b", prompt_of(9, 1), 6))
    world.run()
    assert world.finished["b"].usage.num_preemptions == 1
    assert world.output == {"a": world.expected("a", 6), "b": world.expected("b", 6)}
    assert world.scheduler.stats().computed_tokens == (10 + 5) + (9 + 5)
    assert standing(world) == {12: "preempted"}
    starts = [row.start for batch in world.batches for row in batch.rows if row.request_id == "b"]
    assert starts == [0, 9, 10, 11, 12, 13]


def test_message_ends_that_the_model_makes_get_snapshots() -> None:
    """With ``ignore_eos`` a reply goes on behind a stop token; the next turn may go on from there."""
    for reusable, wanted in ((True, True), (False, False)):
        world = world_of("turns", stop_token_ids=(1,))
        world.add(request("a", PROMPT, 12, ignore_eos=True, output_reusable=reusable))
        world.run()
        drawn = world.output["a"]
        ends = [10 + i + 1 for i, token in enumerate(drawn) if token == 1 and i + 1 < len(drawn)]
        assert len(ends) >= 2
        assert standing(world) == (dict.fromkeys(ends, "turn") if wanted else {})


def test_r98_an_output_that_is_stripped_is_not_cached_beyond_the_prompt() -> None:
    """R98: with the default policy neither KV nor states of it stay."""
    for reusable in (True, False):
        world = world_of("adaptive(spare=2)")
        world.add(request("a", PROMPT, 12, output_reusable=reusable, message_ends=[7]))
        world.run()
        deepest = world.scheduler.explain((*PROMPT, *world.output["a"])).matched_tokens
        assert deepest == (21 if reusable else 10)
        assert max(standing(world)) == deepest
    assert standing(world)[7] == "turn"


def test_a_failure_scrubs_behind_what_is_cached_and_nothing_else() -> None:
    world = world_of("none", token_budget=6)
    world.add(request("a", PROMPT, 1))
    world.step()
    batch = world.schedule()
    world.executor.fail_request("a")
    row = row_of(batch, "a")
    page = row.block_table[1]
    rest = {*row.state_table, *row.block_table[2:]}
    assert batch is not None
    world.finish_step(batch)
    assert world.reason("a") is FinishReason.ERROR
    # The unit up to 4 is cached in the first block; the second block's is not published.
    assert world.pool.references(page) == 0
    world.add(request("b", prompt_of(3, 1), 1))
    scrubbing = world.schedule()
    assert scrubbing is not None
    assert set(scrubbing.scrubs) == rest | {page}
    assert scrubbing.tail_scrubs == ()


def test_a_failure_inside_a_block_that_is_cached_in_part() -> None:
    world = World(
        block_size=8, token_budget=6, cache=cache_config(match_unit=2, snapshot_policy="none"), num_pages=40
    )
    world.add(request("a", PROMPT, 1))
    first = row_of(world.step(), "a")
    world.executor.fail_request("a")
    world.step()
    world.add(request("b", prompt_of(3, 1), 1))
    batch = world.schedule()
    assert batch is not None
    assert batch.tail_scrubs == ((first.block_table[0], 6),)
    assert first.block_table[0] not in batch.scrubs
    world.finish_step(batch)
    world.run()
    assert world.scheduler.explain(PROMPT).matched_tokens == 6


def test_a_snapshot_that_is_not_finite_is_scrubbed_and_not_published() -> None:
    """R50: only its own pages; the request itself goes on."""
    world = world_of("every(5)")
    world.add(request("a", PROMPT, 2))
    batch = world.schedule()
    ordered = row_of(batch, "a").snapshots
    assert [order.position for order in ordered] == [5, 10]
    world.executor.fail_snapshot("a")
    assert batch is not None
    world.finish_step(batch)
    assert standing(world) == {10: "period"}
    following = world.schedule()
    assert following is not None
    assert set(ordered[0].pages) == set(following.scrubs)
    world.finish_step(following)
    world.run()
    assert world.output["a"] == world.expected("a", 2)
    assert (stats(world).snapshots_written, stats(world).snapshots_withdrawn) == (1, 1)


def test_an_abort_in_a_step_withdraws_what_the_step_would_have_left() -> None:
    """R32: nothing of it is published, and every page is free when the step is back."""
    world = world_of("every(5)")
    world.add(request("a", PROMPT, 2))
    batch = world.schedule()
    world.abort("a")
    assert batch is not None
    world.finish_step(batch)
    assert standing(world) == {}
    assert world.pool.num_free == world.pool.num_usable
    assert stats(world).snapshots_withdrawn == 2


@pytest.mark.parametrize("policy", ["adaptive", "every(1)", "last", "prompt-tail"])
@pytest.mark.parametrize("length", [5, 8, 9])
def test_a_pool_of_just_what_one_needs_serves_everybody_in_turn(policy: str, length: int) -> None:
    """R70: a hit that doesn't fit beside its snapshot is done without, and the life is private at last."""
    need = sequence_pages(SmallLayout(), length + 3)
    world = world_of(policy, num_pages=1 + need, token_budget=3)
    for turn in range(3):
        world.add(request(f"a{turn}", prompt_of(length), 4), request(f"b{turn}", prompt_of(length, 1), 4))
        world.run()
    for request_id in world.requests:
        assert world.output[request_id] == world.expected(request_id, 4)


def test_one_that_shares_cached_blocks_and_outgrows_the_pool_becomes_private() -> None:
    """It runs alone, yet its source's state lies beside its own: its next life does without the cache."""
    layout = SmallLayout()
    need = sequence_pages(layout, 30)
    world = world_of("last", num_pages=1 + need)
    serve(world, "a", PROMPT[:8])
    world.add(request("b", (*PROMPT, 1), 20))
    world.run()
    assert world.output["b"] == world.expected("b", 20)
    assert world.finished["b"].usage.cached_tokens == 8


def test_snapshots_are_left_out_when_there_is_no_memory() -> None:
    """R72: a snapshot is optional; nobody waits for one."""
    need = sequence_pages(SmallLayout(), 10)
    world = world_of("every(2)", num_pages=1 + need + 2)
    serve(world, "a", PROMPT)
    assert stats(world).snapshots_skipped == 4
    assert len(standing(world)) == 1


def test_no_spare_takes_what_a_planned_snapshot_needs() -> None:
    """Both are ordered in one step, and what a step writes can't be evicted."""
    world = world_of("adaptive(spare=4)", num_pages=1 + 16)
    world.add(request("a", prompt_of(17), 1, output_reusable=False))
    world.run()
    assert standing(world) == {4: "spare", 8: "spare", 12: "spare", 16: "prompt_tail"}
    world.add(request("b", prompt_of(17, 1), 1, output_reusable=False))
    world.run()
    by_reason = stats(world).snapshots_by_reason
    assert (by_reason["prompt_tail"], by_reason["spare"]) == (2, 0)
    assert (stats(world).evicted_snapshots, stats(world).snapshots_skipped) == (3, 3)


def test_spares_take_what_is_free_and_then_each_other_s_place() -> None:
    world = world_of("adaptive(spare=4)", num_pages=1 + 33)
    prompts = [prompt_of(17, seed) for seed in range(3)]
    for name, prompt in zip("abc", prompts, strict=True):
        serve(world, name, prompt)
    by_reason = stats(world).snapshots_by_reason
    assert (by_reason["prompt_tail"], by_reason["last"], by_reason["spare"]) == (3, 3, 3)
    # The newest prompt takes them, but for 12 none on a coarser grid goes: an older prompt keeps its 8.
    newest = world.scheduler.explain(prompts[2]).snapshots
    assert [one.position for one in newest if one.reason == "spare"] == [4, 8]
    assert world.cache is not None
    spares = [one.position for one in world.cache.index.snapshots if one.reason is Reason.SPARE]
    assert sorted(spares) == [4, 8, 8]


def evicted(world: World, *positions: int) -> None:
    """Give snapshots up to the next tier, and all KV that only they needed."""
    assert world.cache is not None
    assert world.cache.tiers is not None
    for snapshot in [*world.cache.index.snapshots]:
        if snapshot.position in positions:
            world.cache.tiers.demote(snapshot)
            world.cache.evictor.drop(snapshot)
    while world.cache.index.drop_bare() is not None:
        pass
    while world.scheduler.has_transfers:
        world.step()


def tiered(steps: int = 3, *, disk: bool = False) -> World:
    """A prompt's last state lies on the host alone, and a load takes some steps."""
    background = TierOptions(
        host_pages=40, disk_pages=40 if disk else 0, steps_of=lambda _: steps, error_of=lambda _: None
    )
    world = world_of("last", tiers=background)
    serve(world, "a", PROMPT)
    world.land()
    evicted(world, *standing(world))
    return world


def sent(world: World) -> list[Transfer]:
    return [one for batch in world.batches for one in batch.transfers]


def test_a_request_waits_for_its_load_while_others_run() -> None:
    world = tiered()
    world.add(request("b", (*PROMPT, 1), 1), request("c", prompt_of(5, 1), 6))
    world.step()
    first = world.batches[-1]
    assert [row.request_id for row in first.rows] == ["c"]
    assert not first.waits
    assert world.pool.counts().receiving == 5
    world.run()
    assert world.finished["b"].usage.cached_tokens == 10
    assert row_of(next(b for b in world.batches if any(r.request_id == "b" for r in b.rows)), "b").start == 10


def test_when_nothing_else_can_run_the_step_waits() -> None:
    world = tiered(steps=50)
    world.add(request("b", (*PROMPT, 1), 1))
    batch = world.step()
    assert batch is not None
    assert (batch.waits, batch.rows) == (True, ())
    following = world.step()
    assert row_of(following, "b").start == 10


def test_an_abort_while_it_loads_leaves_the_load_to_end() -> None:
    world = tiered()
    world.add(request("b", (*PROMPT, 1), 1), request("c", prompt_of(5, 1), 6))
    world.step()
    world.abort("b")
    world.run()
    assert world.scheduler.explain((*PROMPT, 1)).hit_tokens == 10
    assert world.finished["b"].finish_reason is FinishReason.ABORT


def test_a_reset_while_it_loads_wakes_who_waits_and_quarantines_the_pages() -> None:
    world = tiered()
    world.add(request("b", (*PROMPT, 1), 1), request("c", prompt_of(5, 1), 9))
    world.step()
    world.scheduler.reset_cache()
    world.check()
    assert world.pool.counts().quarantined == 5
    world.step()
    assert row_of(world.batches[-1], "b").start == 0
    world.run()
    assert world.output["b"] == world.expected("b", 1)
    assert world.pool.counts().quarantined == 0
    assert world.scheduler.explain((*PROMPT, 1, 0)).hit_tokens == 11, "what it left itself"


def test_a_reset_with_a_disk_makes_the_disk_forget() -> None:
    world = tiered(disk=True)
    assert stats(world).tiers[1].snapshots > 0
    before = len(sent(world))
    world.scheduler.reset_cache()
    assert world.scheduler.has_transfers, "it goes with the next batch, though nobody is alive"
    batch = world.step()
    assert batch is not None
    assert batch.rows == ()
    (forget,) = sent(world)[before:]
    assert (forget.source, forget.target, forget.pages) == (Tier.DISK, Tier.DISK, ())
    assert [tier.snapshots for tier in stats(world).tiers] == [0, 0]


def test_with_a_disk_lasting_snapshots_go_down_when_they_are_published() -> None:
    world = World(
        num_pages=64,
        token_budget=64,
        cache=cache_config(match_unit=4, snapshot_policy="adaptive(spare=4)"),
        tiers=TierOptions(host_pages=60, disk_pages=60),
    )
    world.add(request("a", prompt_of(17), 3))
    world.run()
    host, disk = stats(world).tiers
    assert standing(world) == {4: "spare", 8: "spare", 12: "spare", 16: "prompt_tail", 19: "last"}
    assert (host.stores, host.snapshots) == (2, 2), "spare ones do not outlive the arena"
    batch = world.scheduler.drain()
    while batch is not None:
        world.finish_step(batch)
        batch = world.scheduler.drain()
    host, disk = stats(world).tiers
    assert (disk.stores, disk.snapshots) == (2, 2)


def test_draining_is_for_an_engine_without_requests() -> None:
    from milepost.errors import InvariantError

    world = tiered()
    world.add(request("b", PROMPT, 1))
    with pytest.raises(InvariantError, match="drain was called while"):
        world.scheduler.drain()
    world.run()
    assert world.scheduler.drain() is None


@pytest.mark.parametrize(("block_size", "match_unit"), [(8, 4), (8, 3), (4, 16), (6, 4)])
def test_a_growing_conversation_keeps_one_page_a_block(block_size: int, match_unit: int) -> None:
    """Each turn copies the block in which the turn before ended; the old page must not stay as well."""
    world = World(
        num_pages=2000, block_size=block_size, token_budget=64, cache=cache_config(match_unit=match_unit)
    )
    text = list(prompt_of(10))
    for turn in range(12):
        world.add(request(str(turn), text, 3))
        world.run()
        text += [*world.output[str(turn)], *prompt_of(5, turn)]
        cached = len(world.requests[str(turn)].prompt_token_ids) + 2  # the last token drawn is not computed
        assert stats(world).kv_pages == -(-cached // block_size)


def test_one_request_s_spares_come_after_what_another_plans_in_the_same_step() -> None:
    """There are pages for three snapshots: those that two requests plan, and none of the first's spares."""
    config = cache_config(match_unit=4, snapshot_policy="adaptive(spare=4)")
    needed = 2 * (2 + 4)  # two states, and four blocks each
    world = World(num_pages=1 + needed + 3 * 2, block_size=4, token_budget=64, cache=config)
    world.add(
        request("spares", prompt_of(16, 0), 1, output_reusable=False),
        request("planned", prompt_of(16, 1), 1, output_reusable=False, message_ends=[6]),
    )
    batch = world.schedule()
    assert batch is not None
    orders = {row.request_id: [order.position for order in row.snapshots] for row in batch.rows}
    assert orders == {"spares": [15], "planned": [6, 15]}
    world.finish_step(batch)
    world.run()


def test_who_would_fit_but_for_its_own_path_is_weighed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guarding a path costs time in its length: not in every step that its request waits."""
    config = cache_config(match_unit=4, snapshot_policy="last", wait_for_leaders=False)
    world = World(num_pages=48, block_size=4, token_budget=400, headroom=60, cache=config)
    cached = prompt_of(120)
    world.add(request("first", cached, 1))
    world.run()
    world.add(request("runs", prompt_of(20, 1), 40))
    world.step()
    weighed: list[Match | None] = []
    guard = world.scheduler._lives.guard

    def weigh(match: Match | None) -> None:
        weighed.append(match)
        guard(match)

    monkeypatch.setattr(world.scheduler._lives, "guard", weigh)
    world.add(request("waits", (*cached, 0, 1), 1))
    for _ in range(10):
        world.step()
    assert (len(weighed), world.scheduler.stats().waiting) == (1, 1)
    world.run()
    assert world.reason("waits") is FinishReason.LENGTH
