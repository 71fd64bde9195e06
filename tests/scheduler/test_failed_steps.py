"""Steps whose rows fail together: whose fault it was is found out, and nobody else notices."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from milepost.errors import ExecutionError, InvariantError
from milepost.scheduler.scheduler import _MOST_FAILURES
from milepost.types import BatchResult, FinishReason
from tests.scheduler.harness import TierOptions, World, cache_config, prompt_of, request

SIZES = st.fixed_dictionaries(
    {
        "num_pages": st.sampled_from([64, 30, 14]),
        "block_size": st.integers(1, 5),
        "pages_per_state": st.sampled_from([1, 2]),
        "token_budget": st.sampled_from([16, 5, 3, 1]),
        "max_num_seqs": st.sampled_from([8, 3, 2]),
    }
)
CACHES = st.one_of(
    st.none(),
    st.fixed_dictionaries(
        {
            "match_unit": st.integers(1, 5),
            "snapshot_policy": st.sampled_from(["adaptive", "every(3)", "last", "none"]),
            "wait_for_leaders": st.booleans(),
        }
    ),
)


def batched(world: World, count: int = 4, tokens: int = 6) -> list[str]:
    """Requests that run in steps together."""
    names = [f"r{number}" for number in range(count)]
    world.add(*(request(name, prompt_of(5 + i, i), tokens) for i, name in enumerate(names)))
    world.step()
    world.step()
    assert len(world.batches[-1].rows) == count
    return names


def require_whole(world: World, names: list[str]) -> None:
    """Each of them ended as if nothing had happened."""
    for name in names:
        asked = world.requests[name].sampling.max_tokens
        assert asked is not None
        assert world.reason(name) is FinishReason.LENGTH
        assert world.output[name] == world.expected(name, asked)


@pytest.mark.parametrize("cached", [False, True])
def test_who_breaks_a_step_ends_and_the_others_go_on(cached: bool) -> None:
    world = World(cache=cache_config() if cached else None)
    names = batched(world)
    world.executor.break_steps("r2")
    world.run()
    assert world.reason("r2") is FinishReason.ERROR
    assert world.finished["r2"].error == "the step broke"
    names.remove("r2")
    require_whole(world, names)
    stats = world.scheduler.stats()
    assert stats.failed_steps == 2  # together, and by itself
    assert [world.finished[name].usage.num_preemptions for name in names] == [1, 1, 1]


def test_suspects_run_one_by_one_and_before_all_others() -> None:
    world = World()
    names = batched(world)
    world.executor.break_next_step()
    broken = world.step()
    assert broken is not None
    world.add(request("late", prompt_of(3), 2, priority=-5))
    for name in names:
        batch = world.step()
        assert batch is not None
        assert [row.request_id for row in batch.rows] == [name]
    batch = world.step()
    assert batch is not None
    assert [row.request_id for row in batch.rows] == [*names, "late"]
    world.run()
    require_whole(world, [*names, "late"])


def test_a_suspect_stays_one_until_it_is_as_far_as_it_was() -> None:
    """What breaks at a late token must break by itself again, not among the others."""
    world = World(token_budget=4, max_num_seqs=2)
    world.add(request("a", prompt_of(3), 9), request("b", prompt_of(9, 1), 9))
    world.executor.break_steps("b", position=10)
    world.run()
    assert world.reason("b") is FinishReason.ERROR
    assert world.output["b"] == world.expected("b", 2)  # the tokens at 9 and 10; the third needs the 10th
    require_whole(world, ["a"])
    assert world.scheduler.stats().failed_steps == 2
    failed = [batch for batch, result in zip(world.batches, world.results, strict=True) if result.failure]
    assert [len(batch.rows) for batch in failed] == [2, 1]


def test_nobodys_fault_costs_time_and_no_request() -> None:
    """Should only the company break steps, each failure still lets all of its rows get on."""
    world = World(cache=cache_config())
    names = batched(world, tokens=12)
    for _ in range(200):
        batch = world.schedule()
        if batch is None:
            break
        if len(batch.rows) > 1:
            world.executor.break_next_step()
        world.finish_step(batch)
    assert not world.scheduler.has_work
    require_whole(world, names)


def test_pages_are_scrubbed_and_nothing_is_published() -> None:
    world = World(cache=cache_config(match_unit=2, snapshot_policy="every(2)"))
    world.add(request("a", (0, *prompt_of(7)), 3), request("b", (1, *prompt_of(7)), 3))
    batch = world.schedule()
    assert batch is not None
    assert len(batch.rows) == 2
    written = {page for row in batch.rows for page in [*row.block_table, *row.state_table]}
    written |= {page for row in batch.rows for order in row.snapshots for page in order.pages}
    world.executor.break_next_step()
    world.finish_step(batch)
    assert world.cache is not None
    assert world.cache.index.num_kv_pages == world.cache.index.num_state_pages == 0
    following = world.schedule()
    assert following is not None
    assert set(following.scrubs) == written
    world.finish_step(following)
    world.run()
    require_whole(world, ["a", "b"])


def test_what_a_suspect_resumed_from_stays_cached_and_what_broke_a_step_does_not() -> None:
    world = World(cache=cache_config(match_unit=4))
    prompt = prompt_of(12)
    world.add(request("first", prompt, 1))
    world.run()
    world.add(request("a", (*prompt, 1), 2), request("b", (*prompt, 0), 2))
    world.executor.break_steps("b")
    world.step()
    assert world.scheduler.explain((*prompt, 1)).hit_tokens == 12
    world.run()
    assert world.reason("b") is FinishReason.ERROR
    require_whole(world, ["a"])
    assert world.finished["a"].usage.cached_tokens == 12


def test_one_that_is_aborted_while_its_step_fails_is_gone() -> None:
    world = World(cache=cache_config())
    names = batched(world)
    batch = world.schedule()
    assert batch is not None
    world.executor.break_next_step()
    world.abort("r1")
    world.finish_step(batch)
    names.remove("r1")
    world.run()
    require_whole(world, names)


def test_a_suspect_can_be_aborted_wherever_it_stands() -> None:
    for steps in range(5):
        world = World(cache=cache_config())
        names = batched(world)
        world.executor.break_next_step()
        for _ in range(1 + steps):
            world.step()
        world.abort("r1")
        world.run()
        names.remove("r1")
        require_whole(world, names)


def test_a_suspect_gets_the_pages_of_those_that_were_not_there() -> None:
    """Running requests without a row in the failed step hold their pages until a suspect needs them."""
    world = World(num_pages=20, block_size=2, pages_per_state=1, token_budget=4)
    world.add(*(request(name, prompt_of(2, i), 9) for i, name in enumerate("abc")))
    for _ in range(4):
        world.step()
    world.add(request("urgent", prompt_of(8), 9, priority=-1))
    while (batch := world.schedule()) is not None:
        if 1 < len(batch.rows) < len(world.scheduler._roster.running):
            assert "c" not in [row.request_id for row in batch.rows]
            world.executor.break_next_step()
        world.finish_step(batch)
    require_whole(world, ["a", "b", "c", "urgent"])
    assert world.scheduler.stats().failed_steps == 1
    assert world.finished["c"].usage.num_preemptions == 1


def test_an_executor_that_computes_nothing_more_is_told_from_bad_requests() -> None:
    world = World(max_num_seqs=_MOST_FAILURES + 2, num_pages=200, token_budget=200)
    names = batched(world, count=_MOST_FAILURES + 1)
    for name in names:
        world.executor.break_steps(name)
    with pytest.raises(ExecutionError, match="10 prompts in a row failed"):
        world.run()
    assert len(world.finished) == _MOST_FAILURES - 1
    world.scheduler.abandon()
    world.check()


def test_a_client_that_repeats_what_fails_stops_nobody_else() -> None:
    world = World(num_pages=200, token_budget=200)
    for number in range(3 * _MOST_FAILURES):
        world.add(request(f"r{number}", prompt_of(4), 2))
        world.executor.break_steps(f"r{number}")
    world.run()
    assert {world.reason(name) for name in world.requests} == {FinishReason.ERROR}
    world.add(request("another", prompt_of(4, 1), 2))
    world.run()
    assert world.reason("another") is FinishReason.LENGTH


def test_a_step_that_passes_in_between_acquits_the_executor() -> None:
    world = World(num_pages=200, token_budget=200)
    for number in range(3 * _MOST_FAILURES):
        name = f"r{number}"
        world.add(request(name, prompt_of(4, number), 2))
        if number % 5:
            world.executor.break_steps(name)
    world.run()
    reasons = [world.reason(name) for name in world.requests]
    assert reasons.count(FinishReason.LENGTH) == 6
    assert reasons.count(FinishReason.ERROR) == 3 * _MOST_FAILURES - 6


def test_a_failed_step_answers_no_row() -> None:
    world = World()
    world.add(request("a", prompt_of(3)))
    batch = world.schedule()
    assert batch is not None
    rows = world.executor.run(batch).rows
    with pytest.raises(InvariantError, match="has failed and answers 1"):
        world.scheduler.update(batch, BatchResult(step=batch.step, rows=rows, failure="broke"))


@settings(max_examples=150, deadline=None)
@given(
    sizes=SIZES,
    cache=CACHES,
    tiered=st.booleans(),
    prompts=st.lists(st.tuples(st.integers(1, 12), st.integers(0, 2)), min_size=2, max_size=7),
    breaking=st.dictionaries(st.integers(0, 6), st.integers(0, 16), max_size=2),
    shaken=st.sets(st.integers(0, 40), max_size=4),
    per_step=st.integers(1, 4),
)
def test_random_schedules_leave_the_others_alone(
    sizes: dict[str, Any],
    cache: dict[str, Any] | None,
    tiered: bool,
    prompts: list[tuple[int, int]],
    breaking: dict[int, int],
    shaken: set[int],
    per_step: int,
) -> None:
    """Some requests break every step from some token on, some steps break by themselves.

    Tags stop the test at the first page that is not a row's own; what is drawn is known beforehand.
    """
    tiers = TierOptions(host_pages=20) if tiered and cache is not None else None
    world = World(**sizes, cache=None if cache is None else cache_config(**cache), tiers=tiers)
    coming = [request(f"r{i}", prompt_of(length, seed), 5) for i, (length, seed) in enumerate(prompts)]
    room = world.scheduler.limits.max_length
    coming = [one for one in coming if len(one.prompt_token_ids) + 5 <= room]
    for number, position in breaking.items():
        world.executor.break_steps(f"r{number}", position)
    for step in range(2000):
        world.add(*coming[:per_step])
        del coming[:per_step]
        if step in shaken:
            world.executor.break_next_step()
        if world.step() is None and not coming:
            break
    world.run()
    broke = {f"r{number}" for number in breaking} | world.failed_alone()
    for name in world.requests:
        if world.reason(name) is FinishReason.ERROR:
            assert name in broke
            drawn = world.output[name]
            assert drawn == world.expected(name, len(drawn))
        else:
            require_whole(world, [name])
