"""A sweep: many runs of one trace, over the cores of a machine, with the results in the order of the grid."""

from __future__ import annotations

from collections.abc import Sequence

from milepost.errors import ConfigError
from milepost.machine import usable_cores
from milepost.sim.runs import RunResult, RunSpec
from milepost.sim.sweep.point import PointRunner, check_points, run_point
from milepost.sim.sweep.processes import run_in_processes
from milepost.sim.sweep.watch import PointWatch, SweepCallbacks, name_point
from milepost.sim.traces.trace import Trace

__all__ = ["SweepCallbacks", "check_points", "run_point", "run_sweep"]


def run_sweep(
    specs: Sequence[RunSpec],
    trace: Trace,
    *,
    jobs: int = 0,
    callbacks: SweepCallbacks = SweepCallbacks(),  # noqa: B008 - frozen
    run: PointRunner = run_point,
) -> list[RunResult]:
    """Run every point; results in the order of `specs`.

    Ctrl-C ends all processes at once and raises KeyboardInterrupt.

    Args:
        specs: the points, checked by `check_points`.
        trace: what all of them replay; loaded once, and inherited by the processes.
        jobs: processes; 1 runs all points in this one, 0 takes the usable cores.
        callbacks: who is told what.
        run: runs one point.

    Raises:
        ConfigError: negative `jobs`.
        InputError: a point can't be run; the message names it.
        ExecutionError: a process ended by itself.
    """
    if jobs < 0:
        raise ConfigError(f"jobs must be at least 1, or 0 for all usable cores. Given: {jobs}.")
    processes = min(jobs or usable_cores(), len(specs))
    if processes > 1:
        return run_in_processes(specs, trace, processes, callbacks, run)
    return [_run_here(index, spec, trace, callbacks, run) for index, spec in enumerate(specs)]


def _run_here(
    index: int, spec: RunSpec, trace: Trace, callbacks: SweepCallbacks, run: PointRunner
) -> RunResult:
    watch = PointWatch(callbacks.on_progress, keeps=callbacks.on_outcomes is not None)
    try:
        result = run(spec, trace, watch.saw)
    except Exception as error:
        named = name_point(error, spec)
        if named is error:
            raise
        raise named from error
    watch.flush()
    callbacks.tell(index, result, watch.outcomes)
    return result
