"""Small worlds for scheduler tests: a layout of free sizes, and a loop that checks every step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec

from milepost.memory.pool import PagePool
from milepost.prefix.cache import PrefixCache
from milepost.prefix.config import CacheConfig
from milepost.scheduler.config import SchedulerConfig
from milepost.scheduler.reports import TokenUpdate
from milepost.scheduler.scheduler import Scheduler
from milepost.testing.tag_executor import TagExecutor, expected_output
from milepost.testing.tag_tiers import TagTiers
from milepost.types import Batch, BatchResult, FinishReason, Request, SamplingParams, Transfer
from tests.scheduler.cached_content import CachedContent

VOCAB = 2
STEP_SECONDS = 0.1


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
    request_id: str,
    prompt: Sequence[int],
    max_tokens: int | None = 8,
    *,
    priority: int = 0,
    salt: str = "",
    message_ends: Sequence[int] = (),
    output_reusable: bool = True,
    ignore_eos: bool = False,
) -> Request:
    return Request(
        request_id=request_id,
        prompt_token_ids=tuple(prompt),
        sampling=SamplingParams(max_tokens=max_tokens, ignore_eos=ignore_eos),
        priority=priority,
        cache_salt=salt,
        message_ends=tuple(message_ends),
        output_reusable=output_reusable,
    )


def cache_config(**changes: object) -> CacheConfig:
    """Settings of a cache whose keys are the same in every run."""
    return msgspec.structs.replace(CacheConfig(secret=bytes(range(16))), **changes)


def prompt_of(length: int, seed: int = 0) -> tuple[int, ...]:
    """A prompt of 0s and 1s that differs between seeds."""
    return tuple((seed + 1) * (position + 3) * 7919 // 11 % VOCAB for position in range(length))


class TierOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Tiers behind a world's cache, and how their transfers go."""

    host_pages: int
    disk_pages: int = 0
    least_gain: int = 1
    steps_of: Callable[[Transfer], int] | None = None
    error_of: Callable[[Transfer], str | None] | None = None

    def build(self, cache: PrefixCache) -> TagTiers:
        tiers = cache.add_tiers(self.host_pages, self.disk_pages, least_gain=self.least_gain)
        return TagTiers(
            host_pages=self.host_pages,
            disk_pages=self.disk_pages,
            free_host_pages=tiers._host.pool.free_pages,
            steps_of=self.steps_of,
            error_of=self.error_of,
        )


class World:
    """Scheduler, pool and tag executor, with everything that requests were told.

    With `cache` there is a prefix cache, of which every operation proves that it holds what its keys
    say. Its clock goes on by `STEP_SECONDS` a step. With `tiers` there is a host tier behind it, and a
    disk if they have pages for one.

    Attributes:
        output: drawn tokens by request id.
        finished: how each request ended; more than one end fails at once.
        batches: every batch that was scheduled.
        results: what the executor answered to each.
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
        cache: CacheConfig | None = None,
        tiers: TierOptions | None = None,
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
        self.now = 0.0
        self.cache: PrefixCache | None = None
        if cache is not None:
            self.cache = PrefixCache(cache, self.layout, self.pool, clock=lambda: self.now)
        self.tiers: TagTiers | None = None
        if self.cache is not None and tiers is not None:
            self.tiers = tiers.build(self.cache)
        self.scheduler = Scheduler(self.config, self.layout, self.pool, self.cache)
        self.requests: dict[str, Request] = {}
        self.executor = TagExecutor(
            self.layout,
            num_pages,
            vocab_size=VOCAB,
            free_pages=self.pool.free_pages,
            cached_pages=self.cached_pages,
            salt_of=lambda request_id: self.requests[request_id].cache_salt,
            tiers=self.tiers,
        )
        self.content: CachedContent | None = None
        if self.cache is not None:
            self.content = CachedContent(self.cache, self.executor, block_size, self.tiers)
        self.output: dict[str, list[int]] = {}
        self.finished: dict[str, TokenUpdate] = {}
        self.batches: list[Batch] = []
        self.results: list[BatchResult] = []
        self.planned: tuple[Transfer, ...] = ()

    def add(self, *requests: Request) -> None:
        for one in requests:
            self.scheduler.add(one)
            self.requests[one.request_id] = one
            if self.content is not None:
                self.content.learn(one.request_id, one.prompt_token_ids, one.cache_salt)

    def check(self) -> None:
        """Whatever can be proved at any moment."""
        self.scheduler.check()
        if self.content is not None:
            self.content.check(self.planned)

    def schedule(self) -> Batch | None:
        batch = self.scheduler.schedule()
        self.planned = () if batch is None else batch.transfers
        self.check()
        if batch is not None:
            self.batches.append(batch)
            # Only transfers go without tokens.
            assert (batch.num_tokens > 0) or batch.transfers or batch.waits
            assert batch.num_tokens <= self.config.token_budget
            assert len(batch.rows) <= self.config.max_num_seqs
        return batch

    def finish_step(self, batch: Batch) -> list[TokenUpdate]:
        self.results.append(self.executor.run(batch))
        self.planned = ()
        updates = self.scheduler.update(batch, self.results[-1])
        self.now += STEP_SECONDS
        for update in updates:
            self.record(update)
        self.check()
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
        if self.content is not None:
            self.content.grow(update.request_id, update.token_ids)
        if update.finish_reason is not None:
            self.finished[update.request_id] = update

    def abort(self, request_id: str) -> TokenUpdate | None:
        update = self.scheduler.abort(request_id)
        self.record(update)
        self.check()
        return update

    def run(self, limit: int = 100_000) -> None:
        """Step until nothing is alive; `limit` steps are far more than any test needs."""
        for _ in range(limit):
            if self.step() is None:
                break
        assert not self.scheduler.has_work
        self.land()
        self.check_idle()

    def land(self) -> None:
        """Let transfers that are still on their way end: results come only with steps."""
        while self.tiers is not None and self.tiers.num_in_flight:
            self.add(request(f"lands {len(self.batches)}", (0,), 1))
            while self.step() is not None:
                pass

    def check_idle(self) -> None:
        """Nobody owns or holds anything, and every cached page is one that a key leads to."""
        counts = self.pool.counts()
        assert counts.free + counts.cached + counts.tainted == self.pool.num_usable
        if self.content is not None:
            self.content.check_idle(self.pool)

    def cached_pages(self) -> Iterable[int]:
        """Pages that the index names, whoever owns them."""
        return [page for page in range(self.pool.num_pages) if self.pool.references(page)]

    def expected(self, request_id: str, count: int) -> list[int]:
        """What the first `count` tokens drawn for a request must be."""
        asked = self.requests[request_id]
        return expected_output(asked.prompt_token_ids, count, VOCAB, asked.cache_salt)

    def failed_alone(self) -> set[str]:
        """Requests whose row was the only one of a step that failed as a whole."""
        steps = zip(self.batches, self.results, strict=False)
        return {
            batch.rows[0].request_id
            for batch, result in steps
            if result.failure is not None and len(batch.rows) == 1
        }

    def reason(self, request_id: str) -> FinishReason | None:
        return self.finished[request_id].finish_reason
