"""What the control plane costs with the prefix cache on, as requests and contexts grow; no model runs.

No step may take time that grows with the context: tables and keys are append-only. What a request
costs once, when it comes (hashing its prompt, finding its prefix), may.
"""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable, Iterator
from functools import partial

from benchmarks.results import Result
from benchmarks.scheduler_cost import LAYOUT
from milepost.memory.pool import PagePool
from milepost.prefix.cache import PrefixCache
from milepost.prefix.config import CacheConfig
from milepost.scheduler.config import SchedulerConfig
from milepost.scheduler.scheduler import Scheduler
from milepost.testing.scripted_executor import ScriptedExecutor
from milepost.types import Request, SamplingParams

__all__ = ["Plane", "control_plane", "decoding_plane"]

SUBJECT = "paged layout of Kimi K3, TP8"
STEPS = 64
RUNS = 5
MILLION = 1_000_000
CASES = (
    *((running, 1024) for running in (1, 4, 16, 64, 256)),
    *((16, context) for context in (16_384, 131_072, MILLION)),
    (256, MILLION),
)
"""(running requests, tokens that all of them share); each has a tail of its own behind them"""

VOCAB = 163_840
TAILS = 64
"""Tails are 1 to 64 tokens long, so that not all requests fill a unit or a block in the same step."""
GROWTH = STEPS + 2 * TAILS


def control_plane() -> Iterator[Result]:
    """Microseconds a step with the cache on, by requests and by context, no model; arrival of 1M tokens."""
    for running, context in CASES:
        yield Result(
            benchmark="control-plane",
            subject=SUBJECT,
            quantity=f"step of {running} at context {context:,}",
            unit="us",
            samples=step_costs(running, context),
            settings={"steps": STEPS, "requests": running, "context": context},
        )
    for quantity, samples in arrival_costs(MILLION).items():
        yield Result(
            benchmark="control-plane",
            subject=SUBJECT,
            quantity=f"{quantity}, {MILLION:,} tokens",
            unit="ms",
            samples=samples,
        )


class Plane:
    """A scheduler with a cache that holds one finished prompt, and an executor that computes nothing."""

    def __init__(self, prompt: tuple[int, ...], *, running: int, growth: int = GROWTH) -> None:
        blocks = LAYOUT.blocks_for(len(prompt) + growth)
        # The prompt is there once, whatever a request adds privately, and some for snapshots.
        private = LAYOUT.blocks_for(growth) + 2 * LAYOUT.pages_per_state
        pool = PagePool(1 + 2 * blocks + (running + 8) * private)
        config = SchedulerConfig(max_model_len=1 << 21, token_budget=1 << 21, max_num_seqs=max(running, 1))
        self.cache = PrefixCache(CacheConfig(), LAYOUT, pool)
        self.scheduler = Scheduler(config, LAYOUT, pool, self.cache)
        self._executor = ScriptedExecutor(lambda _request_id, index: index)
        self.add("leader", prompt, 1)
        while self.scheduler.has_work:
            self.step()

    def add(self, name: str, prompt: tuple[int, ...], max_tokens: int) -> None:
        """A request for so many tokens."""
        sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
        self.scheduler.add(Request(request_id=name, prompt_token_ids=prompt, sampling=sampling))

    def step(self) -> tuple[float, float]:
        """One step; seconds of `schedule` and of `update`."""
        start = time.perf_counter()
        batch = self.scheduler.schedule()
        planning = time.perf_counter() - start
        assert batch is not None, "there is work"
        result = self._executor.run(batch)
        self._executor.batches.clear()
        start = time.perf_counter()
        self.scheduler.update(batch, result)
        return planning, time.perf_counter() - start


def decoding_plane(running: int, context: int, steps: int) -> Plane:
    """A plane on which `running` requests that share `context` tokens decode, for `steps` steps and more."""
    draw = random.Random(0)
    shared = _tokens(draw, context)
    plane = Plane(shared, running=running, growth=steps + 2 * TAILS)
    for i in range(running):
        # More tokens than are timed, so that nobody ends while the clock runs.
        plane.add(f"r{i}", shared + _tokens(draw, 1 + i % TAILS), steps + TAILS)
    for _ in range(TAILS // 2):  # some may have followed others
        plane.step()
    return plane


def step_costs(running: int, context: int) -> list[float]:
    """Microseconds of each of `STEPS` decode steps of `running` requests that share `context` tokens."""
    plane = decoding_plane(running, context, STEPS)
    costs = _without_collector(lambda: [1e6 * sum(plane.step()) for _ in range(STEPS)])
    stats = plane.scheduler.stats()
    assert (stats.running, stats.preemptions) == (running, 0), "everybody ran all the time"
    return costs


def arrival_costs(length: int) -> dict[str, list[float]]:
    """Milliseconds that a prompt of `length` tokens costs once, by what is done."""
    draw = random.Random(0)
    known, unknown = _tokens(draw, length), _tokens(draw, length)
    plane = Plane(known, running=1)
    costs: dict[str, list[float]] = {}
    for run in range(RUNS):
        for name, prompt in (("hit", known), ("miss", unknown)):
            request = Request(request_id=f"{name}{run}", prompt_token_ids=prompt)
            trail = plane.cache.open(request)
            hashed = _milliseconds(partial(trail.chain.extend, prompt))
            found = _milliseconds(partial(plane.cache.look_up, trail, prompt))
            costs.setdefault("hash of a prompt", []).append(hashed)
            costs.setdefault(f"look-up of a {name}, hashed before", []).append(found)
        start = time.perf_counter()
        plane.add(f"again{run}", known, 2)
        added = time.perf_counter() - start
        planning, _ = plane.step()
        costs.setdefault("add and admission of a hit", []).append(1e3 * (added + planning))
        ending = sum(plane.step())
        costs.setdefault("last step of a hit", []).append(1e3 * ending)
    return costs


def _tokens(draw: random.Random, count: int) -> tuple[int, ...]:
    return tuple(draw.randrange(VOCAB) for _ in range(count))


def _milliseconds(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return 1e3 * (time.perf_counter() - start)


def _without_collector(action: Callable[[], list[float]]) -> list[float]:
    """Python's cycle collector walks over everything that was ever built here, at moments of its own."""
    gc.collect()
    gc.disable()
    try:
        return action()
    finally:
        gc.enable()
