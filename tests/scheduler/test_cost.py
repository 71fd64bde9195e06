"""The scheduler's work per step must not grow with the context: counted, not timed."""

from __future__ import annotations

import sys
import tracemalloc
from types import FrameType
from typing import TYPE_CHECKING

import pytest

from milepost.memory.pool import PagePool
from milepost.scheduler.config import SchedulerConfig
from milepost.scheduler.scheduler import Scheduler
from milepost.testing.scripted_executor import ScriptedExecutor
from milepost.types import Request
from tests.scheduler.harness import SmallLayout

if TYPE_CHECKING:
    from _typeshed import TraceFunction

ROWS = 16


def decoding(context: int) -> tuple[Scheduler, ScriptedExecutor]:
    """`ROWS` requests that have computed `context` tokens each and draw one a step."""
    layout = SmallLayout(block_size=64)
    pool = PagePool(2 + ROWS * (context // 64 + 10))
    scheduler = Scheduler(SchedulerConfig(max_model_len=1 << 20, token_budget=ROWS * context), layout, pool)
    executor = ScriptedExecutor(lambda _, n: n % 7)
    for row in range(ROWS):
        scheduler.add(Request(request_id=str(row), prompt_token_ids=(1,) * context))
    step(scheduler, executor)
    step(scheduler, executor)
    return scheduler, executor


def step(scheduler: Scheduler, executor: ScriptedExecutor) -> None:
    batch = scheduler.schedule()
    assert batch is not None
    scheduler.update(batch, executor.run(batch))


def lines_of_a_step(context: int) -> int:
    scheduler, executor = decoding(context)
    lines = 0

    def trace(frame: FrameType, event: str, _: object) -> TraceFunction | None:
        nonlocal lines
        if not frame.f_globals.get("__name__", "").startswith("milepost."):
            return None  # a garbage collector's callback may run at any time
        lines += event == "line"
        return trace

    previous = sys.gettrace()
    sys.settrace(trace)
    try:
        step(scheduler, executor)
    finally:
        sys.settrace(previous)
    return lines


def bytes_of_a_step(context: int) -> int:
    scheduler, executor = decoding(context)
    tracemalloc.start()
    try:
        step(scheduler, executor)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("context", [2_000, 16_000])
def test_a_decode_step_runs_the_same_code_at_any_context(context: int) -> None:
    assert lines_of_a_step(context) == lines_of_a_step(500)


def test_a_decode_step_builds_nothing_of_the_size_of_the_context() -> None:
    # Not at a block's end, where tables may double. A copy of one context would be 16,000 * 8 bytes.
    assert bytes_of_a_step(16_010) < bytes_of_a_step(510) + 16_000
