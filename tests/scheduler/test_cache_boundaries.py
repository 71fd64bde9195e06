"""Boundary sweeps with a prefix cache: lengths around units and blocks, and every way to come back.

Where a snapshot stands a later prompt hits, to the token, whatever match unit, block and budget are;
what it draws is what it would have drawn without a cache.
"""

from __future__ import annotations

import itertools

import pytest

from milepost.memory.capacity import sequence_pages
from tests.scheduler.harness import SmallLayout, World, cache_config, prompt_of, request

SIZES = [(4, 4), (4, 8), (8, 4), (6, 4), (4, 6), (3, 5), (1, 4), (4, 1)]  # (block size, match unit)
UNLIMITED = 10_000


def lengths(block_size: int, unit: int) -> list[int]:
    """kU-1, kU, kU+1, kB-1, kB, kB+1 for small k, and the least."""
    edges = {k * size + d for k in (1, 2, 3) for size in (block_size, unit) for d in (-1, 0, 1)}
    return sorted({1, 2, *edges} - {0})


def budgets(block_size: int, unit: int) -> list[int]:
    """U-1, U, B-1, B and unlimited."""
    return sorted({max(1, size + d) for size in (block_size, unit) for d in (-1, 0)} | {UNLIMITED})


CASES = [
    (block_size, unit, length, budget)
    for block_size, unit in SIZES
    for length in lengths(block_size, unit)
    for budget in budgets(block_size, unit)
]


def serve(world: World, request_id: str, prompt: tuple[int, ...], max_tokens: int = 3) -> int:
    """Serve one request alone; its hit, proved by the tokens that were computed and drawn."""
    before = world.scheduler.stats().computed_tokens
    world.add(request(request_id, prompt, max_tokens))
    world.run()
    assert world.output[request_id] == world.expected(request_id, max_tokens)
    hit = world.finished[request_id].usage.cached_tokens
    assert world.scheduler.stats().computed_tokens - before == len(prompt) + max_tokens - 1 - hit
    return hit


def served(block_size: int, unit: int, budget: int, policy: str, prompt: tuple[int, ...]) -> World:
    """A world in which request "first" has had `prompt` and drawn three tokens."""
    world = World(
        num_pages=128,
        block_size=block_size,
        token_budget=budget,
        cache=cache_config(match_unit=unit, snapshot_policy=policy),
    )
    assert serve(world, "first", prompt) == 0
    return world


def forked(prompt: tuple[int, ...], position: int) -> tuple[int, ...]:
    """`prompt` with another token at `position`."""
    return (*prompt[:position], 1 - prompt[position], *prompt[position + 1 :])


@pytest.mark.parametrize(("block_size", "unit", "length", "budget"), CASES)
def test_a_resend_an_extension_and_a_fork_at_the_last_token_compute_one_token(
    block_size: int, unit: int, length: int, budget: int
) -> None:
    """R02, R04, R61: the state where an identical prompt looks is one token before its end."""
    prompt = prompt_of(length)
    world = served(block_size, unit, budget, "prompt-tail", prompt)
    assert serve(world, "resend", prompt) == length - 1
    assert serve(world, "again", prompt) == length - 1
    assert serve(world, "fork", forked(prompt, length - 1)) == length - 1
    assert serve(world, "extended", (*prompt, 1)) == length - 1
    # The extension has left its own snapshot, which is where the first prompt ended.
    assert serve(world, "extended again", (*prompt, 1)) == length
    assert serve(world, "extended otherwise", (*prompt, 0)) == length


@pytest.mark.parametrize(("block_size", "unit", "length", "budget"), CASES)
def test_what_goes_on_behind_an_answer_computes_what_is_new(
    block_size: int, unit: int, length: int, budget: int
) -> None:
    """R19: the last token drawn was never computed; everything before it is."""
    prompt = prompt_of(length)
    world = served(block_size, unit, budget, "last", prompt)
    turn = (*prompt, *world.output["first"], 0, 1)
    assert serve(world, "second turn", turn) == length + 2
    third = (*turn, *world.output["second turn"], 1)
    assert serve(world, "third turn", third) == len(turn) + 2
    # An answer that nobody continues is no help to the prompt alone.
    assert serve(world, "resend", prompt) == 0


@pytest.mark.parametrize(("block_size", "unit"), SIZES)
@pytest.mark.parametrize("budget", [1, 5, UNLIMITED])
def test_a_fork_at_any_token_hits_at_that_token(block_size: int, unit: int, budget: int) -> None:
    prompt = prompt_of(2 * max(block_size, unit) + 1)
    for position in range(len(prompt)):
        world = served(block_size, unit, budget, "every(1)", prompt)
        assert serve(world, "fork", forked(prompt, position)) == position
        assert serve(world, "cut", prompt[: position + 1]) == position


@pytest.mark.parametrize(("block_size", "unit"), SIZES)
@pytest.mark.parametrize("period", [1, 2, 3, 5, 7])
def test_a_hit_is_the_deepest_snapshot_before_the_fork(block_size: int, unit: int, period: int) -> None:
    prompt = prompt_of(3 * max(block_size, unit))
    for position in range(len(prompt)):
        world = served(block_size, unit, 7, f"every({period})", prompt)
        assert serve(world, "fork", forked(prompt, position)) == position // period * period


@pytest.mark.parametrize(("block_size", "unit"), SIZES)
@pytest.mark.parametrize("budget", [2, UNLIMITED])
def test_a_message_end_is_hit_to_the_token(block_size: int, unit: int, budget: int) -> None:
    """R23: another generation suffix behind the last message does not matter."""
    for length, suffix in itertools.product(lengths(block_size, unit), range(1, 4)):
        messages = prompt_of(length)
        world = World(
            num_pages=128,
            block_size=block_size,
            token_budget=budget,
            cache=cache_config(match_unit=unit, snapshot_policy="turns"),
        )
        world.add(request("first", (*messages, *[0] * suffix), 3, message_ends=[length]))
        world.run()
        assert serve(world, "second", (*messages, 1, 1, 0, 1)) == length


@pytest.mark.parametrize(("block_size", "unit"), SIZES)
@pytest.mark.parametrize("shared", [8, 9, 13])
@pytest.mark.parametrize("chunked", [False, True])
def test_a_burst_computes_what_it_shares_once(block_size: int, unit: int, shared: int, chunked: bool) -> None:
    """R01, R03: the first leaves a snapshot at the junction for those that came with it."""
    # Those behind the first are looked at when its chunk leaves budget, which here is just in time.
    budget = shared - 1 if chunked else UNLIMITED
    world = World(
        num_pages=128,
        block_size=block_size,
        token_budget=budget,
        cache=cache_config(match_unit=unit, snapshot_policy="last"),
    )
    for user in range(5):
        world.add(request(str(user), (*prompt_of(shared), 10 + user, 1), 2))
    world.run()
    assert [world.finished[str(user)].usage.cached_tokens for user in range(5)] == [0, *[shared] * 4]
    assert world.scheduler.stats().computed_tokens == shared + 5 * 3
    for user in range(5):
        assert world.output[str(user)] == world.expected(str(user), 2)


@pytest.mark.parametrize(("block_size", "unit"), SIZES)
@pytest.mark.parametrize("length", [7, 12])
def test_other_salts_never_hit(block_size: int, unit: int, length: int) -> None:
    prompt = prompt_of(length)
    world = served(block_size, unit, UNLIMITED, "every(1)", prompt)
    for name, salt, hit in (("b", "tenant", 0), ("c", "tenant", length - 1), ("d", "tenan", 0)):
        world.add(request(name, prompt, 2, salt=salt))
        world.run()
        assert world.finished[name].usage.cached_tokens == hit
        assert world.output[name] == world.expected(name, 2)


@pytest.mark.parametrize(("block_size", "unit"), SIZES)
@pytest.mark.parametrize("policy", ["adaptive", "every(1)", "prompt-tail+last"])
@pytest.mark.parametrize("spare", [0, 1, 2, 5])
def test_a_pool_of_exactly_the_need_serves_with_a_cache_as_without(
    block_size: int, unit: int, policy: str, spare: int
) -> None:
    """R70, R72: what is cached gives way, and a snapshot that finds no room is left out."""
    length, max_tokens = 2 * block_size + 1, 3
    need = sequence_pages(SmallLayout(block_size=block_size), length + max_tokens - 1)
    world = World(
        num_pages=1 + need + spare,
        block_size=block_size,
        token_budget=5,
        cache=cache_config(match_unit=unit, snapshot_policy=policy),
    )
    for seed in (0, 1, 0, 0, 2, 1):
        serve(world, f"{seed}/{len(world.requests)}", prompt_of(length, seed), max_tokens)
    assert world.scheduler.stats().preemptions == 0
