"""What one scheduler does, behaviour by behaviour; random mixtures are in test_state_machine."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import pytest

from milepost.errors import ConfigError, InvariantError, RequestError, RequestTooLargeError
from milepost.memory.pool import PagePool
from milepost.scheduler.config import SchedulerConfig
from milepost.scheduler.scheduler import Scheduler
from milepost.testing.tag_executor import expected_output
from milepost.types import Batch, BatchResult, FinishReason, Request, RowResult, SamplingParams
from tests.scheduler.harness import VOCAB, SmallLayout, World, prompt_of, request


def rows_of(batch: Batch | None) -> list[tuple[str, int, int]]:
    """(request, start, tokens) of each row."""
    assert batch is not None
    return [(row.request_id, row.start, len(row.token_ids)) for row in batch.rows]


def answer(batch: Batch, token_id: int = 0) -> BatchResult:
    """An answer that draws `token_id` wherever a row samples."""
    rows = (RowResult(request_id=row.request_id, token_ids=(token_id,) * row.samples) for row in batch.rows)
    return BatchResult(step=batch.step, rows=tuple(rows))


# -- batching and chunks ------------------------------------------------------------------------


def test_prompts_are_computed_in_chunks_under_the_token_budget_and_decodes_go_along() -> None:
    world = World(token_budget=5)
    world.add(request("a", prompt_of(7), 3), request("b", prompt_of(4), 2))
    assert rows_of(world.step()) == [("a", 0, 5)]
    assert rows_of(world.step()) == [("a", 5, 2), ("b", 0, 3)]
    assert rows_of(world.step()) == [("a", 7, 1), ("b", 3, 1)]
    assert rows_of(world.step()) == [("a", 8, 1), ("b", 4, 1)]
    assert world.step() is None
    assert [len(world.output[name]) for name in "ab"] == [3, 2]


def test_only_the_chunk_that_reaches_the_last_known_token_samples() -> None:
    world = World(token_budget=3)
    world.add(request("a", prompt_of(7), 2))
    world.run()
    assert [batch.rows[0].samples for batch in world.batches] == [False, False, True, True]
    assert [batch.rows[0].num_output_tokens for batch in world.batches] == [0, 0, 0, 1]


def test_a_request_joins_while_others_run_and_leaves_without_stopping_them() -> None:
    world = World()
    world.add(request("a", prompt_of(3), 6))
    world.step()
    world.add(request("b", prompt_of(5), 2))
    assert rows_of(world.step()) == [("a", 3, 1), ("b", 0, 5)]
    world.run()
    assert [batch.released for batch in world.batches][2:] == [(), ("b",), (), ()]


def test_requests_are_announced_once_and_released_once() -> None:
    world = World(token_budget=2, max_num_seqs=2)
    world.add(*(request(name, prompt_of(3), 2) for name in "abc"))
    world.run()
    world.add(request("last", prompt_of(1), 1))
    world.run()
    announced = [new.request_id for batch in world.batches for new in batch.new_requests]
    released = [request_id for batch in world.batches for request_id in batch.released]
    assert announced == ["a", "b", "c", "last"]
    assert sorted(released) == ["a", "b", "c"]


def test_no_more_than_max_num_seqs_run_at_once() -> None:
    world = World(max_num_seqs=2)
    world.add(*(request(name, prompt_of(2), 3) for name in "abcd"))
    assert [name for name, _, _ in rows_of(world.step())] == ["a", "b"]
    stats = world.scheduler.stats()
    assert (stats.running, stats.waiting) == (2, 2)
    world.run()
    assert set(world.finished) == set("abcd")


def test_tables_are_sent_by_reference() -> None:
    world = World(token_budget=4)
    world.add(request("a", prompt_of(8), 4))
    world.run()
    tables = {id(batch.rows[0].block_table) for batch in world.batches}
    assert len(tables) == 1


# -- order --------------------------------------------------------------------------------------


def test_lower_priority_numbers_go_first_and_equal_ones_by_arrival() -> None:
    world = World(max_num_seqs=1)
    world.add(
        request("late", prompt_of(2), 1, priority=5),
        request("first", prompt_of(2), 1, priority=1),
        request("second", prompt_of(2), 1, priority=1),
        request("urgent", prompt_of(2), 1, priority=-1),
    )
    world.run()
    order = [batch.rows[0].request_id for batch in world.batches]
    assert order == ["urgent", "first", "second", "late"]


def test_a_request_that_does_not_fit_yet_is_not_overtaken() -> None:
    world = World(num_pages=9, token_budget=100)
    world.add(request("a", prompt_of(8), 8), request("big", prompt_of(20), 1), request("small", (1,), 1))
    assert [name for name, _, _ in rows_of(world.step())] == ["a"]
    world.run()
    assert list(world.finished) == ["a", "big", "small"]


def test_the_last_in_line_is_preempted_and_keeps_its_place() -> None:
    world = World(num_pages=9, block_size=2, pages_per_state=1, token_budget=64)
    world.add(request("a", prompt_of(4), 8), request("b", prompt_of(4, 1), 8), request("c", (0, 1, 1), 1))
    world.run()
    usage = {name: update.usage for name, update in world.finished.items()}
    assert usage["a"].num_preemptions == 0
    assert usage["b"].num_preemptions >= 1
    assert next(iter(world.finished)) == "a"
    for name, prompt in (("a", prompt_of(4)), ("b", prompt_of(4, 1))):
        assert world.output[name] == expected_output(prompt, 8, VOCAB)
    assert world.scheduler.stats().preemptions == sum(one.num_preemptions for one in usage.values())


def test_the_lowest_priority_is_preempted_before_the_latest_arrival() -> None:
    world = World(num_pages=9, block_size=2, pages_per_state=1, token_budget=64)
    world.add(request("low", prompt_of(4), 8, priority=1), request("high", prompt_of(4), 8))
    world.run()
    assert world.finished["high"].usage.num_preemptions == 0
    assert world.finished["low"].usage.num_preemptions >= 1


@pytest.mark.parametrize("num_pages", [9, 12, 13])
@pytest.mark.parametrize(("headroom", "preempted"), [(0, True), (8, False)])
def test_headroom_admits_only_what_can_grow(num_pages: int, headroom: int, preempted: bool) -> None:
    """Two requests fit as they are and not as they will be: together with preemption, or one by one.

    Each grows from 3 pages to 7. With 11 or 12 pages the newcomer would even fit with its growth,
    but not beside the growth of the one that runs.
    """
    world = World(num_pages=num_pages, block_size=2, pages_per_state=1, token_budget=64, headroom=headroom)
    world.add(request("a", prompt_of(4), 8), request("b", prompt_of(4, 1), 8))
    world.run()
    assert (world.scheduler.stats().preemptions > 0) is preempted
    assert world.scheduler.stats().computed_tokens == 22 or preempted


def test_headroom_that_can_never_be_used_keeps_nobody_waiting() -> None:
    world = World(num_pages=1 + 2 * 4, block_size=4, pages_per_state=2, headroom=1000)
    world.add(request("a", prompt_of(6), 2), request("b", prompt_of(6, 1), 3))
    assert [name for name, _, _ in rows_of(world.step())] == ["a", "b"]
    world.run()


def test_with_nobody_running_the_first_is_admitted_whatever_the_headroom() -> None:
    world = World(num_pages=1 + 4, block_size=4, pages_per_state=2, headroom=1000)
    world.add(request("a", prompt_of(8), None), request("b", prompt_of(8, 1), None))
    world.run()
    assert [len(world.output[name]) for name in "ab"] == [1, 1]


def test_r79_a_preempted_request_starts_from_a_zero_state_and_draws_no_token_twice() -> None:
    """R79: preempt in the middle of decoding, resume, compare with the run that was never disturbed."""
    world = World(num_pages=9, block_size=2, pages_per_state=1, token_budget=64)
    prompt = prompt_of(4, 1)
    world.add(request("a", prompt_of(4), 8), request("b", prompt, 8))
    world.run()
    rows = [row for batch in world.batches for row in batch.rows if row.request_id == "b"]
    resumed = [row for row in rows if row.start == 0][1:]
    assert resumed
    assert all(row.num_output_tokens > 0 for row in resumed)
    whole = [*prompt, *world.output["b"]]
    for row in resumed:
        assert list(row.token_ids) == whole[: 4 + row.num_output_tokens]
    assert world.output["b"] == expected_output(prompt, 8, VOCAB)
    drawn = [row.num_output_tokens for row in rows if row.samples]
    assert drawn == list(range(8))


# -- ends ---------------------------------------------------------------------------------------


def test_max_tokens_ends_with_length() -> None:
    world = World()
    world.add(request("a", prompt_of(3), 5))
    world.run()
    assert world.reason("a") is FinishReason.LENGTH
    assert world.finished["a"].stop_reason is None
    assert world.finished["a"].usage.output_tokens == 5


def with_sampling(sampling: SamplingParams) -> Request:
    return Request(request_id="a", prompt_token_ids=(0, 1), sampling=sampling)


def stop_token_cases() -> Iterable[tuple[SamplingParams, tuple[int, ...], int]]:
    """(sampling, the model's stop tokens, tokens drawn until the stop) where 3, 4, 5, 3 ... is drawn."""
    yield SamplingParams(max_tokens=9), (4,), 2
    yield SamplingParams(max_tokens=9, stop_token_ids=(5,)), (4,), 2
    yield SamplingParams(max_tokens=9, stop_token_ids=(5,), ignore_eos=True), (4,), 3
    yield SamplingParams(max_tokens=9, stop_token_ids=(3,)), (), 1


@pytest.mark.parametrize(("sampling", "stops", "count"), list(stop_token_cases()))
def test_stop_tokens_end_with_stop_and_are_drawn_last(
    sampling: SamplingParams, stops: tuple[int, ...], count: int
) -> None:
    scheduler = Scheduler(
        SchedulerConfig(max_model_len=99, stop_token_ids=stops), SmallLayout(), PagePool(20)
    )
    scheduler.add(with_sampling(sampling))
    drawn: list[int] = []
    for token_id in (3, 4, 5, 3, 4, 5):
        batch = scheduler.schedule()
        assert batch is not None
        (update,) = scheduler.update(batch, answer(batch, token_id))
        drawn += update.token_ids
        if update.finish_reason is not None:
            break
    assert (update.finish_reason, update.stop_reason) == (FinishReason.STOP, drawn[-1])
    assert len(drawn) == count
    scheduler.check()


@pytest.mark.parametrize("max_tokens", [None, 50])
def test_the_context_length_ends_with_length(max_tokens: int | None) -> None:
    world = World(max_model_len=10)
    world.add(request("a", prompt_of(6), max_tokens))
    world.run()
    assert world.reason("a") is FinishReason.LENGTH
    assert world.output["a"] == expected_output(prompt_of(6), 4, VOCAB)


@pytest.mark.parametrize("max_tokens", [None, 50])
def test_a_full_pool_ends_with_length_and_not_with_a_standstill(max_tokens: int | None) -> None:
    world = World(num_pages=1 + 2 + 3, block_size=4, pages_per_state=2)
    world.add(request("a", prompt_of(6), max_tokens))
    world.run()
    assert world.reason("a") is FinishReason.LENGTH
    # Twelve tokens are computed; the thirteenth is drawn and needs no page.
    assert world.output["a"] == expected_output(prompt_of(6), 7, VOCAB)


def test_a_failed_row_ends_its_request_alone() -> None:
    world = World()
    world.add(request("a", prompt_of(3), 4), request("b", prompt_of(5), 4))
    world.step()
    world.executor.fail_request("a")
    world.run()
    assert world.reason("a") is FinishReason.ERROR
    assert world.finished["a"].error == "non-finite logits"
    assert world.output["a"] == expected_output(prompt_of(3), 1, VOCAB)
    assert world.output["b"] == expected_output(prompt_of(5), 4, VOCAB)


def test_pages_of_a_failed_request_are_scrubbed_before_anyone_gets_them() -> None:
    world = World(num_pages=1 + 2 + 2)
    world.add(request("a", prompt_of(5), 4))
    batch = world.schedule()
    assert batch is not None
    used = sorted([*batch.rows[0].state_table, *batch.rows[0].block_table])
    world.executor.fail_request("a")
    world.finish_step(batch)
    assert world.pool.counts().tainted == 4
    assert world.pool.num_free == 0
    # The next request can only live on these very pages; the tag executor checks that they are clean.
    world.add(request("b", prompt_of(6), 2))
    batch = world.step()
    assert batch is not None
    assert sorted(batch.scrubs) == used
    world.run()
    assert world.output["b"] == expected_output(prompt_of(6), 2, VOCAB)


def test_pages_of_requests_that_ended_well_are_not_scrubbed() -> None:
    world = World()
    world.add(request("a", prompt_of(3), 2))
    world.run()
    world.add(request("b", prompt_of(3), 2))
    world.run()
    assert all(batch.scrubs == () for batch in world.batches)


# -- abort --------------------------------------------------------------------------------------


def test_abort_of_a_waiting_request_leaves_no_trace() -> None:
    world = World(max_num_seqs=1)
    world.add(request("a", prompt_of(2), 2), request("b", prompt_of(2), 2))
    world.step()
    update = world.abort("b")
    assert update is not None
    assert update.finish_reason is FinishReason.ABORT
    world.run()
    assert "b" not in [new.request_id for batch in world.batches for new in batch.new_requests]
    assert "b" not in [request_id for batch in world.batches for request_id in batch.released]


def test_abort_between_steps_frees_the_pages_at_once() -> None:
    world = World()
    world.add(request("a", prompt_of(9), 5))
    world.step()
    assert world.pool.counts().leased > 0
    world.abort("a")
    assert world.pool.counts().leased == 0
    assert world.schedule() is None


def test_abort_while_a_step_runs_frees_the_pages_when_it_is_back_and_drops_its_token() -> None:
    world = World()
    world.add(request("a", prompt_of(9), 5), request("b", prompt_of(2), 2))
    batch = world.schedule()
    assert batch is not None
    held = world.pool.counts().leased
    world.abort("a")
    assert world.pool.counts().leased == held
    updates = world.finish_step(batch)
    assert [update.request_id for update in updates] == ["b"]
    assert world.pool.counts().leased < held
    world.run()
    assert world.output["a"] == []
    assert world.output["b"] == expected_output(prompt_of(2), 2, VOCAB)


def test_an_aborted_row_that_failed_is_scrubbed_all_the_same() -> None:
    world = World()
    world.add(request("a", prompt_of(9), 5))
    batch = world.schedule()
    assert batch is not None
    world.executor.fail_request("a")
    world.abort("a")
    assert world.finish_step(batch) == []
    assert world.pool.counts().tainted == 5


def test_an_id_can_come_again_while_the_step_of_its_aborted_life_still_runs() -> None:
    world = World()
    world.add(request("a", prompt_of(9), 5))
    batch = world.schedule()
    assert batch is not None
    world.scheduler.abort("a")
    again = prompt_of(6, 3)
    world.add(request("a", again, 4))
    world.scheduler.check()
    assert world.finish_step(batch) == []
    world.run()
    assert world.output["a"] == expected_output(again, 4, VOCAB)


def test_abort_of_an_unknown_or_finished_request_is_nothing() -> None:
    world = World()
    assert world.scheduler.abort("nobody") is None
    world.add(request("a", prompt_of(2), 1))
    world.run()
    assert world.scheduler.abort("a") is None


def test_finish_ends_a_request_for_a_reason_of_the_caller() -> None:
    world = World()
    world.add(request("a", prompt_of(2), 9))
    world.step()
    update = world.scheduler.finish("a", FinishReason.STOP)
    assert update is not None
    assert (update.finish_reason, update.usage.output_tokens) == (FinishReason.STOP, 1)
    assert world.pool.counts().leased == 0
    assert not world.scheduler.has_work


def test_abandon_gives_every_page_back_tainted_even_in_the_middle_of_a_step() -> None:
    world = World(max_num_seqs=3)
    world.add(*(request(name, prompt_of(5), 3) for name in "abcd"))
    world.schedule()
    world.scheduler.abort("b")
    held = world.pool.counts().leased
    world.scheduler.abandon()
    world.scheduler.check()
    assert not world.scheduler.has_work
    assert (world.pool.counts().leased, world.pool.counts().tainted) == (0, held)


# -- refusals -----------------------------------------------------------------------------------


def test_a_prompt_over_the_context_is_refused_with_the_limit() -> None:
    world = World(max_model_len=10)
    world.add(request("fits", prompt_of(9), 1))
    with pytest.raises(RequestTooLargeError, match=r"at most 9 tokens.*Given: 10\.") as error:
        world.add(request("long", prompt_of(10), 1))
    assert error.value.param == "prompt"
    world.run()


def test_a_prompt_over_the_pool_is_refused_with_its_need_and_the_limit() -> None:
    world = World(num_pages=6, block_size=4, pages_per_state=2)
    world.add(request("fits", prompt_of(12), 1))
    with pytest.raises(RequestTooLargeError, match=r"needs 6 pages.*has 5.*at most 12 tokens\. Given: 13"):
        world.add(request("long", prompt_of(13), 1))
    world.run()


def test_a_pool_that_can_not_hold_a_state_refuses_every_request() -> None:
    world = World(num_pages=3, pages_per_state=2)
    with pytest.raises(RequestTooLargeError, match="needs 3 pages of memory and the engine has 2"):
        world.add(request("a", (0,), 1))
    assert world.schedule() is None


@pytest.mark.parametrize("token_id", [-1, 7])
def test_tokens_outside_the_vocabulary_are_refused(token_id: int) -> None:
    scheduler = Scheduler(SchedulerConfig(max_model_len=9, vocab_size=7), SmallLayout(), PagePool(9))
    scheduler.add(request("fits", (0, 6)))
    with pytest.raises(RequestError, match=r"between 0 and 6\. Given: "):
        scheduler.add(request("a", (0, token_id, 3)))


def test_empty_prompts_and_ids_that_are_alive_are_refused() -> None:
    world = World()
    with pytest.raises(RequestError, match="at least one token"):
        world.add(request("a", ()))
    world.add(request("a", (1,), 1))
    with pytest.raises(RequestError, match="must be unique") as error:
        world.add(request("a", (0,), 1))
    assert error.value.param == "request_id"
    world.run()
    assert world.output["a"] == expected_output((1,), 1, VOCAB)


@pytest.mark.parametrize(
    "field",
    [
        {"max_model_len": 1},
        {"token_budget": 0},
        {"max_num_seqs": 0},
        {"headroom": -1},
        {"vocab_size": 0},
    ],
)
def test_config_values_out_of_range_are_refused_by_name(field: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=f"{next(iter(field))} must be at least"):
        msgspec.convert({"max_model_len": 9, **field}, SchedulerConfig)


# -- a broken executor --------------------------------------------------------------------------


def test_one_step_at_a_time() -> None:
    world = World()
    world.add(request("a", prompt_of(2), 2))
    batch = world.schedule()
    assert batch is not None
    with pytest.raises(InvariantError, match="before the running step's update"):
        world.scheduler.schedule()
    world.finish_step(batch)
    with pytest.raises(InvariantError, match="not running"):
        world.scheduler.update(batch, answer(batch))


def broken_answers() -> Iterable[tuple[str, str]]:
    yield "wrong step", "answered step 7"
    yield "row missing", "each of the 2 rows"
    yield "row twice", "each of the 2 rows"
    yield "stranger", "each of the 2 rows"
    yield "no token", "must draw 1 tokens"
    yield "token for a chunk", "must draw 0 tokens"


@pytest.mark.parametrize(("fault", "message"), list(broken_answers()))
def test_an_answer_that_does_not_fit_the_batch_changes_nothing(fault: str, message: str) -> None:
    world = World(token_budget=6)
    world.add(request("a", prompt_of(2), 2), request("b", prompt_of(9), 2))
    batch = world.schedule()
    assert batch is not None
    good = world.executor.run(batch)
    a, b = sorted(good.rows, key=lambda row: row.request_id)
    wrong = {
        "wrong step": msgspec.structs.replace(good, step=7),
        "row missing": msgspec.structs.replace(good, rows=(a,)),
        "row twice": msgspec.structs.replace(good, rows=(a, a)),
        "stranger": msgspec.structs.replace(good, rows=(a, msgspec.structs.replace(b, request_id="x"))),
        "no token": msgspec.structs.replace(good, rows=(msgspec.structs.replace(a, token_ids=()), b)),
        "token for a chunk": msgspec.structs.replace(
            good, rows=(a, msgspec.structs.replace(b, token_ids=(1,)))
        ),
    }[fault]
    with pytest.raises(InvariantError, match=message):
        world.scheduler.update(batch, wrong)
    world.scheduler.check()
    for update in world.scheduler.update(batch, good):
        world.record(update)
    world.run()
    assert world.output["a"] == expected_output(prompt_of(2), 2, VOCAB)


def test_stats_count_what_happened() -> None:
    world = World(token_budget=4)
    world.add(request("a", prompt_of(6), 3))
    world.step()
    stats = world.scheduler.stats()
    assert (stats.running, stats.waiting, stats.steps, stats.computed_tokens) == (1, 0, 1, 4)
    assert (stats.pages.owned, stats.pages.free, stats.pages.total) == (3, 60, 64)
    world.run()
    stats = world.scheduler.stats()
    assert (stats.steps, stats.computed_tokens, stats.output_tokens, stats.finished) == (4, 8, 3, 1)
