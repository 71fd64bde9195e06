"""Counts the states that running requests need and that the cache keeps, over simulated time."""

from __future__ import annotations

from collections.abc import Iterable

from milepost.sim.runs import StateUse

__all__ = ["StateWatch"]

_SHARE = 0.99


class StateWatch:
    """Adds up what steps hold; what it keeps grows with the different moments, not with the steps."""

    def __init__(self) -> None:
        self._seconds: dict[tuple[int, int], float] = {}  # by running requests and states needed
        self._kept_seconds = 0.0  # cached snapshots times seconds
        self._kept_peak = 0

    def saw(self, running: int, *, writing: int, copying: int, cached: int, seconds: float) -> None:
        """A step in which requests ran.

        Args:
            running: requests with a state of their own.
            writing: snapshots that it writes, not among `cached`; spare ones left out.
            copying: cached snapshots that it copies from.
            cached: all cached snapshots, `copying` included.
            seconds: how long it took.
        """
        if not running:
            return
        moment = (running, running + writing + copying)
        self._seconds[moment] = self._seconds.get(moment, 0.0) + seconds
        self._kept_seconds += cached * seconds
        self._kept_peak = max(self._kept_peak, cached)

    def use(self) -> StateUse | None:
        """Everything, summed up; None when no time passed while requests ran."""
        seconds = sum(self._seconds.values())
        if not seconds:
            return None
        moments = self._seconds.items()
        running = sum(ran * spent for (ran, _), spent in moments)
        needed = sum(need * spent for (_, need), spent in moments)
        ratios = [(need / ran, spent) for (ran, need), spent in moments]
        extras = [(float(need - ran), spent) for (ran, need), spent in moments]
        return StateUse(
            seconds=seconds,
            running_mean=running / seconds,
            running_peak=max(ran for ran, _ in self._seconds),
            needed_mean=needed / running,
            needed_p99=_not_exceeded(ratios, seconds),
            needed_peak=max(ratio for ratio, _ in ratios),
            extra_mean=(needed - running) / seconds,
            extra_p99=round(_not_exceeded(extras, seconds)),
            extra_peak=round(max(extra for extra, _ in extras)),
            kept_mean=self._kept_seconds / running,
            kept_peak=self._kept_peak,
        )


def _not_exceeded(values: Iterable[tuple[float, float]], seconds: float) -> float:
    """The least value that holds for `_SHARE` of the time."""
    lasted = 0.0
    ordered = sorted(values)
    for value, spent in ordered:
        lasted += spent
        if lasted >= _SHARE * seconds:
            return value
    return ordered[-1][0]
