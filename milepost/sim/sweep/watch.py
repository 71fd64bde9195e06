"""What a sweep tells while it runs, and what it says of an error."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from milepost.errors import InvariantError, MilepostError
from milepost.sim.runs import RequestOutcome, RunResult, RunSpec
from milepost.sim.sweep.grid import point_name

__all__ = ["PointWatch", "SweepCallbacks", "name_point"]

_TOLD_EVERY = 256  # requests


class SweepCallbacks(msgspec.Struct, frozen=True, kw_only=True):
    """Who is told what while a sweep runs, always in the caller's process.

    Attributes:
        on_result: a point is done: its index in the grid and its result, as they finish.
        on_progress: so many more requests were served, over all points.
        on_outcomes: with a point's index, every request of it, before its result.
    """

    on_result: Callable[[int, RunResult], None] | None = None
    on_progress: Callable[[int], None] | None = None
    on_outcomes: Callable[[int, Sequence[RequestOutcome]], None] | None = None

    @property
    def keeps_outcomes(self) -> bool:
        """Whether somebody wants every request."""
        return self.on_outcomes is not None

    def tell(self, index: int, result: RunResult, outcomes: Sequence[RequestOutcome]) -> None:
        """A point is done."""
        if self.on_outcomes is not None:
            self.on_outcomes(index, outcomes)
        if self.on_result is not None:
            self.on_result(index, result)


class PointWatch:
    """Counts a point's requests on their way, and keeps them if somebody wants them.

    Args:
        on_progress: told of every few hundred requests.
        keeps: whether `outcomes` are kept.

    Attributes:
        outcomes: in the order in which they ended.
    """

    def __init__(self, on_progress: Callable[[int], None] | None, *, keeps: bool) -> None:
        self._on_progress = on_progress
        self._keeps = keeps
        self._untold = 0
        self.outcomes: list[RequestOutcome] = []

    def saw(self, outcome: RequestOutcome) -> None:
        """A request is done."""
        if self._keeps:
            self.outcomes.append(outcome)
        self._untold += 1
        if self._untold >= _TOLD_EVERY:
            self.flush()

    def flush(self) -> None:
        """Tell of what was not told yet."""
        if self._on_progress is not None and self._untold:
            self._on_progress(self._untold)
        self._untold = 0


def name_point(error: Exception, spec: RunSpec) -> Exception:
    """`error` with the point in which it came up: in its message, or beside the traceback of a bug."""
    if isinstance(error, MilepostError) and not isinstance(error, InvariantError):
        return type(error)(f"{point_name(spec)}: {error}")
    error.add_note(f"in the point: {point_name(spec)}")
    return error
