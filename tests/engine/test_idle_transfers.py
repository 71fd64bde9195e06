"""Transfers between tiers go on while no request is alive."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

from milepost.engine.async_engine import AsyncEngine
from milepost.engine.engine import Engine
from milepost.memory.pool import PagePool
from milepost.prefix.cache import PrefixCache
from milepost.prefix.reports import TierStats
from milepost.scheduler.config import SchedulerConfig
from milepost.scheduler.scheduler import Scheduler
from milepost.testing.scripted_executor import ScriptedExecutor
from milepost.types import RequestOutput
from tests.engine.harness import ByteDecoder, ask, run
from tests.scheduler.harness import SmallLayout, cache_config

PROMPT = tuple(range(40))


class Tiered:
    """An engine on a script with all tiers, whose prompts leave a snapshot every 4 tokens."""

    def __init__(self, num_pages: int = 200) -> None:
        self.pool = PagePool(num_pages)
        self.clock = 0.0
        layout = SmallLayout()
        config = cache_config(match_unit=4, snapshot_policy="every(4)")
        self.cache = PrefixCache(config, layout, self.pool, clock=lambda: self.clock)
        self.tiers = self.cache.add_tiers(100, 100, least_gain=1)
        scheduler = Scheduler(
            SchedulerConfig(max_model_len=1000, token_budget=64, max_num_seqs=4),
            layout,
            self.pool,
            self.cache,
        )
        self.executor = ScriptedExecutor(lambda _, number: number % 9)
        self.engine = Engine(self.executor, scheduler, ByteDecoder())

    @property
    def disk(self) -> TierStats:
        return self.tiers.stats()[1]

    def forget_arena(self) -> None:
        """Leave what is cached to the other tiers alone."""
        assert self.cache.evictor.make_room(self.pool.num_usable)


def drive(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 20))


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - the engine's thread sets no event
        await asyncio.sleep(0.01)


async def outputs_of(engine: AsyncEngine, request_id: str, salt: str = "") -> list[RequestOutput]:
    request = msgspec.structs.replace(ask(request_id, PROMPT, max_tokens=1), cache_salt=salt)
    return [output async for output in engine.stream(request)]


def test_an_idle_engine_writes_to_disk_what_waits_for_it() -> None:
    tiered = Tiered()

    async def work() -> None:
        engine = AsyncEngine(tiered.engine)
        await outputs_of(engine, "a")
        await until(lambda: tiered.disk.snapshots == 10)
        assert await engine.drain(5)
        await engine.stop()

    drive(work())


def test_an_idle_engine_gives_the_pages_of_an_aborted_load_back() -> None:
    tiered = Tiered()
    engine, executor = tiered.engine, tiered.executor
    engine.submit(ask("a", PROMPT, max_tokens=1))
    run(engine)
    tiered.forget_arena()

    async def work() -> None:
        front = AsyncEngine(engine)
        executor.hold_transfers()
        # Somebody runs, so that no step waits for the load.
        streams = [front.submit(ask("x", (99,))), front.submit(ask("b", PROMPT, max_tokens=1))]
        await until(lambda: tiered.pool.counts().receiving > 0)
        for stream in streams:
            stream.close()
        executor.end_transfers()
        await until(lambda: tiered.pool.counts().leased == 0)
        assert (await outputs_of(front, "c"))[-1].usage.cached_tokens == 36
        await front.stop()

    drive(work())


def test_an_idle_engine_answers_at_once_while_a_transfer_hangs() -> None:
    tiered = Tiered(num_pages=2000)  # what is asked for is not to be evicted meanwhile
    tiered.executor.hold_transfers()

    async def work() -> None:
        engine = AsyncEngine(tiered.engine)
        await outputs_of(engine, "a")
        await until(lambda: bool(tiered.executor.in_flight))
        for number in range(20):
            assert (await engine.explain(PROMPT)).hit_tokens == 36
            assert (await outputs_of(engine, f"b{number}", salt=str(number)))[-1].finished
        assert len(tiered.executor.in_flight) == 1, "one spill at a time, and nobody waited for it"
        assert await engine.drain(5), "transfers are no requests"
        tiered.executor.end_transfers()
        await engine.stop()

    drive(work())


def test_steps_without_requests_bring_the_transfers_to_their_end() -> None:
    tiered = Tiered()
    engine = tiered.engine
    engine.submit(ask("a", PROMPT, max_tokens=1))
    run(engine)
    while engine.has_transfers:
        assert engine.step() == []
    assert tiered.disk.snapshots == 10
    assert engine.step() == []
