"""What went wrong in other engines and needs no prefix cache to go wrong; ids of the field reports."""

from __future__ import annotations

import pytest

from milepost.memory.layout import DUMMY_PAGE
from milepost.testing.tag_executor import expected_output
from milepost.types import FinishReason
from tests.scheduler.harness import VOCAB, World, cache_config, prompt_of, request


def test_r54_r55_no_request_ever_owns_the_padding_page() -> None:
    """R54, R55: with every usable page taken, padding still has the dummy page for itself."""
    world = World(num_pages=1 + 4 * 3, block_size=4, pages_per_state=2, token_budget=100)
    world.add(*(request(str(i), prompt_of(4, i), 1) for i in range(4)))
    batch = world.schedule()
    assert batch is not None
    assert len(batch.rows) == 4
    assert world.pool.num_free == 0
    pages = {page for row in batch.rows for page in (*row.state_table, *row.block_table)}
    assert pages == set(range(1, 13))
    assert DUMMY_PAGE not in pages
    world.finish_step(batch)


def test_r66_results_are_taken_by_request_id_and_not_by_row() -> None:
    """R66: rows move from step to step and results come in another order; none lands elsewhere.

    The tag executor answers backwards. Requests leave from the front of the batch in between, so
    that the others change their row.
    """
    world = World(token_budget=64)
    prompts = {str(i): prompt_of(3 + i, i) for i in range(6)}
    world.add(*(request(name, prompt, 2 + 2 * int(name)) for name, prompt in prompts.items()))
    world.step()
    world.abort("1")
    world.run()
    for name, prompt in prompts.items():
        count = 1 if name == "1" else 2 + 2 * int(name)
        assert world.output[name] == expected_output(prompt, count, VOCAB)


def test_r70_a_request_near_the_pool_ceiling_finishes_and_is_never_requeued_forever() -> None:
    """R70: prefilled to 98.9 % of the pool, then requeued without end. Here the limit ends it."""
    world = World(num_pages=1 + 2 + 90, block_size=4, pages_per_state=2, token_budget=7)
    world.add(request("a", prompt_of(356), 100))
    world.run(limit=120)
    assert world.reason("a") is FinishReason.LENGTH
    assert world.output["a"] == expected_output(prompt_of(356), 5, VOCAB)
    assert world.scheduler.stats().preemptions == 0


@pytest.mark.parametrize("budget", [1, 2, 3])
def test_r71_budgets_below_a_block_make_progress_in_every_step(budget: int) -> None:
    """R71: chunks aligned down to a block are zero tokens when the budget is less than one.

    Two long prompts share the budget, and every step computes all of it.
    """
    world = World(block_size=8, token_budget=budget)
    world.add(request("a", prompt_of(20), 2), request("b", prompt_of(21, 1), 2))
    for _ in range(40 // budget):
        batch = world.step()
        assert batch is not None
        assert batch.num_tokens == budget
    world.run(limit=60)
    assert world.output["b"] == expected_output(prompt_of(21, 1), 2, VOCAB)


def test_r72_more_requests_than_states_fit_wait_instead_of_failing() -> None:
    """R72: slot exhaustion killed the scheduler. Here those that find no state wait their turn."""
    world = World(num_pages=1 + 12, block_size=4, pages_per_state=4, max_num_seqs=64, token_budget=64)
    world.add(*(request(str(i), prompt_of(3, i), 4) for i in range(40)))
    world.run()
    assert len(world.finished) == 40
    assert all(update.finish_reason is FinishReason.LENGTH for update in world.finished.values())


def test_r72_what_admission_promises_can_be_allocated() -> None:
    """R72: a prefill was admitted on pages that another prefill already counted on.

    Both prompts fit alone, not together: the second waits, and nothing is preempted for it.
    """
    world = World(num_pages=1 + 20, block_size=4, pages_per_state=2, token_budget=4)
    world.add(request("a", prompt_of(40), 1), request("b", prompt_of(40, 1), 1))
    world.run()
    assert world.scheduler.stats().preemptions == 0
    started_b = next(i for i, batch in enumerate(world.batches) if batch.rows[-1].request_id == "b")
    assert all(batch.rows[0].request_id == "a" for batch in world.batches[:started_b])


@pytest.mark.parametrize("steps_before", range(8))
@pytest.mark.parametrize("in_step", [False, True])
def test_r76_an_abort_at_any_moment_leaks_no_page(steps_before: int, in_step: bool) -> None:
    """R76: abort while waiting, in a prefill chunk, at its end and while decoding; then idle owns nothing."""
    world = World(token_budget=4)
    world.add(request("a", prompt_of(9), 4), request("b", prompt_of(6, 1), 3))
    for _ in range(steps_before):
        world.step()
    batch = world.schedule() if in_step else None
    world.abort("a")
    if batch is not None:
        world.finish_step(batch)
    world.run()
    assert world.pool.num_free == world.pool.num_usable
    assert world.output["b"] == expected_output(prompt_of(6, 1), 3, VOCAB)


def test_r32_an_abort_before_execution_and_a_resubmission_never_share_pages() -> None:
    """R32: scheduled, aborted before it ran, sent again: the new life got pages nobody had written.

    The pages of the first life stay with its step until it is back, and the second computes
    everything itself.
    """
    world = World(token_budget=6)
    prompt = prompt_of(20)
    world.add(request("a", prompt, 3))
    batch = world.schedule()
    assert batch is not None
    first = {*batch.rows[0].state_table, *batch.rows[0].block_table}
    world.scheduler.abort("a")
    world.add(request("a", prompt, 3))
    assert first.isdisjoint(world.pool.free_pages())
    world.finish_step(batch)
    assert first.issubset(world.pool.free_pages())
    second = world.step()
    assert second is not None
    assert second.rows[0].start == 0
    world.run()
    assert world.output["a"] == expected_output(prompt, 3, VOCAB)


def test_r50_a_snapshot_whose_consumer_fails_at_once_is_not_met_again() -> None:
    """R50: should a bad state have passed its check, the same prompt must not fail for ever."""
    world = World(num_pages=200, cache=cache_config(match_unit=4))
    prompt = prompt_of(30)
    world.add(request("first", prompt, 1))
    world.run()
    world.add(request("second", prompt, 1))
    world.executor.fail_request("second")
    world.run()
    assert world.reason("second") is FinishReason.ERROR
    assert world.finished["second"].usage.cached_tokens == 29
    assert world.scheduler.explain(prompt).hit_tokens < 29
    world.add(request("third", prompt, 1))
    world.run()
    assert world.reason("third") is FinishReason.LENGTH


def test_a_failure_after_the_first_step_blames_no_snapshot() -> None:
    world = World(num_pages=200, cache=cache_config(match_unit=4))
    prompt = prompt_of(30)
    world.add(request("first", prompt, 1))
    world.run()
    world.add(request("second", prompt, 5))
    world.step()
    world.executor.fail_request("second")
    world.run()
    assert world.reason("second") is FinishReason.ERROR
    assert world.scheduler.explain(prompt).hit_tokens == 29
