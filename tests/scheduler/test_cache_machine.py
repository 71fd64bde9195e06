"""Random lives of requests that share prefixes, on a small pool with a prefix cache, against oracles.

Prompts are cut and continued from what others said before, so that they part and meet at any token.
Three oracles look on: tags, which stop at the first page or state that is not a row's own; the
`check` of pool, index and scheduler; and `CachedContent`, which knows the key of every prefix there
ever was and proves after each operation that what is cached is what its key says.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, Phase, settings
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
from milepost.types import Batch, FinishReason, Request, Tier, Transfer
from tests.scheduler.harness import VOCAB, TierOptions, World, cache_config, request

MAX_PROMPT = 40
PHASES = [Phase.generate]
POLICIES = [
    "adaptive",
    "every(1)",
    "turns+branch+every(5)",
    "last",
    "prompt-tail+last",
    "adaptive(spare=2)",
    "turns",
    "branch",
    "every(3)",
    "budget(snapshots=3)",
    "none",
]
EVICTIONS = ["value", "lru", "marconi(alpha=1)", "marconi(alpha=0)"]
DISTURBANCES = ["abort", "abort", "fail", "fail", "fail_snapshot", "finish", "reset", "break", "break_next"]
SALTS = ["", "", "", "", "a", "b"]

SIZES = st.fixed_dictionaries(
    {
        "num_pages": st.sampled_from([40, 24, 16, 64, 12, 6]),
        "block_size": st.integers(1, 8),
        "pages_per_state": st.sampled_from([1, 2, 3]),
        "token_budget": st.sampled_from([7, 1, 2, 3, 16, 64]),
        "max_num_seqs": st.integers(1, 5),
        "max_model_len": st.sampled_from([500, 60, 20]),
        "headroom": st.sampled_from([0, 0, 1, 5]),
        "stop_token_ids": st.sampled_from([(), (), (1,)]),
    }
)
CACHES = st.fixed_dictionaries(
    {
        "match_unit": st.integers(1, 8),
        "snapshot_policy": st.sampled_from(POLICIES),
        "eviction": st.sampled_from(EVICTIONS),
        "wait_for_leaders": st.booleans(),
    }
)
OPTIONS = st.fixed_dictionaries(
    {
        "max_tokens": st.one_of(st.integers(1, 12), st.none()),
        "salt": st.sampled_from(SALTS),
        "priority": st.sampled_from([0, 0, 0, 1]),
        "output_reusable": st.booleans(),
        "ignore_eos": st.booleans(),
    }
)

TIERS = st.one_of(
    st.none(),
    st.tuples(st.sampled_from([40, 20, 8, 100, 2]), st.sampled_from([0, 0, 40, 10]), st.integers(0, 99)),
)

# What the mixture must reach, of each at least so many in 5,000 operations: well below what it does reach,
# because any change of the code changes what is drawn.
REACHED = {
    "batches": 2000,
    "hits": 100,
    "hits inside a block": 80,
    "hits between units": 50,
    "copied pages": 300,
    "evicted snapshots": 1000,
    "evicted KV pages": 1000,
    "preemptions": 50,
    "resumed preemptions": 20,
    "waits": 50,
    "host stores": 50,
    "host loads": 5,
    "host failures": 1,
    "disk stores": 5,
    "aborts in a step": 10,
    "errors": 10,
    "broken steps": 40,
    "rows of broken steps": 60,
    "snapshots not finite": 2,
    "resets": 10,
}


def random_tiers(host_pages: int, disk_pages: int, draws: random.Random) -> TierOptions:
    """Tiers whose transfers in the background take some steps, and fail now and then."""

    def error_of(transfer: Transfer) -> str | None:
        down = (transfer.source, transfer.target) == (Tier.ARENA, Tier.HOST)
        return "torn" if not down and draws.random() < 0.2 else None

    return TierOptions(
        host_pages=host_pages,
        disk_pages=disk_pages,
        steps_of=lambda _: draws.choice([0, 0, 1, 2, 5]),
        error_of=error_of,
    )


class CacheLives(RuleBasedStateMachine):
    """Add, schedule, run, abort, finish, fail and reset at random; totals are kept over all examples."""

    totals: ClassVar[Counter[str]] = Counter()

    def __init__(self) -> None:
        super().__init__()
        self.world = World(cache=cache_config())
        self.batch: Batch | None = None
        self.failing: set[str] = set()

    @initialize(sizes=SIZES, cache=CACHES, tiers=TIERS)
    def build(self, sizes: dict[str, Any], cache: dict[str, Any], tiers: tuple[int, int, int] | None) -> None:
        options = None
        if tiers is not None:
            host_pages, disk_pages, seed = tiers
            options = random_tiers(host_pages, disk_pages, random.Random(seed))
        self.world = World(**sizes, cache=cache_config(**cache), tiers=options)

    @rule(
        source=st.integers(0, 5),
        cut=st.integers(-2, 12),
        more=st.lists(st.integers(0, VOCAB - 1), max_size=10),
        copies=st.sampled_from([1, 1, 1, 2, 3]),
        ends=st.lists(st.integers(1, MAX_PROMPT), max_size=3),
        options=OPTIONS,
    )
    def add(
        self, source: int, cut: int, more: list[int], copies: int, ends: list[int], options: dict[str, Any]
    ) -> None:
        prompt = [*self.cut_text(source, cut), *more][:MAX_PROMPT] or [0]
        message_ends = sorted({end for end in ends if end <= len(prompt)})
        for _ in range(copies):
            name = str(len(self.world.requests))
            self.add_one(request(name, prompt, message_ends=message_ends, **options))

    def cut_text(self, source: int, cut: int) -> list[int]:
        """What an earlier request has said so far, less its last `cut` tokens; less than none adds some."""
        earlier = list(self.world.requests.values())[-1 - source :]
        if not earlier:
            return []
        text = [*earlier[0].prompt_token_ids, *self.world.output.get(earlier[0].request_id, [])]
        return [*text, *[1] * -cut] if cut < 0 else text[: len(text) - cut]

    def add_one(self, new: Request) -> None:
        too_long = len(new.prompt_token_ids) + 1 > self.world.scheduler.limits.max_length
        try:
            self.world.add(new)
        except RequestTooLargeError:
            assert too_long
        else:
            assert not too_long

    @precondition(lambda self: self.batch is None)
    @rule()
    def schedule(self) -> None:
        had_work = self.world.scheduler.has_work or self.world.scheduler.has_transfers
        self.batch = self.world.schedule()
        assert (self.batch is not None) == had_work
        if self.batch is not None:
            self.totals["batches"] += 1

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
    @rule(kind=st.sampled_from(DISTURBANCES), runs=st.booleans(), data=st.data())
    def disturb(self, kind: str, runs: bool, data: st.DataObject) -> None:
        request_id = data.draw(st.sampled_from((runs and self.running()) or self.alive()))
        if kind == "reset":
            self.world.scheduler.reset_cache()
            self.totals["resets"] += 1
        elif kind == "fail":
            self.failing.add(request_id)
            self.world.executor.fail_request(request_id)
        elif kind == "fail_snapshot":
            self.world.executor.fail_snapshot(request_id)
        elif kind == "break":
            self.failing.add(request_id)
            self.world.executor.break_steps(request_id, data.draw(st.integers(0, MAX_PROMPT)))
        elif kind == "break_next":
            self.world.executor.break_next_step()
        elif kind == "finish":
            self.world.record(self.world.scheduler.finish(request_id, FinishReason.STOP))
            self.world.check()
        else:
            self.abort(request_id)

    def abort(self, request_id: str) -> None:
        if self.batch is not None:
            self.totals["aborts in a step"] += request_id in {row.request_id for row in self.batch.rows}
        update = self.world.abort(request_id)
        assert update is not None
        assert update.finish_reason is FinishReason.ABORT

    @precondition(lambda self: self.world.requests)
    @rule(source=st.integers(0, 5), cut=st.integers(0, 12), salt=st.sampled_from(SALTS))
    def explain(self, source: int, cut: int, salt: str) -> None:
        prompt = tuple(self.cut_text(source, cut)) or (0,)
        told = self.world.scheduler.explain(prompt, salt)
        assert told.hit_tokens < len(prompt)
        assert told.hit_tokens <= told.matched_tokens <= len(prompt)
        assert told.hit_tokens + sum(told.losses.values()) == len(prompt)
        assert all(tokens > 0 for tokens in told.losses.values())

    @invariant()
    def everything_adds_up(self) -> None:
        # The world has proved all the rest; what was drawn is compared when all are done.
        self.totals["operations"] += 1
        self.world.scheduler.check()

    def alive(self) -> list[str]:
        return [request_id for request_id in self.world.requests if request_id not in self.world.finished]

    def running(self) -> list[str]:
        """Those alive that the last step computed something for."""
        rows = self.world.batches[-1].rows if self.world.batches else ()
        return [row.request_id for row in rows if row.request_id not in self.world.finished]

    def teardown(self) -> None:
        """Whatever is left finishes; then nothing is owned, and every cached page has a key."""
        if self.batch is not None:
            self.world.finish_step(self.batch)
        self.world.run()
        assert set(self.world.finished) == set(self.world.requests)
        self.failing |= self.world.failed_alone()
        for request_id, drawn in self.world.output.items():
            assert drawn == self.world.expected(request_id, len(drawn))
        for request_id, update in self.world.finished.items():
            assert update.usage.cached_tokens < update.usage.prompt_tokens
            if update.finish_reason is FinishReason.ERROR:
                assert request_id in self.failing
            if update.finish_reason is FinishReason.LENGTH:
                self.require_whole_output(request_id)
        self.count()

    def require_whole_output(self, request_id: str) -> None:
        asked = self.world.requests[request_id]
        room = self.world.scheduler.limits.max_length - len(asked.prompt_token_ids)
        assert len(self.world.output[request_id]) == min(room, asked.sampling.max_tokens or room)

    def count(self) -> None:
        stats = self.world.scheduler.cache_stats()
        assert stats is not None
        assert stats.snapshots == sum(stats.snapshots_by_reason.values())
        counts = {
            "hits": stats.hits,
            "copied pages": stats.copied_pages,
            "evicted snapshots": stats.evicted_snapshots,
            "evicted KV pages": stats.evicted_kv_pages,
            "waits": stats.waits,
            "preemptions": self.world.scheduler.stats().preemptions,
            "errors": sum(
                update.finish_reason is FinishReason.ERROR for update in self.world.finished.values()
            ),
        }
        for tier in stats.tiers:
            counts[f"{tier.name} stores"] = tier.stores
            counts[f"{tier.name} loads"] = tier.loads
            counts[f"{tier.name} failures"] = tier.failures
            counts[f"{tier.name} tokens"] = tier.hit_tokens
        self.totals.update(counts)
        self.totals.update(self.count_rows())

    def count_rows(self) -> Counter[str]:
        """What only batches and results tell: where lives began, and what was left and not written."""
        assert self.world.cache is not None
        unit, size = self.world.cache.config.match_unit, self.world.layout.block_size
        counts: Counter[str] = Counter()
        tables: dict[str, object] = {}  # every life has tables of its own
        for batch, result in zip(self.world.batches, self.world.results, strict=True):
            left = {outcome.request_id: outcome for outcome in result.rows}
            counts["broken steps"] += result.failure is not None
            counts["rows of broken steps"] += len(batch.rows) if result.failure is not None else 0
            for row in batch.rows:
                if row.start and tables.get(row.request_id) is not row.state_table:
                    counts["hits inside a block"] += row.start % size > 0
                    counts["hits between units"] += row.start % unit > 0
                    counts["resumed preemptions"] += row.request_id in tables
                tables[row.request_id] = row.state_table
                outcome = left.get(row.request_id)
                if outcome is not None and outcome.error is None:
                    counts["snapshots not finite"] += len(row.snapshots) - len(outcome.snapshots)
        return counts


def run_lives(num_examples: int) -> Counter[str]:
    CacheLives.totals.clear()
    run_state_machine_as_test(
        CacheLives,
        settings=settings(
            max_examples=num_examples,
            stateful_step_count=50,
            derandomize=True,
            database=None,
            deadline=None,
            phases=PHASES,
            suppress_health_check=list(HealthCheck),
        ),
    )
    return CacheLives.totals


def test_random_lives_with_a_cache() -> None:
    totals = run_lives(160)
    assert totals["operations"] >= 5000
    short = {name: totals[name] for name, least in REACHED.items() if totals[name] < least}
    assert not short, f"{short} of {dict(totals)}"


@pytest.mark.slow
def test_many_random_lives_with_a_cache() -> None:
    assert run_lives(1500)["operations"] >= 50_000
