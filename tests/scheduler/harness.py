"""Small worlds for scheduler tests: a layout of free sizes, and a loop that checks every step."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from milepost.memory.pool import PagePool
from milepost.scheduler.config import SchedulerConfig
from milepost.scheduler.reports import TokenUpdate
from milepost.scheduler.scheduler import Scheduler
from milepost.testing.tag_executor import TagExecutor
from milepost.types import Batch, FinishReason, Request, SamplingParams

VOCAB = 2


class SmallLayout(msgspec.Struct, frozen=True, kw_only=True):
    """A `Layout` whose sizes are free; its pages are one byte."""

    block_size: int = 4
    pages_per_state: int = 2
    pages_per_block: int = 1
    page_bytes: int = 1
    state_bytes: int = 1
    state_padding_bytes: int = 0

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)


def request(
    request_id: str, prompt: Sequence[int], max_tokens: int | None = 8, *, priority: int = 0
) -> Request:
    return Request(
        request_id=request_id,
        prompt_token_ids=tuple(prompt),
        sampling=SamplingParams(max_tokens=max_tokens),
        priority=priority,
    )


def prompt_of(length: int, seed: int = 0) -> tuple[int, ...]:
    """A prompt of 0s and 1s that differs between seeds."""
    return tuple((seed + 1) * (position + 3) * 7919 // 11 % VOCAB for position in range(length))


class World:
    """Scheduler, pool and tag executor, with everything that requests were told.

    Attributes:
        output: drawn tokens by request id.
        finished: how each request ended; more than one end fails at once.
        batches: every batch that was scheduled.
    """

    def __init__(
        self,
        *,
        num_pages: int = 64,
        block_size: int = 4,
        pages_per_state: int = 2,
        token_budget: int = 16,
        max_num_seqs: int = 8,
        max_model_len: int = 1000,
        headroom: int = 0,
        stop_token_ids: tuple[int, ...] = (),
    ) -> None:
        self.layout = SmallLayout(block_size=block_size, pages_per_state=pages_per_state)
        self.pool = PagePool(num_pages)
        self.config = SchedulerConfig(
            max_model_len=max_model_len,
            token_budget=token_budget,
            max_num_seqs=max_num_seqs,
            headroom=headroom,
            stop_token_ids=stop_token_ids,
        )
        self.scheduler = Scheduler(self.config, self.layout, self.pool)
        self.executor = TagExecutor(self.layout, num_pages, vocab_size=VOCAB, free_pages=self.pool.free_pages)
        self.output: dict[str, list[int]] = {}
        self.finished: dict[str, TokenUpdate] = {}
        self.batches: list[Batch] = []

    def add(self, *requests: Request) -> None:
        for one in requests:
            self.scheduler.add(one)

    def schedule(self) -> Batch | None:
        batch = self.scheduler.schedule()
        self.scheduler.check()
        if batch is not None:
            self.batches.append(batch)
            assert 1 <= batch.num_tokens <= self.config.token_budget
            assert len(batch.rows) <= self.config.max_num_seqs
        return batch

    def finish_step(self, batch: Batch) -> list[TokenUpdate]:
        updates = self.scheduler.update(batch, self.executor.run(batch))
        self.scheduler.check()
        for update in updates:
            self.record(update)
        return updates

    def step(self) -> Batch | None:
        batch = self.schedule()
        if batch is not None:
            self.finish_step(batch)
        return batch

    def record(self, update: TokenUpdate | None) -> None:
        if update is None:
            return
        assert update.request_id not in self.finished
        self.output.setdefault(update.request_id, []).extend(update.token_ids)
        if update.finish_reason is not None:
            self.finished[update.request_id] = update

    def abort(self, request_id: str) -> TokenUpdate | None:
        update = self.scheduler.abort(request_id)
        self.scheduler.check()
        self.record(update)
        return update

    def run(self, limit: int = 100_000) -> None:
        """Step until nothing is alive; `limit` steps are far more than any test needs."""
        for _ in range(limit):
            if self.step() is None:
                break
        assert not self.scheduler.has_work
        assert self.pool.counts().leased == 0

    def reason(self, request_id: str) -> FinishReason | None:
        return self.finished[request_id].finish_reason
