"""Random lives of many requests on a small pool, against an oracle that knows no scheduler.

The tag executor stops at the first wrong page, state or token; `check` proves conservation after
every operation; and what a request drew is a function of its prompt alone.
"""

from __future__ import annotations

from typing import ClassVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from milepost.errors import RequestTooLargeError
from milepost.testing.tag_executor import expected_output
from milepost.types import Batch, FinishReason, Request
from tests.scheduler.harness import VOCAB, World, request

NUM_STEPS = 10_000


class RandomLives(RuleBasedStateMachine):
    """Add, schedule, run, abort, finish and fail at random; totals are kept over all examples."""

    total_operations: ClassVar[int] = 0
    total_batches: ClassVar[int] = 0
    total_preemptions: ClassVar[int] = 0
    total_errors: ClassVar[int] = 0
    total_aborts_in_step: ClassVar[int] = 0

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.requests: dict[str, Request] = {}
        self.batch: Batch | None = None
        self.failing: set[str] = set()

    @initialize(
        num_pages=st.sampled_from([12, 9, 16, 24, 7, 4, 2]),
        block_size=st.sampled_from([2, 1, 3, 4, 8]),
        pages_per_state=st.sampled_from([1, 2, 3]),
        token_budget=st.sampled_from([5, 1, 2, 3, 8, 64]),
        max_num_seqs=st.integers(1, 5),
        max_model_len=st.sampled_from([500, 16, 500, 9, 500, 2]),
        headroom=st.sampled_from([0, 1, 0, 5, 64]),
    )
    def build(
        self,
        num_pages: int,
        block_size: int,
        pages_per_state: int,
        token_budget: int,
        max_num_seqs: int,
        max_model_len: int,
        headroom: int,
    ) -> None:
        self.world = World(
            num_pages=num_pages,
            block_size=block_size,
            pages_per_state=pages_per_state,
            token_budget=token_budget,
            max_num_seqs=max_num_seqs,
            max_model_len=max_model_len,
            headroom=headroom,
        )

    @rule(
        prompts=st.lists(
            st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=20), min_size=1, max_size=4
        ),
        max_tokens=st.one_of(st.integers(1, 12), st.none()),
        priority=st.sampled_from([0, 0, 0, 1, 2]),
    )
    def add(self, prompts: list[list[int]], max_tokens: int | None, priority: int) -> None:
        for prompt in prompts:
            self.add_one(request(str(len(self.requests)), prompt, max_tokens, priority=priority))

    def add_one(self, new: Request) -> None:
        prompt = new.prompt_token_ids
        try:
            self.world.add(new)
        except RequestTooLargeError:
            assert len(prompt) + 1 > self.world.scheduler.limits.max_length
        else:
            assert len(prompt) + 1 <= self.world.scheduler.limits.max_length
            self.requests[new.request_id] = new

    @precondition(lambda self: self.batch is None)
    @rule()
    def schedule(self) -> None:
        had_work = self.world.scheduler.has_work
        self.batch = self.world.schedule()
        assert (self.batch is not None) == had_work
        RandomLives.total_batches += self.batch is not None

    @precondition(lambda self: self.batch is not None)
    @rule()
    def update(self) -> None:
        assert self.batch is not None
        self.world.finish_step(self.batch)
        self.batch = None

    @rule(count=st.sampled_from([20, 5, 10, 40]))
    def run_steps(self, count: int) -> None:
        for _ in range(count):
            if self.batch is not None:
                self.update()
            self.schedule()
            if self.batch is None:
                break

    @precondition(lambda self: self.alive())
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        request_id = data.draw(st.sampled_from(self.alive()))
        in_step = self.batch is not None and request_id in {row.request_id for row in self.batch.rows}
        RandomLives.total_aborts_in_step += in_step
        update = self.world.abort(request_id)
        assert update is not None
        assert update.finish_reason is FinishReason.ABORT

    @precondition(lambda self: self.alive())
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        request_id = data.draw(st.sampled_from(self.alive()))
        self.world.record(self.world.scheduler.finish(request_id, FinishReason.STOP))

    @precondition(lambda self: self.alive())
    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        request_id = data.draw(st.sampled_from(self.alive()))
        self.failing.add(request_id)
        self.world.executor.fail_request(request_id)

    @invariant()
    def everything_adds_up(self) -> None:
        RandomLives.total_operations += 1
        self.world.scheduler.check()
        for request_id, drawn in self.world.output.items():
            prompt = self.requests[request_id].prompt_token_ids
            assert drawn == expected_output(prompt, len(drawn), VOCAB)

    def alive(self) -> list[str]:
        return [request_id for request_id in self.requests if request_id not in self.world.finished]

    def teardown(self) -> None:
        """Whatever is left finishes, and then nothing is owned."""
        if self.batch is not None:
            self.world.finish_step(self.batch)
        self.world.run()
        assert set(self.world.finished) == set(self.requests)
        for request_id, update in self.world.finished.items():
            if update.finish_reason is FinishReason.ERROR:
                assert request_id in self.failing
            if update.finish_reason is FinishReason.LENGTH:
                asked = self.requests[request_id]
                room = self.world.scheduler.limits.max_length - len(asked.prompt_token_ids)
                assert len(self.world.output[request_id]) == min(room, asked.sampling.max_tokens or room)
        stats = self.world.scheduler.stats()
        RandomLives.total_preemptions += stats.preemptions
        RandomLives.total_errors += sum(
            update.finish_reason is FinishReason.ERROR for update in self.world.finished.values()
        )


def test_random_lives() -> None:
    for name in ("operations", "batches", "preemptions", "errors", "aborts_in_step"):
        setattr(RandomLives, f"total_{name}", 0)
    run_state_machine_as_test(
        RandomLives,
        settings=settings(
            max_examples=600,
            stateful_step_count=60,
            derandomize=True,
            database=None,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
    assert RandomLives.total_operations >= NUM_STEPS
    # The mixture reaches what it is there for.
    assert RandomLives.total_batches >= NUM_STEPS
    assert RandomLives.total_preemptions >= 100
    assert RandomLives.total_errors >= 100
    assert RandomLives.total_aborts_in_step >= 50
