"""Groups D and G, as far as they need neither drafts nor a network: the last token, and wishes."""

from __future__ import annotations

import pytest

from tests.field_reports.scenes import Rehearsal, Tokens, serve, text
from tests.scheduler.harness import World, cache_config, prompt_of, request


def world_of(policy: str = "adaptive", **changes: object) -> World:
    config = cache_config(match_unit=4, snapshot_policy=policy, **changes)
    return World(num_pages=300, token_budget=16, cache=config)


@pytest.mark.parametrize("length", [1, 2, 4, 8, 9, 16, 17])
def test_r60_the_last_token_of_a_prompt_is_computed_exactly_once(length: int) -> None:
    """R60: all but the last token come from the cache; no state that has seen the last one does."""
    world = world_of("every(1)")
    prompt = prompt_of(length)
    serve(world, "first", prompt, 6)
    assert serve(world, "again", prompt, 6) == length - 1
    assert world.output["again"] == world.output["first"]
    rows = [row for batch in world.batches for row in batch.rows if row.request_id == "again"]
    assert [row.start for row in rows] == list(range(length - 1, length + 5))


@pytest.mark.parametrize("length", [1, 4, 10, 20])
def test_r63_a_prompt_that_is_cached_with_all_that_follows_still_has_a_row(length: int) -> None:
    """R63: everything of it, and more, is cached with states; the step has one token and no less."""
    world = world_of("every(1)")
    whole = prompt_of(24)
    serve(world, "whole", whole)
    world.add(request("part", whole[:length], 1))
    batch = world.schedule()
    assert batch is not None
    assert batch.num_tokens == 1
    world.finish_step(batch)
    assert world.output["part"] == world.expected("part", 1)


def test_r94_a_boundary_that_the_caller_names_is_where_the_next_one_resumes() -> None:
    """R94: message ends are the caller's boundaries; a consumer in the same step waits for its producer."""
    rehearsal = Rehearsal(num_pages=4000, snapshot_policy="turns")
    document = text("document", 1003)
    prompts = [document + text(f"question {i}", 30) for i in range(3)]
    for i, prompt in enumerate(prompts):
        rehearsal.scheduler.add(request(f"{i}", prompt, 2, message_ends=[1003]))
    while rehearsal.step():
        pass
    assert [rehearsal.usage[f"{i}"].cached_tokens for i in range(3)] == [0, 1003, 1003]
    assert rehearsal.serve("later", document + text("another", 9)) == 1003


@pytest.mark.parametrize("count", [2, 8, 50])
def test_r95_a_burst_of_equal_cold_prompts_computes_them_once(count: int) -> None:
    """R95: one leads, the others wait for its state; without that each would compute everything."""

    def burst(waits: bool) -> int:
        rehearsal = Rehearsal(num_pages=12_000, token_budget=8192, wait_for_leaders=waits)
        prompt = text("burst", 2048)
        for i in range(count):
            rehearsal.scheduler.add(request(f"{i}", prompt + text(i, 5), 1))
        while rehearsal.step():
            pass
        return rehearsal.scheduler.stats().computed_tokens

    assert burst(waits=True) == 2048 + 5 * count
    assert burst(waits=False) > 2 * 2048


def test_r96_the_state_after_a_reply_is_kept() -> None:
    """R96: a prompt that goes on behind the reply computes the last token drawn, and what is new."""
    world = world_of()
    prompt = prompt_of(10)
    serve(world, "first", prompt, 7)
    assert serve(world, "next", (*prompt, *world.output["first"], 1, 0)) == 16


def cached_length(world: World, tokens: Tokens) -> int:
    assert world.cache is not None
    return world.cache.explain(tokens).matched_tokens


def test_r98_thinking_that_the_next_turn_will_not_repeat_is_not_cached() -> None:
    """R98: a reply that will be stripped leaves neither state nor KV; one that is repeated does."""
    world = world_of("adaptive+every(2)")
    prompt = prompt_of(10)
    serve(world, "thinks", prompt, 9, output_reusable=False)
    drawn = world.output["thinks"]
    assert cached_length(world, (*prompt, *drawn)) == 10
    serve(world, "answers", prompt, 9)
    assert cached_length(world, (*prompt, *drawn)) == 18
