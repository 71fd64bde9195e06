"""How long real steps take: made-up batches on a loaded model, outside of any engine.

No scheduler is needed for it: a row says how many tokens are before it, and a kernel reads that many from
the row's pages whatever they hold.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count

import msgspec
import numpy as np

from milepost.config import ResolvedConfig
from milepost.engine.executor import Executor
from milepost.errors import ConfigError, ExecutionError
from milepost.memory.layout import Layout
from milepost.sim.cost.calibration import MeasuredStep
from milepost.sim.cost.step_work import work_of
from milepost.types import Batch, NewRequest, Row, SamplingParams, SnapshotOrder

__all__ = ["PlannedStep", "StepTimer", "plan_steps"]

PREFILL_TOKENS = (16, 64, 256, 1024)
PREFILL_CONTEXTS = (0, 1024, 4096)
DECODE_ROWS = (1, 4, 16, 64)
DECODE_CONTEXTS = (64, 1024, 4096)
SNAPSHOTS = (4, 16)
COPIES = (16, 64)
DEFAULT_LIMIT_SECONDS = 35.0
_NOTICES_CACHES_SECONDS = 0.05
_GREEDY = SamplingParams(temperature=0.0, ignore_eos=True)
_LEAST_REPEATS = 2


@dataclass(frozen=True, kw_only=True)
class PlannedStep:
    """A step to be timed.

    Attributes:
        what: in words.
        rows: (tokens before, tokens computed) of each row.
        samples: whether rows draw a token.
        snapshots: that each row leaves, evenly spaced.
        copies: pages copied before.
        fitted: whether coefficients are to be fitted to it.
    """

    what: str
    rows: tuple[tuple[int, int], ...]
    samples: bool = True
    snapshots: int = 0
    copies: int = 0
    fitted: bool = True


def plan_steps(config: ResolvedConfig, layout: Layout) -> list[PlannedStep]:
    """The steps that show what each part of a step costs, as far as the engine's limits allow them.

    Prefill chunks of several lengths behind several contexts, decoding of several batch sizes at several
    contexts, snapshots, copies, chunks that draw nothing; and mixed steps that check the fit.

    Raises:
        ConfigError: the limits allow fewer than three steps.
    """
    planned = [step for step in _all_steps() if _fits(step, config, layout)]
    if len(planned) < 3:
        raise ConfigError(
            f"Steps of {PREFILL_TOKENS[0]} tokens must fit the engine. Given: max_model_len "
            f"{config.max_model_len}, {config.num_pages} pages, {config.max_num_batched_tokens} tokens a "
            "step. "
            "Raise memory, max_model_len or max_num_batched_tokens."
        )
    return planned


def _all_steps() -> Iterator[PlannedStep]:
    for context in PREFILL_CONTEXTS:
        for tokens in PREFILL_TOKENS:
            yield PlannedStep(what=f"{tokens} tokens behind {context}", rows=((context, tokens),))
    for context in DECODE_CONTEXTS:
        for rows in DECODE_ROWS:
            yield PlannedStep(what=f"{rows} decoding at {context}", rows=((context, 1),) * rows)
    for tokens in PREFILL_TOKENS[:3]:
        yield PlannedStep(what=f"{tokens} tokens, none drawn", rows=((0, tokens),), samples=False)
        yield PlannedStep(what=f"4 x {tokens} tokens", rows=((0, tokens),) * 4)
    for snapshots in SNAPSHOTS:
        yield PlannedStep(what=f"256 tokens, {snapshots} snapshots", rows=((0, 256),), snapshots=snapshots)
    yield PlannedStep(what="4 decoding, 1 snapshot each", rows=((64, 1),) * 4, snapshots=1)
    for copies in COPIES:
        yield PlannedStep(what=f"1 decoding, {copies} pages copied", rows=((64, 1),), copies=copies)
    yield PlannedStep(what="128 tokens and 4 decoding", rows=((0, 128), *((256, 1),) * 4), fitted=False)
    yield PlannedStep(what="512 tokens and 16 decoding", rows=((512, 512), *((2048, 1),) * 16), fitted=False)
    yield PlannedStep(what="8 decoding at 512", rows=((512, 1),) * 8, fitted=False)
    yield PlannedStep(what="512 tokens behind 512", rows=((512, 512),), fitted=False)


def _fits(step: PlannedStep, config: ResolvedConfig, layout: Layout) -> bool:
    longest = max(start + length for start, length in step.rows)
    return (
        longest < config.max_model_len
        and len(step.rows) <= config.max_num_seqs
        and sum(length for _, length in step.rows) <= config.max_num_batched_tokens
        and _pages(step, layout) < config.num_pages
    )


def _pages(step: PlannedStep, layout: Layout) -> int:
    blocks = sum(layout.blocks_for(start + length) for start, length in step.rows)
    states = len(step.rows) * (1 + step.snapshots)
    return blocks * layout.pages_per_block + states * layout.pages_per_state + 2 * step.copies


class StepTimer:
    """Times planned steps.

    Args:
        executor: runs them; its pages are used from the first on.
        layout: how they are cut.
        vocab_size: token ids are drawn below it.
        repeats: how often a step runs; the median counts.
        limit_seconds: no further repeat of all steps begins after so long, once there are two.
        clock: seconds.
    """

    def __init__(
        self,
        executor: Executor,
        layout: Layout,
        vocab_size: int,
        *,
        repeats: int,
        limit_seconds: float = DEFAULT_LIMIT_SECONDS,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._executor = executor
        self._layout = layout
        self._vocab_size = vocab_size
        self._repeats = repeats
        self._limit = limit_seconds
        self._clock = clock
        self._random = np.random.default_rng(0)
        self._numbers = count()

    def measure(
        self, steps: Sequence[PlannedStep], on_step: Callable[[PlannedStep], None] | None = None
    ) -> list[MeasuredStep]:
        """Run all steps in turns, again and again.

        A machine that others use too is slow for seconds at a time: in turns that spoils one repeat of many
        steps and not all repeats of one.

        Args:
            steps: what to time.
            on_step: told of each repeat of a step; there are at most repeats * len(steps).

        Raises:
            ExecutionError: a row failed.
        """
        times: list[list[float]] = [[] for _ in steps]
        began = self._clock()
        for turn in range(self._repeats):
            if turn >= _LEAST_REPEATS and self._clock() - began > self._limit:
                break
            for step, seconds in zip(steps, times, strict=True):
                seconds.append(self._time(step))
                if on_step is not None:
                    on_step(step)
        return [
            MeasuredStep(
                what=step.what,
                work=work_of(self._batch(step)[0]),
                seconds=statistics.median(seconds),
                repeats=len(seconds),
                fitted=step.fitted,
            )
            for step, seconds in zip(steps, times, strict=True)
        ]

    def _time(self, step: PlannedStep) -> float:
        """One repeat of a step, as a step of its kind follows another in an engine."""
        batch, pages = self._batch(step)
        # Memory that was never written is not really there, and reads of it are too quick.
        self._executor.run(Batch(step=0, rows=(), scrubs=tuple(pages)))
        seconds = self._run(batch)
        if seconds < _NOTICES_CACHES_SECONDS:  # weights and kernels are in the processor's caches now
            seconds = self._run(_again(batch))
        released = tuple(row.request_id for row in batch.rows)
        self._executor.run(Batch(step=0, rows=(), released=released))
        return seconds

    def _run(self, batch: Batch) -> float:
        started = self._clock()
        result = self._executor.run(batch)
        seconds = self._clock() - started
        for row in result.rows:
            if row.error is not None:
                raise ExecutionError(f"A step could not be timed: {row.error}")
        return seconds

    def _batch(self, step: PlannedStep) -> tuple[Batch, Sequence[int]]:
        """The step as a batch, and the pages that it uses."""
        free = count(1)  # page 0 is the dummy

        def take(number: int) -> tuple[int, ...]:
            return tuple(next(free) for _ in range(number))

        rows = tuple(self._row(step, start, length, take) for start, length in step.rows)
        copies = tuple(zip(take(step.copies), take(step.copies), strict=True))
        new = tuple(
            NewRequest(request_id=row.request_id, prompt_token_ids=(0,), sampling=_GREEDY) for row in rows
        )
        return Batch(step=0, rows=rows, new_requests=new, copies=copies), range(1, next(free))

    def _row(self, step: PlannedStep, start: int, length: int, take: Callable[[int], tuple[int, ...]]) -> Row:
        layout, ids = self._layout, self._random.integers(0, self._vocab_size, size=length)
        positions = [start + length * number // step.snapshots for number in range(1, step.snapshots + 1)]
        return Row(
            request_id=f"timed-{next(self._numbers)}",
            start=start,
            token_ids=tuple(ids.tolist()),
            block_table=take(layout.blocks_for(start + length) * layout.pages_per_block),
            state_table=take(layout.pages_per_state),
            samples=step.samples,
            snapshots=tuple(
                SnapshotOrder(position=position, pages=take(layout.pages_per_state)) for position in positions
            ),
        )


def _again(batch: Batch) -> Batch:
    """The same step, for an executor that counts what it has drawn."""
    rows = tuple(
        msgspec.structs.replace(row, num_output_tokens=1) if row.samples else row for row in batch.rows
    )
    return Batch(step=batch.step, rows=rows, copies=batch.copies)
