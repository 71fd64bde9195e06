"""Where a step's time goes: each part's measured time beside the least that this machine could do it in.

The kernels time themselves, by the part of the model that calls them. `RooflineCost` says what each part
computes and moves; divided by the rates that the machine reached when it was measured, that is the part's
limit: the longer of its FLOPs and its bytes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import msgspec

from milepost.engine.executor import Executor
from milepost.kernels.native import native
from milepost.llm.step_timing import PlannedStep, StepTimer
from milepost.memory.layout import Layout
from milepost.models.parts import MIXTURE
from milepost.sim.cost.part_weights import ROUTER, SHARED
from milepost.sim.cost.roofline import PartCost, RooflineCost
from milepost.sim.cost.step_work import StepWork
from milepost.types import Batch, BatchResult

__all__ = ["OUTSIDE", "PartProfile", "StepProfile", "profile_steps"]

OUTSIDE = "outside the kernels"
"""What no kernel did: the runner's Python, sampling, waiting for the system."""

_ONE_PRODUCT = (ROUTER, SHARED)
"""Parts of the cost model that the engine computes together."""


class PartProfile(msgspec.Struct, frozen=True, kw_only=True):
    """One part of a step.

    Attributes:
        name: as the cost model calls it.
        calls: of kernels.
        seconds: that they took.
        flops: floating-point operations that the part needs.
        bytes: that it must read and write.
        limit_seconds: the least that this machine could do it in; 0 where nothing is counted.
        bound: what sets that limit: "compute" or "memory"; "" where nothing is counted.
        kernels: (name, seconds) of each kernel, longest first.
    """

    name: str
    calls: int
    seconds: float
    flops: float = 0.0
    bytes: float = 0.0
    limit_seconds: float = 0.0
    bound: str = ""
    kernels: tuple[tuple[str, float], ...] = ()


class StepProfile(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of step, as its quickest run went.

    Attributes:
        what: in words.
        work: what the step does.
        seconds: of the run.
        limit_seconds: of all parts together.
        parts: longest first; together they took `seconds`.
    """

    what: str
    work: StepWork
    seconds: float
    limit_seconds: float
    parts: tuple[PartProfile, ...]


_Timers = list[tuple[str, str, int, float]]


class _TimedExecutor:
    """Runs batches, and remembers how long each took and where."""

    def __init__(self, executor: Executor, clock: Callable[[], float]) -> None:
        self._executor = executor
        self._clock = clock
        self.runs: list[tuple[float, _Timers]] = []

    def run(self, batch: Batch) -> BatchResult:
        """Run a step; one without rows is not of interest."""
        if not batch.rows:
            return self._executor.run(batch)
        native.set_timing(True)
        began = self._clock()
        try:
            result = self._executor.run(batch)
            self.runs.append((self._clock() - began, native.timers()))
        finally:
            native.set_timing(False)
        return result

    def close(self) -> None:
        """Whoever made the executor closes it."""


def profile_steps(
    executor: Executor,
    layout: Layout,
    steps: Sequence[PlannedStep],
    cost: RooflineCost,
    *,
    vocab_size: int,
    repeats: int,
    clock: Callable[[], float] = time.perf_counter,
) -> list[StepProfile]:
    """Time steps part by part; of each, the quickest of its runs counts.

    Args:
        executor: a loaded model on the compiled kernels; its pages are overwritten.
        layout: how its pages are cut.
        steps: what to time.
        cost: the model on this machine's measured rates.
        vocab_size: token ids are drawn below it.
        repeats: how often each step runs, besides warming up.
        clock: seconds.

    Raises:
        ExecutionError: a row failed.
    """
    profiles = []
    for step in steps:
        timed = _TimedExecutor(executor, clock)
        timer = StepTimer(timed, layout, vocab_size, repeats=repeats)
        work = timer.measure([step])[0].work
        seconds, timers = min(timed.runs, key=lambda run: run[0])
        profiles.append(_profile(step.what, work, seconds, timers, cost))
    return profiles


def _profile(what: str, work: StepWork, seconds: float, timers: _Timers, cost: RooflineCost) -> StepProfile:
    limits = _limits(cost.breakdown(work))
    measured = {name: [timer for timer in timers if timer[0] == name] for name, *_ in timers}
    parts = [_part(name, kernels, limits.get(name)) for name, kernels in measured.items()]
    inside = sum(part.seconds for part in parts)
    parts.append(PartProfile(name=OUTSIDE, calls=0, seconds=max(0.0, seconds - inside)))
    return StepProfile(
        what=what,
        work=work,
        seconds=seconds,
        limit_seconds=sum(part.seconds for part in limits.values()),
        parts=tuple(sorted(parts, key=lambda part: -part.seconds)),
    )


def _limits(costs: Sequence[PartCost]) -> dict[str, PartCost]:
    """By the names of `milepost.models.parts`: what is one product there is one part."""
    limits: dict[str, PartCost] = {}
    for cost in costs:
        if not cost.flops and not cost.bytes:
            continue
        name = MIXTURE if cost.name in _ONE_PRODUCT else cost.name
        before = limits.get(name)
        limits[name] = msgspec.structs.replace(cost, name=name) if before is None else _both(before, cost)
    return limits


def _both(one: PartCost, other: PartCost) -> PartCost:
    longer = max(one, other, key=lambda cost: cost.seconds)
    return PartCost(
        name=one.name,
        flops=one.flops + other.flops,
        bytes=one.bytes + other.bytes,
        seconds=one.seconds + other.seconds,
        bound=longer.bound,
    )


def _part(name: str, timers: _Timers, limit: PartCost | None) -> PartProfile:
    kernels = sorted(((kernel, seconds) for _, kernel, _, seconds in timers), key=lambda pair: -pair[1])
    profile = PartProfile(
        name=name,
        calls=sum(calls for _, _, calls, _ in timers),
        seconds=sum(seconds for _, seconds in kernels),
        kernels=tuple(kernels),
    )
    if limit is None:
        return profile
    return msgspec.structs.replace(
        profile,
        flops=limit.flops,
        bytes=limit.bytes,
        limit_seconds=limit.seconds,
        bound=limit.bound,
    )
