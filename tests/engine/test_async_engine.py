"""The async front: clients that are slow, leave, or come from other threads."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest

from milepost.engine.async_engine import AsyncEngine
from milepost.errors import EngineStoppedError, InvariantError, RequestError, RequestTooLargeError
from milepost.types import Batch, BatchResult, FinishReason, Request, RequestOutput
from tests.engine.harness import EOS, Setup, ask, run, text_of


class Gate:
    """Lets a setup's executor run only as many steps as it is given."""

    def __init__(self, setup: Setup, *, steps: int = 0) -> None:
        self._run = setup.executor.run
        self._steps = threading.Semaphore(steps)
        self.entered = threading.Semaphore(0)
        setup.executor.run = self._gated  # type: ignore[method-assign]

    def _gated(self, batch: Batch) -> BatchResult:
        self.entered.release()
        assert self._steps.acquire(timeout=10)
        return self._run(batch)

    def open(self, steps: int = 1_000_000) -> None:
        self._steps.release(steps)


def drive(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 20))


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something that another thread does; the timeout of `drive` bounds it."""
    while not condition():  # noqa: ASYNC110 - the other thread offers a snapshot, no event
        await asyncio.sleep(0.001)


def forever(*, num_pages: int = 100_000, max_num_seqs: int = 8) -> Setup:
    """An engine whose replies outlast every test."""
    return Setup(lambda _, n: 97 + n % 26, num_pages=num_pages, max_num_seqs=max_num_seqs)


async def collect(engine: AsyncEngine, name: str, prompt: Sequence[int] = (1, 2, 3)) -> list[RequestOutput]:
    return [output async for output in engine.stream(ask(name, prompt))]


def test_many_clients_stream_at_once() -> None:
    setup = Setup({str(i): f"reply number {i} é" for i in range(20)}, token_budget=16)

    async def test() -> None:
        engine = AsyncEngine(setup.engine)
        replies = await asyncio.gather(*(collect(engine, str(i)) for i in range(20)))
        for i, outputs in enumerate(replies):
            assert text_of(outputs) == f"reply number {i} é"
            assert [output.finished for output in outputs] == [False] * (len(outputs) - 1) + [True]
        await engine.stop()
        assert engine.stats().finished[FinishReason.STOP] == 20

    drive(test)
    assert setup.executor.closed == 1


def test_outputs_of_a_slow_client_merge_and_the_engine_does_not_wait() -> None:
    setup = Setup({"a": "hello world"})

    async def test() -> None:
        engine = AsyncEngine(setup.engine)
        stream = engine.submit(ask("a", logprobs=0))
        await until(lambda: engine.stats().finished[FinishReason.STOP] == 1)
        outputs = [output async for output in stream]
        assert len(outputs) == 1
        (output,) = outputs
        assert output.text == "hello world"
        assert output.token_ids == (*b"hello world", EOS)
        assert [one.token_id for one in output.logprobs] == [*b"hello world", EOS]
        assert (output.finish_reason, output.usage.output_tokens) == (FinishReason.STOP, 12)
        await engine.stop()

    drive(test)


def test_leaving_the_stream_early_aborts_and_frees_the_pages() -> None:
    setup = forever()

    async def test() -> None:
        engine = AsyncEngine(setup.engine)
        outputs = engine.stream(ask("a"))
        async for output in outputs:
            assert not output.finished
            break
        await outputs.aclose()
        await until(lambda: engine.stats().finished[FinishReason.ABORT] == 1)
        assert setup.pool.counts().leased == 0
        await engine.stop()

    drive(test)


def test_a_cancelled_client_aborts() -> None:
    setup = forever()

    async def test() -> None:
        engine = AsyncEngine(setup.engine)
        client = asyncio.create_task(collect(engine, "a"))
        await until(lambda: engine.stats().output_tokens > 0)
        client.cancel()
        with pytest.raises(asyncio.CancelledError):
            await client
        await until(lambda: engine.stats().finished[FinishReason.ABORT] == 1)
        assert setup.pool.counts().leased == 0
        await engine.stop()

    drive(test)


def test_a_client_that_leaves_during_a_step_frees_its_pages_with_that_step() -> None:
    setup = forever()
    gate = Gate(setup)

    async def test() -> None:
        engine = AsyncEngine(setup.engine)
        stream = engine.submit(ask("a"))
        await asyncio.to_thread(gate.entered.acquire)
        stream.close()
        assert setup.pool.counts().leased > 0
        gate.open(1)
        await until(lambda: engine.stats().finished[FinishReason.ABORT] == 1)
        assert setup.pool.counts().leased == 0
        assert len(setup.executor.batches) == 1
        gate.open()
        await engine.stop()

    drive(test)


def test_an_id_may_come_again_right_after_its_stream_was_closed() -> None:
    """The first life's outputs, even those of a step that still runs, never reach the second."""
    setup = Setup({"a": "xyz"})
    gate = Gate(setup)

    async def test() -> None:
        engine = AsyncEngine(setup.engine)
        first = engine.submit(ask("a"))
        await asyncio.to_thread(gate.entered.acquire)
        first.close()
        second = engine.submit(ask("a", (7,) * 9))
        gate.open()
        outputs = [output async for output in second]
        assert text_of(outputs) == "xyz"
        assert outputs[-1].usage.prompt_tokens == 9
        assert [output async for output in first] == []
        await engine.stop()

    drive(test)


def test_submitting_does_not_wait_for_a_running_step() -> None:
    setup = Setup({"a": "x", "b": "y"})
    gate = Gate(setup)

    async def test() -> None:
        engine = AsyncEngine(setup.engine)
        first = engine.submit(ask("a"))
        await asyncio.to_thread(gate.entered.acquire)
        second = engine.submit(ask("b"))
        gate.open()
        assert text_of([output async for output in second]) == "y"
        assert text_of([output async for output in first]) == "x"
        await engine.stop()

    drive(test)


def test_abort_by_id_from_another_thread_ends_the_stream() -> None:
    setup = forever()

    async def test() -> None:
        engine = AsyncEngine(setup.engine)
        outputs = []
        async for output in engine.stream(ask("a")):
            outputs.append(output)
            if len(outputs) == 1:
                await asyncio.to_thread(engine.abort, "a")
                await asyncio.to_thread(engine.abort, "nobody")
        assert outputs[-1].finish_reason is FinishReason.ABORT
        assert setup.pool.counts().leased == 0
        await engine.stop()

    drive(test)


def test_refusals_are_raised_to_the_client_that_asked() -> None:
    setup = forever(num_pages=6)

    async def test() -> None:
        engine = AsyncEngine(setup.engine)
        with pytest.raises(RequestTooLargeError):
            engine.submit(ask("a", range(13)))
        with pytest.raises(RequestTooLargeError):
            await collect(engine, "a", prompt=range(13))
        stream = engine.submit(ask("a", (1,)))
        with pytest.raises(RequestError, match="must be unique"):
            engine.submit(ask("a", (1,)))
        stream.close()
        await engine.stop()

    drive(test)


def test_drain_refuses_the_new_and_finishes_the_old() -> None:
    setup = Setup({"a": "hello"})
    gate = Gate(setup)

    async def test() -> None:
        engine = AsyncEngine(setup.engine)
        client = asyncio.create_task(collect(engine, "a"))
        await asyncio.to_thread(gate.entered.acquire)
        assert not await engine.drain(0.01)
        with pytest.raises(EngineStoppedError, match="draining"):
            engine.submit(ask("b"))
        gate.open()
        assert await engine.drain()
        assert text_of(await client) == "hello"
        await engine.stop()

    drive(test)


def test_stop_ends_every_stream_exactly_once() -> None:
    setup = forever(max_num_seqs=2)

    async def test() -> None:
        engine = AsyncEngine(setup.engine)
        clients = [asyncio.create_task(collect(engine, str(i))) for i in range(5)]
        await until(lambda: engine.stats().output_tokens > 0)
        await engine.stop()
        for outputs in await asyncio.gather(*clients):
            assert [output.finish_reason for output in outputs if output.finished] == [FinishReason.ABORT]
        with pytest.raises(EngineStoppedError, match="stopped"):
            engine.submit(ask("late"))
        engine.abort("0")
        await engine.stop()
        assert await engine.drain(1)

    drive(test)
    assert setup.pool.counts().leased == 0
    assert setup.executor.closed == 1


def test_stop_answers_requests_that_never_got_into_the_engine() -> None:
    setup = forever()
    gate = Gate(setup)

    async def test() -> None:
        engine = AsyncEngine(setup.engine)
        clients = [asyncio.create_task(collect(engine, "a"))]
        await asyncio.to_thread(gate.entered.acquire)
        clients.append(asyncio.create_task(collect(engine, "b")))
        await asyncio.sleep(0)
        stopping = asyncio.create_task(engine.stop())
        await asyncio.sleep(0)
        gate.open()
        await stopping
        for outputs in await asyncio.gather(*clients):
            assert outputs[-1].finish_reason is FinishReason.ABORT

    drive(test)


def test_a_failed_executor_ends_every_stream_with_an_error() -> None:
    setup = forever()

    async def test() -> None:
        engine = AsyncEngine(setup.engine)
        clients = [asyncio.create_task(collect(engine, str(i))) for i in range(3)]
        await until(lambda: engine.stats().output_tokens > 2)
        setup.executor.crash(RuntimeError("device lost"))
        for outputs in await asyncio.gather(*clients):
            assert [output.error for output in outputs if output.finished] == [
                "The engine failed in a step: RuntimeError: device lost."
            ]
        assert engine.failure is not None
        with pytest.raises(EngineStoppedError, match="device lost"):
            engine.submit(ask("late"))
        await engine.stop()

    drive(test)


def test_a_bug_in_the_thread_ends_every_stream_with_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    setup = forever()

    async def test() -> None:
        engine = AsyncEngine(setup.engine)
        client = asyncio.create_task(collect(engine, "a"))
        await until(lambda: engine.stats().output_tokens > 2)

        def broken() -> list[RequestOutput]:
            raise ZeroDivisionError("a bug")

        monkeypatch.setattr(setup.engine, "step", broken)
        last = (await client)[-1]
        assert (last.finish_reason, last.error) == (
            FinishReason.ERROR,
            "The engine failed: ZeroDivisionError: a bug.",
        )
        with pytest.raises(EngineStoppedError, match="a bug"):
            engine.submit(ask("late"))
        assert await engine.drain(1)
        await engine.stop()

    drive(test)
    assert setup.executor.closed == 1


def test_a_loop_that_is_gone_counts_as_a_disconnect() -> None:
    setup = forever()
    engine = AsyncEngine(setup.engine)

    async def leave() -> None:
        engine.submit(ask("a"))

    asyncio.run(leave())
    deadline = time.monotonic() + 10
    while engine.stats().finished[FinishReason.ABORT] == 0:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    assert setup.pool.counts().leased == 0
    asyncio.run(engine.stop())


def test_clients_on_several_loops_share_one_engine() -> None:
    setup = Setup({str(i): f"reply {i}" for i in range(4)})
    engine = AsyncEngine(setup.engine)
    replies: dict[str, str] = {}

    def client(name: str) -> None:
        replies[name] = text_of(asyncio.run(collect(engine, name)))

    threads = [threading.Thread(target=client, args=(str(i),)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert replies == {str(i): f"reply {i}" for i in range(4)}
    asyncio.run(engine.stop())


def test_many_clients_that_come_and_go_leave_nothing() -> None:
    """R76 through the front: disconnects at random moments, then idle owns nothing."""
    setup = forever(num_pages=40, max_num_seqs=4)

    async def client(engine: AsyncEngine, name: int) -> None:
        taken = 0
        async for _ in engine.stream(ask(str(name), range(1, 2 + name % 9), max_tokens=30)):
            taken += 1
            if taken > name % 5:
                break

    async def test() -> None:
        engine = AsyncEngine(setup.engine)
        await asyncio.gather(*(client(engine, name) for name in range(60)))
        assert await engine.drain(10)
        assert setup.pool.counts().leased == 0
        assert sum(engine.stats().finished.values()) == 60
        await engine.stop()

    drive(test)


@pytest.mark.parametrize("seed", range(6))
def test_text_that_clients_make_is_the_text_that_the_engine_makes(seed: int) -> None:
    """Random bytes, torn characters and ends of every kind; outputs merge as chance has it."""
    draw = random.Random(seed)
    pieces = [*"aé🎉".encode(), *b"\xc3\xe2\x82\xf0\xff", EOS]
    script = {str(i): [draw.choice(pieces) for _ in range(40)] + [EOS] for i in range(12)}

    def requests() -> list[Request]:
        limits = random.Random(seed)
        return [
            ask(name, stop=limits.choice([(), (), ("é",), ("🎉a",)]), max_tokens=limits.randrange(1, 41))
            for name in script
        ]

    def setup() -> Setup:
        return Setup(lambda name, n: script[name][n], token_budget=16)

    alone = setup()
    for request in requests():
        alone.engine.submit(request)
    expected = run(alone.engine)

    async def test() -> None:
        engine = AsyncEngine(setup().engine)

        async def read(request: Request) -> list[RequestOutput]:
            outputs = []
            async for output in engine.stream(request):
                outputs.append(output)
                await asyncio.sleep(draw.choice([0, 0, 0.002]))
            return outputs

        replies = await asyncio.gather(*(read(request) for request in requests()))
        for name, outputs in zip(script, replies, strict=True):
            assert text_of(outputs) == text_of(expected[name])
            last, wanted = outputs[-1], expected[name][-1]
            assert (last.finish_reason, last.stop_reason, last.usage) == (
                wanted.finish_reason,
                wanted.stop_reason,
                wanted.usage,
            )
        await engine.stop()

    drive(test)


def test_a_request_that_is_aborted_in_the_middle_of_a_character_shows_what_there_is_of_it() -> None:
    setup = Setup(lambda _, n: b"a\xe2\x82"[n % 3])
    gate = Gate(setup, steps=3)

    async def test() -> None:
        engine = AsyncEngine(setup.engine)
        stream = engine.submit(ask("a"))
        await until(lambda: engine.stats().output_tokens == 3)
        engine.abort("a")
        gate.open()
        outputs = [output async for output in stream]
        assert text_of(outputs).startswith("a\ufffd")
        assert outputs[-1].finish_reason is FinishReason.ABORT
        await engine.stop()

    drive(test)


def test_stop_strings_and_text_that_is_made_elsewhere_exclude_each_other() -> None:
    setup = Setup({"a": "x"})
    with pytest.raises(InvariantError, match="has stop strings"):
        setup.engine.submit(ask("a", stop=("x",)), with_text=False)
    assert not setup.engine.has_work
    setup.engine.submit(ask("a"), with_text=False)
    assert [output.text for output in run(setup.engine)["a"]] == ["", ""]
