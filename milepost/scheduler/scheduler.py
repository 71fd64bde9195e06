"""The scheduler: which tokens are computed in which step, and on which pages.

One sentence governs it: *computed tokens catch up with wanted tokens*. There is no prefill phase
and no decode phase; a prompt, a chunk of one, one drawn token and a preempted request's past are
all tokens that are wanted and not computed.

    schedule   running first, then waiting, under the token budget  ->  Batch
    update     advance by what the step computed, publish it, append what it drew, end what is done
    abort      at any moment; a step that is running still owns the request's pages until it is back

Why it always gets on: the first running request gets at least one token, or everybody behind it is
preempted until it does; alone it fits, because `add` refuses what could not. When nobody runs, the
first waiting request is admitted. So no budget, block size or pool size can stop it.

Why one request's fault is not another's: when a step's rows fail together, nothing tells whose fault
it was. All of them become *suspects*: they lose their pages, and each computes again by itself, before
anybody else gets on, as far as it was in the failed step. Who fails by itself ends with an error. Even
if all pass and fail together again, each has got on by what the failed step was to compute.

Why nobody starves within a priority: turns go by arrival, a request that does not fit yet holds
back those behind it, and the victim of a preemption is always the last in line. A preempted
request keeps its place.
"""

from __future__ import annotations

from milepost.errors import ConfigError, ExecutionError, InvariantError, RequestError
from milepost.memory.layout import Layout
from milepost.memory.pool import PagePool
from milepost.prefix.cache import PrefixCache
from milepost.prefix.plan import Reason
from milepost.prefix.reports import CacheStats, Explanation
from milepost.scheduler.admission import Admission
from milepost.scheduler.config import SchedulerConfig
from milepost.scheduler.limits import Limits
from milepost.scheduler.lives import Lives, pages_of
from milepost.scheduler.reports import SchedulerStats, TokenUpdate
from milepost.scheduler.results import outcomes_by_id
from milepost.scheduler.roster import Roster
from milepost.scheduler.sequence import Sequence
from milepost.scheduler.step import Step
from milepost.scheduler.transfers import Transfers
from milepost.scheduler.turns import Turns
from milepost.types import Batch, BatchResult, FinishReason, NewRequest, Request, Row, RowResult, TokenIds

__all__ = ["Scheduler"]

# Different prompts that fail by themselves, one after the other, before it can't be their fault. The same one
# again is no news: clients repeat what has failed.
_MOST_FAILURES = 10

_NO_CACHE = (
    "The prefix cache is off. Start the engine with it: without --no-prefix-cache, or prefix_cache=True."
)


class Scheduler:
    """Decides every step; see the module's text.

    Not thread-safe, and one step at a time: `schedule`, run the batch, `update`. `add`, `abort` and
    `finish` may come in between.

    Args:
        config: the limits.
        layout: how tokens and states lie in pages.
        pool: where the pages come from; nobody else takes any.
        cache: the prefix cache over the same pool; None to compute everything.
    """

    def __init__(
        self, config: SchedulerConfig, layout: Layout, pool: PagePool, cache: PrefixCache | None = None
    ) -> None:
        self._config = config
        self._pool = pool
        self._cache = cache
        self._pages_per_state = layout.pages_per_state
        self._lives = Lives(layout, pool, cache)
        self._roster = Roster(1 if cache is None else cache.config.match_unit)
        self._transfers = Transfers(cache)
        admission = Admission(config, self._lives, self._roster, self._transfers, cache)
        self._turns = Turns(config, self._lives, self._roster, self._transfers, admission)
        self._limits = Limits(config, layout, pool)
        self._step: Step | None = None
        self._released: list[str] = []
        self._num_added = 0
        self._num_steps = 0
        self._num_computed = 0
        self._num_drawn = 0
        self._num_finished = 0
        self._num_failed_steps = 0
        self._failed_in_a_row: set[int] = set()  # hashes of prompts

    @property
    def has_work(self) -> bool:
        """Whether any request is alive."""
        return bool(self._roster.alive)

    @property
    def num_running(self) -> int:
        """Requests that hold pages."""
        return len(self._roster.running)

    @property
    def num_computed(self) -> int:
        """Tokens computed so far, those computed again after a preemption included."""
        return self._num_computed

    @property
    def num_writing(self) -> int:
        """Snapshots that the running step writes; spare ones, which wait for free memory, not counted."""
        return 0 if self._step is None else self._step.num_snapshots

    @property
    def has_transfers(self) -> bool:
        """Whether copies to another tier wait for the next batch; they need no request to be alive."""
        return self._transfers.waiting

    @property
    def transfers_running(self) -> bool:
        """Whether copies to or from another tier have not ended; the coming batches tell when they have."""
        return self._transfers.running

    @property
    def limits(self) -> Limits:
        """What can be served at all; it never changes and is safe to ask from any thread."""
        return self._limits

    def add(self, request: Request) -> None:
        """Accept a request; it waits for its turn.

        Raises:
            RequestError: what `Limits.validate` raises, or the id belongs to a request that is alive.
        """
        self._limits.validate(request)
        if request.request_id in self._roster.alive:
            raise RequestError(
                f"request_id must be unique among the requests alive. Given: {request.request_id!r}.",
                param="request_id",
            )
        sequence = Sequence(
            request,
            arrival=self._num_added,
            length_limit=self._limits.max_length,
            stop_token_ids=self._config.stop_token_ids,
        )
        self._num_added += 1
        if self._cache is not None:
            sequence.trail = self._cache.open(request)
        self._roster.add(sequence)

    def schedule(self) -> Batch | None:
        """Plan the next step, or None when no request is alive.

        Raises:
            InvariantError: the step before has not come back, or nothing could be planned.
        """
        if self._step is not None:
            raise InvariantError("schedule was called before the running step's update")
        if not self._roster.alive and not self.has_transfers:
            return None
        # The batch that carries these scrubs runs them before its rows, so the pages are free now.
        scrubs = self._pool.take_tainted()
        step = Step(self._config.token_budget)
        self._turns.plan(step)
        if not step.chunks and self._roster.alive and not self._transfers.running:
            raise InvariantError(
                f"no token could be planned: {len(self._roster.running)} running, {self._roster.num_idle} "
                f"waiting, {self._pool.counts()}"
            )
        batch = self._send(step, scrubs)
        self._step = step
        return batch

    def drain(self) -> Batch | None:
        """A batch that only lets transfers go on, for an engine that ends; None when all have ended.

        Raises:
            InvariantError: a request is alive, or the step before has not come back.
        """
        if self._step is not None or self._roster.alive:
            raise InvariantError("drain was called while a step runs or a request is alive")
        if not self._transfers.waiting and not self._transfers.running:
            return None
        self._step = Step(0)
        return self._send(self._step, self._pool.take_tainted(), may_wait=False)

    def update(self, batch: Batch, result: BatchResult) -> list[TokenUpdate]:
        """Take in what a step computed and drew; the only place where anything counts as computed.

        Returns:
            news of every request that drew a token or ended, in the batch's order.

        Raises:
            InvariantError: the result does not answer the running step; nothing has changed.
            ExecutionError: so many requests have failed by themselves that it can't be their fault;
                nothing has changed.
        """
        step = self._step
        if step is None or step.batch is not batch:
            raise InvariantError("update was called for a batch that is not running")
        # By request id, never by place: an executor may answer in any order.
        outcomes = outcomes_by_id(batch, result)
        self._count_failures(step, batch, result)
        self._step = None
        self._roster.loaded(self._transfers.ended(result.transfers))
        if result.failure is not None:
            return self._rows_failed(step, batch, result.failure)
        updates: list[TokenUpdate] = []
        for row in batch.rows:
            sequence, outcome = step.sequences[row.request_id], outcomes[row.request_id]
            pages_of(sequence).end_step()
            if not self._roster.is_alive(sequence):
                # It ended while the step ran; only now does nobody write its pages.
                finite = outcome.error is None and len(outcome.snapshots) == len(row.snapshots)
                self._lives.end(sequence, tainted=not finite)
            elif outcome.error is not None:
                updates.append(self._end(sequence, FinishReason.ERROR, error=outcome.error))
            else:
                update = self._advance(sequence, row, outcome)
                if update is not None:
                    updates.append(update)
        return updates

    def abort(self, request_id: str) -> TokenUpdate | None:
        """End a request because its client gave up; returns its last news, None when it isn't alive.

        Its pages are free when this returns, or, if a running step still writes them, when that
        step's update does. What that step draws for it is dropped.
        """
        return self.finish(request_id, FinishReason.ABORT)

    def finish(self, request_id: str, reason: FinishReason) -> TokenUpdate | None:
        """End a request for a reason that the scheduler can't see, such as a stop string. As `abort`."""
        sequence = self._roster.alive.get(request_id)
        return None if sequence is None else self._end(sequence, reason)

    def abandon(self) -> None:
        """Forget every request after the executor failed; nothing that a running step wrote counts.

        All pages go back tainted. The running step's `update` must not come any more.
        """
        step, self._step = self._step, None
        if step is not None:
            for sequence in step.sequences.values():
                pages_of(sequence).end_step()
                if not self._roster.is_alive(sequence):
                    self._lives.end(sequence, tainted=True)
        for sequence in [*self._roster.alive.values()]:
            self._retire(sequence, tainted=True)
        self._forget_cached()

    def stats(self) -> SchedulerStats:
        """A snapshot for metrics and logs, between two steps."""
        return SchedulerStats(
            running=len(self._roster.running),
            waiting=self._roster.num_idle,
            pages=self._pool.counts(),
            live_state_pages=len(self._roster.running) * self._pages_per_state,
            available_pages=self._lives.num_available,
            steps=self._num_steps,
            computed_tokens=self._num_computed,
            output_tokens=self._num_drawn,
            preemptions=self._turns.num_preemptions,
            finished=self._num_finished,
            failed_steps=self._num_failed_steps,
        )

    def cache_stats(self) -> CacheStats | None:
        """What the prefix cache holds and has done; None without one."""
        return None if self._cache is None else self._cache.stats()

    def explain(self, prompt_token_ids: TokenIds, cache_salt: str = "") -> Explanation:
        """Why a prompt would hit what it would hit now; changes nothing.

        Raises:
            ConfigError: there is no prefix cache.
        """
        if self._cache is None:
            raise ConfigError(_NO_CACHE)
        return self._cache.explain(prompt_token_ids, cache_salt)

    def reset_cache(self) -> int:
        """Forget every cached prefix that no running request uses; returns how many snapshots went.

        Raises:
            ConfigError: there is no prefix cache.
        """
        if self._cache is None:
            raise ConfigError(_NO_CACHE)
        return self._forget_cached()

    def check(self) -> None:
        """Prove that pool, tables and queues agree. Costs time in proportion to all of them; for tests.

        Raises:
            InvariantError: what does not hold.
        """
        self._pool.check()
        in_step = {} if self._step is None else self._step.sequences
        holders = {id(sequence): sequence for sequence in [*self._roster.running, *in_step.values()]}
        held = 0
        for sequence in holders.values():
            pages = pages_of(sequence)
            pages.check(sequence.num_computed)
            held += pages.num_pages
            if pages.in_step != (in_step.get(sequence.request_id) is sequence):
                raise InvariantError(f"{sequence.request_id!r} and its pages disagree on the running step")
        counts = self._pool.counts()
        if held != counts.leased - counts.receiving:
            raise InvariantError(f"sequences hold {held} pages, the pool says {self._pool.counts()}")
        states = sum(len(pages_of(sequence).state_table) for sequence in self._roster.running)
        if states != self.stats().live_state_pages:
            raise InvariantError(f"{states} pages hold states of running requests")
        if len(self._roster.running) > self._config.max_num_seqs:
            raise InvariantError(f"{len(self._roster.running)} requests run")
        self._roster.check()
        if self._cache is not None:
            self._cache.check()

    def _forget_cached(self) -> int:
        self._roster.loaded(self._transfers.reset())
        return 0 if self._cache is None else self._cache.reset()

    # -- sending --------------------------------------------------------------------------------

    def _send(self, step: Step, scrubs: tuple[int, ...], *, may_wait: bool = True) -> Batch:
        rows: list[Row] = []
        new_requests: list[NewRequest] = []
        step.num_snapshots = self._lives.order_snapshots(step.chunks)
        for sequence, count in step.chunks:
            pages = pages_of(sequence)
            if not sequence.announced:
                new_requests.append(sequence.announcement())
                sequence.announced = True
            rows.append(
                Row(
                    request_id=sequence.request_id,
                    start=sequence.num_computed,
                    token_ids=sequence.chunk(count),
                    block_table=pages.block_table,
                    state_table=pages.state_table,
                    samples=count == sequence.num_wanted,
                    num_output_tokens=sequence.num_output_tokens,
                    snapshots=sequence.snapshot_orders(),
                )
            )
            pages.begin_step()
            step.sequences[sequence.request_id] = sequence
        batch = Batch(
            step=self._num_steps,
            rows=tuple(rows),
            new_requests=tuple(new_requests),
            released=tuple(self._released),
            scrubs=scrubs,
            tail_scrubs=self._lives.take_tail_scrubs(),
            copies=self._lives.take_copies(),
            transfers=self._transfers.take(),
            waits=may_wait and not rows and self._transfers.running,
        )
        self._released.clear()
        self._num_steps += 1
        step.batch = batch
        return batch

    # -- taking in ------------------------------------------------------------------------------

    def _count_failures(self, step: Step, batch: Batch, result: BatchResult) -> None:
        if result.failure is None:
            if batch.rows:
                self._failed_in_a_row.clear()
            return
        self._num_failed_steps += 1
        if len(batch.rows) != 1:
            return
        sequence = step.sequences[batch.rows[0].request_id]
        self._failed_in_a_row.add(hash(sequence.request.prompt_token_ids))
        if len(self._failed_in_a_row) >= _MOST_FAILURES:
            raise ExecutionError(
                f"{_MOST_FAILURES} prompts in a row failed, each in a step of its own. {result.failure}"
            )

    def _rows_failed(self, step: Step, batch: Batch, failure: str) -> list[TokenUpdate]:
        """Nothing that the step's rows wrote counts, and one of them is to blame, or none."""
        updates: list[TokenUpdate] = []
        for row in batch.rows:
            sequence = step.sequences[row.request_id]
            pages_of(sequence).end_step()
            if not self._roster.is_alive(sequence):
                self._lives.end(sequence, tainted=True, to_blame=len(batch.rows) == 1)
            elif len(batch.rows) == 1:
                updates.append(self._end(sequence, FinishReason.ERROR, error=failure))
            else:
                self._turns.suspect(sequence, row.start + len(row.token_ids))
        return updates

    def _advance(self, sequence: Sequence, row: Row, outcome: RowResult) -> TokenUpdate | None:
        sequence.num_computed += len(row.token_ids)
        self._num_computed += len(row.token_ids)
        self._lives.step_done(sequence, outcome)
        self._roster.passed(sequence)
        if 0 < sequence.suspected_to <= sequence.num_computed:
            self._roster.acquit(sequence)
        if not row.samples:
            return None
        token_id = outcome.token_ids[0]
        reason, stop_token = sequence.append(token_id)
        self._num_drawn += 1
        if reason is None and token_id in self._config.stop_token_ids:
            self._lives.message_ended(sequence)
        if reason is not None:
            self._retire(sequence)
        return TokenUpdate(
            request_id=sequence.request_id,
            token_ids=outcome.token_ids,
            logprobs=outcome.logprobs,
            finish_reason=reason,
            stop_reason=stop_token,
            usage=sequence.usage(),
        )

    def _end(self, sequence: Sequence, reason: FinishReason, *, error: str | None = None) -> TokenUpdate:
        self._retire(sequence, tainted=reason is FinishReason.ERROR)
        return TokenUpdate(
            request_id=sequence.request_id, finish_reason=reason, error=error, usage=sequence.usage()
        )

    def _retire(self, sequence: Sequence, *, tainted: bool = False) -> None:
        """Forget a request; its pages go now, or with the update of the step that still writes them."""
        self._roster.retire(sequence)
        self._num_finished += 1
        if sequence.announced:
            self._released.append(sequence.request_id)
        if sequence.pages is not None and not sequence.pages.in_step:
            keep = None if tainted or not sequence.keeps_last else Reason.LAST
            self._lives.end(sequence, keep=keep, tainted=tainted)
