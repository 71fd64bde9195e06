"""Group B: wrong output on a hit. The tag executor refuses every row whose pages are not its own tokens'."""

from __future__ import annotations

import pytest

from milepost.types import Row
from tests.field_reports.scenes import Tokens, serve, text
from tests.scheduler.harness import TierOptions, World, cache_config, prompt_of, request


def small_world(**changes: object) -> World:
    """Everything is kept, units are no divisors of blocks."""
    options = {"match_unit": 3, "snapshot_policy": "every(1)"} | changes
    return World(num_pages=600, block_size=4, token_budget=7, cache=cache_config(**options))


def other(prompt: Tokens, position: int) -> Tokens:
    """`prompt` up to `position` and another token there."""
    return (*prompt[:position], 1 - prompt[position])


def drop_states(world: World) -> int:
    """Evict every state and leave the KV; how many went."""
    assert world.cache is not None
    snapshots = [*world.cache.index.snapshots]
    for snapshot in snapshots:
        world.cache.evictor.drop(snapshot)
    return len(snapshots)


def test_r27_kv_without_its_state_is_no_hit() -> None:
    """R27: only the states are evicted, and the prompt comes again: it starts from zero."""
    world = small_world()
    prompt = prompt_of(20)
    serve(world, "first", prompt, 4)
    assert drop_states(world) > 20
    assert world.cache is not None
    assert world.cache.explain(prompt).matched_tokens == 20, "the KV is still there"
    assert serve(world, "resend", prompt, 4) == 0
    resent = next(row for batch in world.batches for row in batch.rows if row.request_id == "resend")
    assert resent.start == 0
    assert world.output["resend"] == world.output["first"]
    assert serve(world, "again", prompt, 4) == 19


@pytest.mark.parametrize("block_size", [1, 3, 4, 7, 16])
@pytest.mark.parametrize("unit", [1, 3, 4, 16])
def test_r28_a_resume_many_blocks_deep_finds_its_own_state(block_size: int, unit: int) -> None:
    """R28: the state's place is not computed from a block size; resume around the eighth block."""
    world = World(
        num_pages=1000,
        block_size=block_size,
        pages_per_state=3,
        token_budget=50,
        cache=cache_config(match_unit=unit, snapshot_policy="every(1)"),
    )
    prompt = prompt_of(10 * block_size + 3)
    serve(world, "first", prompt)
    for position in {8 * block_size - 1, 8 * block_size, 8 * block_size + 1, len(prompt) - 1}:
        assert serve(world, f"{position}", other(prompt, position)) == position


@pytest.mark.parametrize("steps", range(4))
def test_r32_a_chunk_that_was_scheduled_and_not_run_is_nowhere_to_be_hit(steps: int) -> None:
    """R32: a long prefill is aborted between its schedule and its execution, and sent again at once."""
    world = World(
        num_pages=200, token_budget=16, cache=cache_config(match_unit=4, snapshot_policy="every(8)")
    )
    prompt = prompt_of(60)
    world.add(request("first", prompt, 2))
    for _ in range(steps):
        world.step()
    batch = world.schedule()
    assert batch is not None
    assert batch.rows[0].snapshots
    world.abort("first")
    world.add(request("retry", prompt, 2))
    assert world.cache is not None
    assert world.cache.explain(prompt).matched_tokens == 16 * steps
    world.finish_step(batch)
    assert world.cache.explain(prompt).hit_tokens == 16 * steps, "nor is it after it came back"
    world.run()
    assert world.finished["retry"].usage.cached_tokens == 16 * steps
    assert world.output["retry"] == world.expected("retry", 2)


def test_r33_a_prefill_that_lands_beside_decodes_leaves_its_states() -> None:
    """R33: states that a prompt leaves in steps where others decode are hit like any."""
    world = World(
        num_pages=300, token_budget=16, cache=cache_config(match_unit=4, snapshot_policy="every(5)")
    )
    world.add(*(request(f"decode {i}", prompt_of(3, i), 30) for i in range(3)))
    world.step()
    prompt = prompt_of(31, 7)
    world.add(request("prefill", prompt, 1))
    while "prefill" not in world.finished:
        batch = world.step()
        assert batch is not None
        assert len(batch.rows) == 4
    world.add(request("hit", (*prompt[:26], 1 - prompt[26]), 3))
    world.run()
    assert world.finished["hit"].usage.cached_tokens == 25
    assert world.output["hit"] == world.expected("hit", 3)


def test_r34_a_state_that_the_executor_did_not_report_is_not_donated() -> None:
    """R34: what was ordered and not written stays out; its pages come back only scrubbed."""
    world = World(
        num_pages=100, token_budget=64, cache=cache_config(match_unit=4, snapshot_policy="every(6)")
    )
    prompt = prompt_of(14)
    world.add(request("first", prompt, 1))
    world.executor.fail_snapshot("first")  # that of 6 tokens
    world.run()
    assert world.cache is not None
    assert [one.position for one in world.cache.explain(prompt).snapshots] == [12]
    assert serve(world, "above it", prompt[:10]) == 0
    stats = world.scheduler.cache_stats()
    assert stats is not None
    assert stats.snapshots_withdrawn == 1


def test_r36_the_same_passage_behind_another_beginning_is_not_reused() -> None:
    """R36: KV can't be moved to another place, since a state has seen all that came before."""
    world = small_world()
    passage = prompt_of(40, 3)
    serve(world, "first", (*prompt_of(8), *passage))
    for beginning, hit in (((2, *prompt_of(6)), 0), ((*prompt_of(7), 2), 7), ((*prompt_of(7), 2, 2), 8)):
        assert serve(world, f"behind {len(beginning)}", (*beginning, *passage)) == hit


def test_r40_publishing_what_is_cached_already_changes_nothing() -> None:
    """R40: blocks of 6, units of 2, a prompt of 8 that decodes to 12; then the same is published again."""
    world = World(num_pages=60, block_size=6, cache=cache_config(match_unit=2, snapshot_policy="every(1)"))
    cache = world.cache
    assert cache is not None
    world.add(request("a", prompt_of(8), 6))
    while len(world.output.get("a", ())) < 5:
        world.step()
    sequence = world.scheduler._roster.running[0]
    trail, pages = sequence.trail, sequence.pages
    assert trail is not None
    assert pages is not None
    assert sequence.num_computed == 12

    def all_of_it() -> tuple[object, ...]:
        names = [world.pool.references(page) for page in range(world.pool.num_pages)]
        return len(cache.index), cache.stats(), names, world.pool.counts()

    before = all_of_it()
    for computed in (8, 11, 12, 12):
        cache.publish(trail, sequence.tokens, computed, pages.block_table)
    assert all_of_it() == before
    world.run()
    # A second request writes the same tokens to pages of its own: the index keeps the first ones.
    assert serve(world, "b", prompt_of(8), 6) == 7
    assert serve(world, "c", (*prompt_of(8), *world.output["a"], 0), 1) == 13


def test_r41_each_of_many_requests_keeps_its_own_needle() -> None:
    """R41: units of 64 in a block of 1,152; eight requests share 200 tokens and differ then."""
    world = World(num_pages=60, block_size=1152, token_budget=300, cache=cache_config(match_unit=64))
    shared = prompt_of(200)
    needles = {f"{i}": (*shared, *text(i, 20, 2), 1, *prompt_of(90, 5)) for i in range(8)}
    for round_ in range(2):
        world.add(*(request(f"{round_}/{name}", prompt, 6) for name, prompt in needles.items()))
        world.run()
        for name in needles:
            assert world.output[f"{round_}/{name}"] == world.expected(f"{round_}/{name}", 6)
    hits = [world.finished[f"1/{name}"].usage.cached_tokens for name in needles]
    assert hits == [len(prompt) - 1 for prompt in needles.values()]


@pytest.mark.parametrize("broken", [False, True], ids=["empty", "failing"])
def test_r42_a_tier_that_gives_nothing_changes_nothing(broken: bool) -> None:
    """R42: behind the arena is a tier that never has, or never delivers, anything: all is as without it."""

    def play(tiers: TierOptions | None) -> tuple[list[int], list[list[int]]]:
        config = cache_config(match_unit=4, snapshot_policy="prompt-tail")
        world = World(num_pages=1 + 16, token_budget=9, cache=config, tiers=tiers)
        hits = [serve(world, f"{i}", prompt_of(21, seed), 3) for i, seed in enumerate((0, 0, 1, 2, 0, 1, 0))]
        return hits, [world.output[f"{i}"] for i in range(7)]

    without = play(None)
    torn = TierOptions(host_pages=40, error_of=lambda one: "torn" if one.target.value == "arena" else None)
    assert play(torn if broken else TierOptions(host_pages=2)) == without
    assert without[0][1] == 20


def rows_of(world: World, request_id: str) -> list[Row]:
    return [row for batch in world.batches for row in batch.rows if row.request_id == request_id]


def test_r45_the_same_snapshot_restored_many_times_is_the_same_snapshot() -> None:
    """R45: six requests resume at one place, some of them at once; nobody writes what they share."""
    world = small_world(snapshot_policy="prompt-tail")
    prompt = prompt_of(18)
    serve(world, "first", prompt, 5)
    for i in range(3):
        world.add(*(request(f"{i}/{j}", prompt, 5) for j in range(2)))
        world.run()
    for name in set(world.output) - {"first"}:
        assert world.finished[name].usage.cached_tokens == 17
        assert world.output[name] == world.output["first"]
    states = [tuple(rows_of(world, name)[0].state_table) for name in ("0/0", "0/1")]
    assert not set(states[0]) & set(states[1]), "each has a state of its own"


def test_r46_who_joins_a_batch_has_a_state_of_its_own() -> None:
    """R46: requests with and without a past join those that run, one after the other."""
    world = small_world()
    prompt = prompt_of(9)
    serve(world, "past", prompt)
    world.add(request("runs", prompt_of(5, 1), 20))
    for i, joining in enumerate([prompt, prompt_of(1, 2), (*prompt, 1), prompt_of(2, 3)]):
        world.step()
        world.add(request(f"joins {i}", joining, 12))
    world.run()
    for name, drawn in world.output.items():
        assert drawn == world.expected(name, len(drawn))
    states = [set(row.state_table) for row in max(world.batches, key=lambda batch: len(batch.rows)).rows]
    assert len(states) == 5
    assert len(set().union(*states)) == 5 * 2
