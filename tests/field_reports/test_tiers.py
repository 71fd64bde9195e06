"""Group F: tiers behind the arena, and what is counted of them."""

from __future__ import annotations

import itertools

import pytest

from milepost.types import Tier, Transfer
from tests.field_reports.scenes import Tokens, serve, text
from tests.scheduler.harness import TierOptions, World, cache_config, prompt_of, request

PROMPT = prompt_of(24)


def tiered(**options: object) -> World:
    """Room for one prompt in the arena and for many in the host; a transfer takes two steps."""
    tiers = TierOptions(**({"host_pages": 200, "steps_of": lambda _: 2} | options))  # type: ignore[arg-type]
    config = cache_config(match_unit=4, snapshot_policy="prompt-tail+last")
    return World(num_pages=1 + 18, block_size=4, token_budget=8, cache=config, tiers=tiers)


def fill(world: World, rounds: int = 3) -> None:
    """Drive whatever is in the arena out of it."""
    for i in range(rounds):
        serve(world, f"filler {len(world.requests)}", text(f"{i}", 40, 2))


def in_arena(world: World, prompt: Tokens) -> int:
    assert world.cache is not None
    return world.cache.look_up(world.cache.open(request("asks", prompt, 1)), prompt).hit


def foretold(world: World, prompt: Tokens) -> int:
    """What a request would hit, loads included."""
    told = world.scheduler.explain(prompt)
    assert told.hit_tokens + sum(told.losses.values()) == told.prompt_tokens
    assert told.matched_tokens >= told.hit_tokens
    assert told.deepest_snapshot >= told.hit_tokens
    return told.hit_tokens


@pytest.mark.parametrize("length", [8, 12, 16, 23, 24, 25])
def test_r61_a_prompt_loaded_from_the_host_still_computes_its_last_token(length: int) -> None:
    """R61: N = kB (and around): down to the host, out of the arena, and again: at most N-1 are loaded."""
    world = tiered()
    prompt = prompt_of(length)
    serve(world, "first", prompt, 1)
    fill(world)
    assert in_arena(world, prompt) == 0
    assert foretold(world, prompt) == length - 1
    hit = serve(world, "again", prompt, 3)
    assert hit == length - 1
    stats = world.scheduler.cache_stats()
    assert stats is not None
    assert stats.tiers[0].loads == 1
    starts = [row for batch in world.batches for row in batch.rows if row.request_id == "again"]
    assert (starts[0].start, len(starts[0].token_ids)) == (length - 1, 1)


def test_r82_only_what_was_written_and_published_goes_down() -> None:
    """R82: snapshots that were ordered and not written, and pages freed with them, are nobody's to save."""
    world = tiered()
    world.add(request("a", PROMPT, 1))
    while (batch := world.schedule()) is not None and not batch.rows[0].snapshots:
        world.finish_step(batch)
    assert batch is not None
    world.abort("a")
    world.finish_step(batch)
    fill(world)
    assert all(update.usage.cached_tokens == 0 for update in world.finished.values())
    assert serve(world, "again", PROMPT) == 0


def test_r85_pages_that_a_transfer_reads_are_not_given_to_anyone() -> None:
    """R85: the arena fills up while the host writes to disk and a load is on its way; every step is checked.

    The tag executor compares what a transfer read with what is there when it ends.
    """
    world = tiered(host_pages=26, disk_pages=200, steps_of=lambda _: 5)
    prompts = [text(f"{i}", 25, 2) for i in range(6)]
    for i in range(24):
        world.add(request(f"{i}", prompts[i % 5 if i % 2 else 5], 2))
        world.step()
        world.step()
    world.run()
    for name, update in world.finished.items():
        if name in world.requests and not name.startswith("lands"):
            assert world.output[name] == world.expected(name, len(world.output[name]))
            assert update.error is None
    stats = world.scheduler.cache_stats()
    assert stats is not None
    assert stats.tiers[1].stores > 0


@pytest.mark.parametrize("when", range(6))
def test_r87_a_load_that_is_given_up_publishes_nothing(when: int) -> None:
    """R87: the only request that wanted it is aborted while it is on its way, or the load fails."""
    world = tiered(steps_of=lambda _: 3)
    serve(world, "first", PROMPT, 1)
    fill(world)
    world.add(request("wants it", PROMPT, 2))
    for _ in range(when):
        world.step()
    world.abort("wants it")
    world.run()
    assert serve(world, "later", PROMPT) == 23


def test_r87_a_load_that_fails_is_computed_and_not_believed() -> None:
    """R87: the torn copy is dropped, the prompt computed, and what it leaves is hit as ever."""
    world = tiered(error_of=lambda one: "torn" if one.target is Tier.ARENA else None)
    serve(world, "first", PROMPT, 1)
    fill(world)
    assert serve(world, "again", PROMPT, 4) == 0
    assert serve(world, "once more", PROMPT, 4) == 23
    stats = world.scheduler.cache_stats()
    assert stats is not None
    assert stats.tiers[0].failures == 1


def test_r87_a_copy_to_the_host_that_fails_is_not_there() -> None:
    """R87: what never arrived in the host is not loaded from there, whatever else the host holds."""
    failing: set[int] = set()

    def fails(transfer: Transfer) -> str | None:
        return "no memory" if transfer.target is Tier.HOST and transfer.transfer_id in failing else None

    world = tiered(error_of=fails)
    serve(world, "first", PROMPT, 1)
    failing.update(range(1, 100))
    fill(world)
    failing.clear()
    assert serve(world, "again", PROMPT, 4) == 0
    fill(world)
    assert serve(world, "once more", PROMPT, 4) == 23
    stats = world.scheduler.cache_stats()
    assert stats is not None
    assert stats.tiers[0].failures > 0


def test_r87_an_evicted_state_goes_down_and_is_not_pruned() -> None:
    """R87: what was worth keeping leaves the arena with a copy only, and twenty full hits are right."""
    world = tiered()
    serve(world, "first", PROMPT, 1)
    for i in range(20):
        fill(world, 2)
        assert in_arena(world, PROMPT) == 0
        assert serve(world, f"{i}", PROMPT, 3) == 23
        assert serve(world, f"{i} at once", PROMPT, 3) == 23, "nor is the copy in the arena any other"


def test_r92_tokens_that_a_tier_saved_are_counted_once() -> None:
    """R92: a request that waits for its load is looked up once; its hit is one wherever it is told."""
    world = tiered(steps_of=lambda _: 4)
    serve(world, "first", PROMPT, 1)
    fill(world)
    before = world.scheduler.cache_stats()
    assert before is not None
    assert serve(world, "again", PROMPT, 2) == 23
    after = world.scheduler.cache_stats()
    assert after is not None
    assert (after.lookups - before.lookups, after.hits - before.hits) == (1, 1)
    served = {name: one.usage for name, one in world.finished.items()}
    assert after.lookups == len(served)
    assert after.hit_tokens == sum(usage.cached_tokens for usage in served.values()) == 23
    assert after.looked_up_tokens == sum(usage.prompt_tokens for usage in served.values())
    assert after.tiers[0].hit_tokens >= 23


def test_r92_a_request_that_is_preempted_is_looked_up_once_in_the_counters() -> None:
    """R92: every life looks up anew; what is told of a request is its first."""
    world = World(num_pages=60, token_budget=8, cache=cache_config(match_unit=4))
    serve(world, "first", PROMPT, 1)
    world.add(request("again", PROMPT, 6))
    for _ in range(3):
        world.step()
    world.scheduler._turns.preempt(world.scheduler._roster.running[0])
    world.run()
    stats = world.scheduler.cache_stats()
    assert stats is not None
    assert world.finished["again"].usage.num_preemptions == 1
    assert world.finished["again"].usage.cached_tokens == 23
    assert (stats.lookups, stats.hits, stats.hit_tokens, stats.looked_up_tokens) == (2, 1, 23, 48)


COUNTED = ["lookups", "looked_up_tokens", "hits", "hit_tokens", "waits", "resets", "copied_pages"]
COUNTED += ["snapshots_written", "snapshots_skipped", "snapshots_withdrawn"]
COUNTED += ["evicted_snapshots", "evicted_kv_pages"]
COUNTED_OF_TIERS = ("hit_tokens", "stores", "loads", "failures", "evicted_snapshots")


def counters(world: World) -> dict[str, int]:
    """Everything that is said to count up."""
    stats = world.scheduler.cache_stats()
    assert stats is not None
    counted = dict(stats.losses) | {name: getattr(stats, name) for name in COUNTED}
    for tier, name in itertools.product(stats.tiers, COUNTED_OF_TIERS):
        counted[f"{tier.name} {name}"] = getattr(tier, name)
    return counted


def test_r93_counters_never_go_down() -> None:
    """R93: through hits, evictions, failures, aborts and resets; what is a gauge is never negative."""

    def fails(transfer: Transfer) -> str | None:
        return "torn" if transfer.target is Tier.ARENA and transfer.transfer_id % 5 == 0 else None

    world = tiered(error_of=fails)
    known = counters(world)
    for i in range(30):
        world.add(request(f"{i}", text(f"{i % 4}", 20 + i % 3, 2), 3))
        world.add(request(f"{i} too", text(f"{i % 4}", 12, 2), 3))
        for _ in range(1 + i % 4):
            world.step()
        if i % 7 == 3:
            world.abort(f"{i}")
        if i % 11 == 5:
            world.scheduler.reset_cache()
        now = counters(world)
        assert all(0 <= known[name] <= count for name, count in now.items())
        known = now
        stats = world.scheduler.cache_stats()
        assert stats is not None
        assert min(stats.state_pages, stats.kv_pages, stats.snapshots) >= 0
    world.run()
    assert known["hits"] > 0
    assert known["host loads"] > 0
