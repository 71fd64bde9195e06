"""Random schedules over the engine's front and the server's: each accepted request ends once, for everyone.

Tenants with limits, deadlines, readers of every kind, rows, steps and devices that fail, aborts, drains and
stops at random times; a seed is a schedule.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from milepost.engine.async_engine import AsyncEngine
from milepost.engine.engine import Engine
from milepost.errors import MilepostError
from milepost.memory.pool import PagePool
from milepost.prefix.cache import PrefixCache
from milepost.prefix.config import CacheConfig
from milepost.scheduler.config import SchedulerConfig
from milepost.scheduler.scheduler import Scheduler
from milepost.server import Metrics, ServerConfig, Services
from milepost.server.access.tenants import ANONYMOUS, Tenant, TenantLimits
from milepost.server.front import Front, Run
from milepost.server.streaming import merge
from milepost.testing.scripted_executor import ScriptedExecutor
from milepost.types import Batch, BatchResult, Request, SamplingParams
from tests.server.scripted_server import EOS, ByteTokenizer, small_layout

SECONDS = 20
TENANTS = (
    ANONYMOUS,
    Tenant(name="few", salt=b"x", limits=TenantLimits(max_requests=4, max_waiting=3)),
    Tenant(name="slow", salt=b"y", limits=TenantLimits(tokens_per_minute=3000, requests_per_minute=40)),
)


class Faulty(ScriptedExecutor):
    """Fails as a seed says."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(
            lambda request_id, number: 97 + (len(request_id) + number) % 26 if number < 30 else EOS
        )
        self.rng = rng
        self.rows, self.steps = rng.choice([0, 0, 0.01, 0.1]), rng.choice([0, 0, 0.01, 0.1, 0.5])
        self.device, self.poison = rng.choice([0] * 6 + [0.01]), rng.choice([0, 0, 0.1])

    def run(self, batch: Batch) -> BatchResult:
        for new in batch.new_requests:
            if self.rng.random() < self.poison:
                self.break_steps(new.request_id)
        if batch.rows and self.rng.random() < self.rows:
            self.fail_request(self.rng.choice(batch.rows).request_id, "not finite")
        if batch.rows and self.rng.random() < 0.02:
            self.lose_snapshots(self.rng.choice(batch.rows).request_id)
        if self.rng.random() < self.device:
            self.crash(RuntimeError("device lost"))
        result = super().run(batch)
        if batch.rows and result.failure is None and self.rng.random() < self.steps:
            return BatchResult(step=batch.step, rows=(), transfers=result.transfers, failure="by chance")
        return result


class Lives:
    """One schedule."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.executor = Faulty(random.Random(seed + 1))
        layout, self.pool = small_layout(), PagePool(rng.choice([40, 60, 80, 200]))
        self.cache = PrefixCache(CacheConfig(), layout, self.pool) if rng.random() < 0.8 else None
        config = SchedulerConfig(
            max_model_len=400,
            token_budget=rng.choice([16, 64, 256]),
            max_num_seqs=rng.choice([1, 3, 16]),
            stop_token_ids=(EOS,),
            vocab_size=ByteTokenizer.vocab_size,
        )
        self.scheduler = Scheduler(config, layout, self.pool, self.cache)
        self.metrics = Metrics()
        self.engine = AsyncEngine(
            Engine(self.executor, self.scheduler, ByteTokenizer(), observer=self.metrics)
        )
        self.front = Front(self._services())
        self.calls: Counter[int] = Counter()
        self.accepted: Counter[str] = Counter()
        self.ended: Counter[str] = Counter()
        self.told: Counter[str] = Counter()
        self._watch()

    def _services(self) -> Services:
        config = ServerConfig(
            max_waiting=self.rng.choice([4, 64, 1000]), request_timeout=self.rng.choice([None, 5.0, 0.05])
        )
        unused: Any = None  # what endpoints need
        return Services(
            config=config,
            engine=self.engine,
            metrics=self.metrics,
            tokenizer=ByteTokenizer(),
            grammars=unused,
            encoding=unused,
            model_name="scripted",
            created=1,
            system_fingerprint="test",
        )

    def _watch(self) -> None:
        telemetry, metrics = self.front.telemetry, self.metrics
        finished = metrics.on_finished
        assert finished is not None

        def on_finished(report: Any) -> None:
            self.ended[report.request_id] += 1
            finished(report)

        metrics.on_finished = on_finished
        telemetry.calls._on_end = lambda call: self.calls.update([id(call)])

    async def read(self, run: Run, how: str) -> None:
        try:
            async for output in run:
                self.told[run.request_id] += output.finish_reason is not None
                if how == "early" and self.rng.random() < 0.1:
                    run.close()
        except MilepostError:
            self.told[run.request_id] += 1

    async def read_all(self, runs: Sequence[Run], how: str) -> None:
        if how == "merged":
            async for _ in merge(runs):
                if self.rng.random() < 0.02:
                    return
        elif how != "never":
            seconds = self.rng.random() * 0.05 if how == "cancelled" else SECONDS
            async with asyncio.timeout(seconds):
                await asyncio.gather(*(self.read(run, how) for run in runs))

    async def ask(self, number: int) -> None:
        rng = self.rng
        own = [rng.randrange(97, 122) for _ in range(rng.choice([1, 90]))]
        prompt = (97,) * rng.choice([0, 20, 100]) + tuple(own)
        sampling = SamplingParams(max_tokens=rng.choice([1, 5, 40]), stop=rng.choice([(), ("ab",)]))
        requests = [
            Request(
                request_id=f"r{number}-{choice}",
                prompt_token_ids=prompt,
                sampling=sampling,
                priority=rng.choice([0, 0, 1]),
            )
            for choice in range(rng.choice([1, 1, 3]))
        ]
        tenant, timeout = rng.choice(TENANTS), rng.choice([None, None, 0.01, 0.1])
        how = rng.choice(["all", "all", "early", "cancelled", "never", "merged"])

        async def app(*_: Any) -> None:
            runs: Sequence[Run] = ()
            try:
                runs = self.front.submit(requests, "chat", tenant=tenant, timeout=timeout)
                self.accepted.update(run.request_id for run in runs)
                await self.read_all(runs, how)
            except (MilepostError, TimeoutError):
                pass
            finally:
                for run in runs:
                    run.close()

        unused: Any = None
        await self.front.telemetry.calls.serve(app, {"type": "http", "headers": []}, unused, unused)

    async def meddle(self) -> None:
        for _ in range(self.rng.choice([0, 3, 20])):
            await asyncio.sleep(self.rng.random() * 0.01)
            what = self.rng.random()
            try:
                if what < 0.5:
                    self.engine.abort(f"r{self.rng.randrange(30)}-0")
                elif what < 0.6 and self.cache is not None:
                    await self.engine.reset_cache()
                elif what < 0.63:
                    self.front.abort_all()
                elif what < 0.65:
                    await self.engine.drain(0.01)
                elif what < 0.66:
                    await self.engine.stop()
            except MilepostError:
                pass

    async def run(self) -> None:
        trouble: list[str] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: trouble.append(str(context)))
        tasks = []
        count = self.rng.choice([5, 15, 30])
        async with asyncio.timeout(SECONDS):
            for number in range(count):
                tasks.append(asyncio.ensure_future(self.ask(number)))
                if self.rng.random() < 0.3:
                    await asyncio.sleep(self.rng.random() * 0.005)
            await asyncio.gather(self.meddle(), *tasks)
            stopped = self.engine._stopping or self.engine.failure is not None
            while not stopped and not self.is_settled(count):  # noqa: ASYNC110 - no event tells of it
                await asyncio.sleep(0.002)
        assert not trouble
        if not stopped:
            self.check()
            self.scheduler.check()
            assert self.pool.counts().leased == 0
        await self.engine.stop()
        self.check()
        assert self.executor.closed == 1
        assert self.pool.counts().leased == 0
        assert sum(self.metrics._requests.values()) == self.accepted.total()

    def is_settled(self, num_calls: int) -> bool:
        """Whether all that has ended has been told."""
        told = self.ended == self.accepted and self.calls.total() == num_calls
        return told and not self.engine._live

    def check(self) -> None:
        """What holds at rest, also of an engine that has failed."""
        assert self.front.num_running == 0
        assert not self.engine._live
        assert set((self.ended - self.accepted).values()) <= set()
        assert set((self.told - self.accepted).values()) <= set()
        assert set(self.calls.values()) <= {1}
        for account in self.front._admission._accounts.values():
            assert (account.open, account.waiting) == (0, 0)


@pytest.mark.parametrize("seed", range(12))
def test_random_schedules(seed: int) -> None:
    asyncio.run(Lives(seed).run())


@pytest.mark.slow
def test_many_random_schedules() -> None:
    for seed in range(100, 400):
        asyncio.run(Lives(seed).run())
