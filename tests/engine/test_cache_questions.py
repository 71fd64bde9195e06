"""The prefix cache as the engine's fronts ask it; what it answers is tested with the cache itself."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any

import pytest

from milepost.engine.async_engine import AsyncEngine
from milepost.engine.reports import EngineStats
from milepost.errors import ConfigError, EngineStoppedError, InvariantError, RequestError
from milepost.types import Batch, BatchResult
from tests.engine.harness import Setup, ask, run
from tests.engine.scripted_cache import EXPLANATION, STATS, ScriptedCache


def with_cache() -> tuple[Setup, ScriptedCache]:
    setup = Setup({"a": "wxyz"})
    return setup, ScriptedCache().install(setup.scheduler)


def drive(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 20))


def test_the_engine_asks_its_scheduler() -> None:
    setup, cache = with_cache()
    assert setup.engine.stats().cache is STATS
    assert setup.engine.explain([1, 2, 3], cache_salt="tenant") is EXPLANATION
    assert cache.asked == [((1, 2, 3), "tenant")]
    assert setup.engine.reset_cache() == STATS.snapshots
    assert cache.resets == 1


def test_a_prompt_that_cannot_be_served_is_not_explained() -> None:
    setup, cache = with_cache()
    with pytest.raises(RequestError, match="at least one token"):
        setup.engine.explain([])
    with pytest.raises(RequestError, match="must be integers"):
        setup.engine.explain(["a"])  # type: ignore[list-item]
    assert cache.asked == []


def test_a_cache_that_is_off_has_nothing_to_say() -> None:
    setup = Setup({"a": "wxyz"})
    assert setup.engine.stats().cache is None
    with pytest.raises(ConfigError, match="prefix cache is off"):
        setup.engine.explain([1])
    with pytest.raises(ConfigError, match="prefix cache is off"):
        setup.engine.reset_cache()


def test_an_idle_engine_answers_on_its_own_thread() -> None:
    setup, cache = with_cache()
    threads: list[str] = []

    def reset_cache() -> int:
        threads.append(threading.current_thread().name)
        return 7

    cache.reset_cache = reset_cache  # type: ignore[method-assign]
    cache.install(setup.scheduler)

    async def work() -> None:
        engine = AsyncEngine(setup.engine)
        assert await engine.explain((1, 2), cache_salt="s") is EXPLANATION
        assert await engine.reset_cache() == 7
        await engine.stop()

    drive(work())
    assert threads == ["milepost-engine"]


def test_an_error_belongs_to_the_one_who_asked() -> None:
    setup, cache = with_cache()
    cache.error = InvariantError("the index is inconsistent")

    async def work() -> None:
        engine = AsyncEngine(setup.engine)
        with pytest.raises(InvariantError, match="inconsistent"):
            await engine.explain((1,))
        with pytest.raises(RequestError, match="at least one token"):
            await engine.explain(())
        outputs = [output async for output in engine.stream(ask("a"))]
        assert outputs[-1].finished
        await engine.stop()

    drive(work())


class Gate:
    """Holds a step until it is opened."""

    def __init__(self, setup: Setup) -> None:
        self.entered, self.opened = threading.Event(), threading.Event()
        self._run = setup.executor.run
        setup.executor.run = self.run  # type: ignore[method-assign]

    def run(self, batch: Batch) -> BatchResult:
        self.entered.set()
        assert self.opened.wait(10)
        return self._run(batch)


def test_questions_wait_for_the_step_and_a_client_that_leaves_is_not_answered() -> None:
    setup, cache = with_cache()
    gate = Gate(setup)

    async def work() -> None:
        engine = AsyncEngine(setup.engine)
        stream = engine.submit(ask("a"))
        await asyncio.to_thread(gate.entered.wait, 10)
        leaving = asyncio.ensure_future(engine.reset_cache())
        staying = asyncio.ensure_future(engine.explain((1, 2)))
        await asyncio.sleep(0.02)
        assert not staying.done()
        leaving.cancel()
        await asyncio.sleep(0)
        gate.opened.set()
        assert await staying is EXPLANATION
        assert [output async for output in stream][-1].finished
        await engine.stop()

    drive(work())
    assert cache.resets == 0


def test_nobody_waits_for_an_engine_that_has_ended() -> None:
    setup, _ = with_cache()
    gate = Gate(setup)

    async def work() -> None:
        engine = AsyncEngine(setup.engine)
        engine.submit(ask("a"))
        await asyncio.to_thread(gate.entered.wait, 10)
        # Asked in time: answered, though the engine stops.
        asked = asyncio.ensure_future(engine.explain((1, 2)))
        await asyncio.sleep(0)
        stopping = asyncio.ensure_future(engine.stop())
        await asyncio.sleep(0.02)
        gate.opened.set()
        assert await asked is EXPLANATION
        await stopping
        with pytest.raises(EngineStoppedError, match="stopped"):
            await engine.explain((1, 2))

    drive(work())


def test_a_thread_that_fails_leaves_no_question_open() -> None:
    setup, _ = with_cache()
    gate = Gate(setup)

    async def work() -> None:
        engine = AsyncEngine(setup.engine)
        stream = engine.submit(ask("a"))
        await asyncio.to_thread(gate.entered.wait, 10)
        asked = asyncio.ensure_future(engine.explain((1, 2)))
        await asyncio.sleep(0)
        # Not a step that fails, which the engine survives: the loop around it, once.
        healthy = setup.engine.stats

        def broken() -> EngineStats:
            setup.engine.stats = healthy  # type: ignore[method-assign]
            raise InvariantError("the loop is broken")

        setup.engine.stats = broken  # type: ignore[method-assign]
        gate.opened.set()
        with pytest.raises(EngineStoppedError, match="The engine failed"):
            await asked
        assert [output async for output in stream][-1].finished

    drive(work())


def test_a_step_after_a_reset_still_runs() -> None:
    setup, _ = with_cache()
    setup.engine.submit(ask("a"))
    setup.engine.step()
    setup.engine.reset_cache()
    assert run(setup.engine)["a"][-1].finished


def test_a_closed_engine_has_nothing_to_say() -> None:
    setup, cache = with_cache()
    setup.engine.close()
    with pytest.raises(EngineStoppedError, match="closed"):
        setup.engine.explain([1])
    with pytest.raises(EngineStoppedError, match="closed"):
        setup.engine.reset_cache()
    assert (cache.asked, cache.resets) == ([], 0)
