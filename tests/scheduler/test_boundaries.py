"""Boundary sweeps: lengths around blocks, budgets around blocks, pools around what is needed."""

from __future__ import annotations

import itertools

import pytest

from milepost.errors import RequestTooLargeError
from milepost.memory.capacity import sequence_pages
from milepost.testing.tag_executor import expected_output
from milepost.types import FinishReason
from tests.scheduler.harness import VOCAB, SmallLayout, World, prompt_of, request

BLOCK = 4
UNLIMITED = 10_000
LENGTHS = sorted({1, 2, *(k * BLOCK + d for k in (1, 2, 5) for d in (-1, 0, 1))})
BUDGETS = [1, BLOCK - 1, BLOCK, UNLIMITED]


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("max_tokens", [1, BLOCK - 1, BLOCK, BLOCK + 1])
def test_output_does_not_depend_on_lengths_or_budgets(length: int, budget: int, max_tokens: int) -> None:
    world = World(block_size=BLOCK, token_budget=budget)
    for seed in range(3):
        world.add(request(str(seed), prompt_of(length, seed), max_tokens))
    world.run()
    for seed in range(3):
        assert world.output[str(seed)] == expected_output(prompt_of(length, seed), max_tokens, VOCAB)


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize(("length", "max_tokens"), list(itertools.product(LENGTHS, [1, 2, BLOCK, BLOCK + 2])))
def test_a_pool_of_exactly_the_need_finishes_and_one_page_less_ends_early_or_refuses(
    length: int, max_tokens: int, budget: int
) -> None:
    """R70 in small: nothing between "finishes" and "refused up front", and never a standstill."""
    layout = SmallLayout(block_size=BLOCK)
    computed = length + max_tokens - 1
    need = sequence_pages(layout, computed)
    expected = expected_output(prompt_of(length), max_tokens, VOCAB)

    world = World(num_pages=1 + need, block_size=BLOCK, token_budget=budget)
    world.add(request("a", prompt_of(length), max_tokens))
    world.run()
    assert world.output["a"] == expected
    assert world.scheduler.stats().preemptions == 0

    world = World(num_pages=need, block_size=BLOCK, token_budget=budget)
    room = (layout.blocks_for(computed) - 1) * BLOCK
    if length > room:
        with pytest.raises(RequestTooLargeError):
            world.add(request("a", prompt_of(length), max_tokens))
    else:
        world.add(request("a", prompt_of(length), max_tokens))
        world.run()
        assert world.output["a"] == expected[: room - length + 1]
        assert world.reason("a") is FinishReason.LENGTH


@pytest.mark.parametrize("spare", range(9))
@pytest.mark.parametrize("budget", [1, 3, UNLIMITED])
@pytest.mark.parametrize("block_size", [1, 2, 4, 16])
def test_any_pool_that_admits_requests_finishes_them(block_size: int, budget: int, spare: int) -> None:
    """R70, R72: from a pool that just holds one of them on, several requests all finish."""
    layout = SmallLayout(block_size=block_size)
    world = World(
        num_pages=1 + sequence_pages(layout, 12) + spare, block_size=block_size, token_budget=budget
    )
    for seed in range(5):
        world.add(request(str(seed), prompt_of(3 + seed, seed), 6))
    world.run(limit=2000)
    for seed in range(5):
        assert world.output[str(seed)] == expected_output(prompt_of(3 + seed, seed), 6, VOCAB)
        assert world.reason(str(seed)) is FinishReason.LENGTH


@pytest.mark.parametrize("budget", [1, 2, 7])
def test_nobody_starves_behind_a_stream_of_newcomers(budget: int) -> None:
    """A long request on a tight pool finishes although short ones keep coming."""
    world = World(num_pages=12, block_size=2, token_budget=budget, max_num_seqs=3)
    world.add(request("long", prompt_of(10), 6))
    for newcomer in range(200):
        world.add(request(str(newcomer), prompt_of(2, newcomer), 2))
        world.step()
        if "long" in world.finished:
            break
    assert world.output["long"] == expected_output(prompt_of(10), 6, VOCAB)
    world.run()


def test_a_short_request_takes_one_state_and_just_its_blocks() -> None:
    """Design section 8.7: pages of a short request = state pages + ceil(N / block)."""
    for length in LENGTHS:
        world = World(block_size=BLOCK, pages_per_state=3, token_budget=UNLIMITED)
        world.add(request("a", prompt_of(length), 2))
        world.step()
        assert world.pool.counts().leased == 3 + -(-length // BLOCK)
