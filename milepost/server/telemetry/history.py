"""The last quarter of an hour, a sample a second, so that a page opened now shows what has been.

Totals become rates here, once, and percentiles are taken of the very samples of that second; what is kept is
numbers only: no prompts, no ids, no tenants.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

import msgspec

from milepost.engine.reports import EngineStats
from milepost.server.protocol.page_stats import Latencies, Moment
from milepost.server.telemetry.arena_pages import pages_by_kind
from milepost.server.telemetry.metrics import Metrics

__all__ = ["SAMPLES", "History"]

SAMPLES = 900
PERCENTILES = (0.5, 0.9, 0.99)

T = TypeVar("T")


class _Totals(msgspec.Struct, frozen=True, kw_only=True):
    """What only ever grows, as of one moment."""

    seconds: float
    computed: int
    drawn: int
    first: int
    cached: int
    ended: int
    run_seconds: float
    losses: Mapping[str, int]
    refused: Mapping[str, int]


class History:
    """A ring of moments.

    Args:
        metrics: what the engine and the server have told.
        engine_stats: takes a snapshot of the engine.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        metrics: Metrics,
        engine_stats: Callable[[], EngineStats],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._metrics = metrics
        self._stats = engine_stats
        self._clock = clock
        self._moments: deque[Moment] = deque(maxlen=SAMPLES)
        self._next = 0
        self._run_seconds = 0.0
        self._before: _Totals | None = None

    def since(self, number: int) -> list[Moment]:
        """Moments from `number` on, as far as they are kept."""
        return [moment for moment in self._moments if moment.number >= number]

    def sample(self) -> None:
        """Take the next moment; the first call only says since when."""
        recent = self._metrics.recent
        first, gaps, steps = _taken(recent.first_tokens), _taken(recent.gaps), _taken(recent.steps)
        self._run_seconds += sum(control + run for control, run in steps)
        stats = self._stats()
        now, before = self._totals(stats), self._before
        self._before = now
        if before is None:
            return
        seconds = max(now.seconds - before.seconds, 1e-3)
        drawn = now.drawn - before.drawn
        # Every token drawn but a request's first was computed from the one before, and not as prompt.
        prompt = max(0, now.computed - before.computed - (drawn - (now.first - before.first)))
        self._moments.append(
            Moment(
                number=self._next,
                time=round(time.time(), 3),
                prompt_rate=_rounded(prompt / seconds),
                cached_rate=_rounded((now.cached - before.cached) / seconds),
                output_rate=_rounded(drawn / seconds),
                running=stats.scheduler.running,
                waiting=stats.scheduler.waiting,
                ttft=_percentiles((value, 1) for value in first),
                itl=_percentiles(gaps),
                control=_percentiles((control, 1) for control, _ in steps),
                step=_percentiles((control + run, 1) for control, run in steps),
                busy=_rounded(min(1.0, (now.run_seconds - before.run_seconds) / seconds)),
                pages=pages_by_kind(stats),
                lost_rates=_rates(now.losses, before.losses, seconds),
                refused_rates=_rates(now.refused, before.refused, seconds),
                ended_rate=_rounded((now.ended - before.ended) / seconds),
            )
        )
        self._next += 1

    def _totals(self, stats: EngineStats) -> _Totals:
        metrics, cache = self._metrics, stats.cache
        return _Totals(
            seconds=self._clock(),
            computed=stats.scheduler.computed_tokens,
            drawn=metrics.output_tokens,
            first=metrics.first_tokens,
            cached=0 if cache is None else cache.hit_tokens,
            ended=stats.scheduler.finished,
            run_seconds=self._run_seconds,
            losses={} if cache is None else dict(cache.losses),
            refused=metrics.refusals() | metrics.aborts(),
        )


def _taken(samples: deque[T]) -> list[T]:
    """Remove and return what is there; the engine's thread may go on adding."""
    taken: list[T] = []
    for _ in range(len(samples)):
        try:
            taken.append(samples.popleft())
        except IndexError:
            break
    return taken


def _percentiles(samples: Iterable[tuple[float, int]]) -> Latencies | None:
    """Nearest-rank percentiles of (value, how often) pairs."""
    ordered = sorted(samples)
    total = sum(count for _, count in ordered)
    if not total:
        return None
    found: list[float] = []
    reached, index = 0, 0
    for value, count in ordered:
        reached += count
        while index < len(PERCENTILES) and reached >= math.ceil(PERCENTILES[index] * total):
            found.append(_rounded(value))
            index += 1
    p50, p90, p99 = found
    return Latencies(p50=p50, p90=p90, p99=p99)


def _rates(now: Mapping[str, int], before: Mapping[str, int], seconds: float) -> dict[str, float]:
    """Growth a second, of what has grown."""
    grown = {name: count - before.get(name, 0) for name, count in now.items()}
    return {name: _rounded(count / seconds) for name, count in grown.items() if count}


def _rounded(value: float) -> float:
    """Four digits are enough for a drawing, and a third of the bytes."""
    return float(f"{value:.4g}")
