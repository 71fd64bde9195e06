"""The same sweep over the machines of a Ray cluster; Ray does all of the spreading.

Every machine needs Milepost in the same version. The trace travels once a machine, through Ray's object
store; each point is one task.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from milepost.errors import ConfigError, ExecutionError
from milepost.sim.runs import RequestOutcome, RunResult, RunSpec
from milepost.sim.sweep.grid import point_name
from milepost.sim.sweep.point import PointRunner, run_point
from milepost.sim.sweep.watch import PointWatch, SweepCallbacks, name_point
from milepost.sim.traces.trace import Trace

__all__ = ["run_sweep_on_ray"]

_Answer = tuple[RunResult, list[RequestOutcome]] | Exception


def run_sweep_on_ray(
    specs: Sequence[RunSpec],
    trace: Trace,
    *,
    address: str = "",
    callbacks: SweepCallbacks = SweepCallbacks(),  # noqa: B008 - frozen
    run: PointRunner = run_point,
) -> list[RunResult]:
    """Run every point as a Ray task; results in the order of `specs`.

    Args:
        specs: the points, checked by `check_points`.
        trace: what all of them replay.
        address: of the cluster, such as "auto" or "ray://head:10001"; "" starts one on this machine.
        callbacks: who is told what; progress comes a point at a time.
        run: runs one point.

    Raises:
        ConfigError: Ray is not installed, or there is no cluster at `address`.
        InputError: a point can't be run; the message names it.
        ExecutionError: Ray has lost a task.
    """
    ray = _import_ray()
    _connect(ray, address)
    try:
        shared = ray.put(trace)
        task = ray.remote(_answer)
        keeps = callbacks.keeps_outcomes
        waiting = {task.remote(spec, shared, keeps, run): index for index, spec in enumerate(specs)}
        results: dict[int, RunResult] = {}
        while waiting:
            (ready,), _ = ray.wait([*waiting], num_returns=1)
            index = waiting.pop(ready)
            result, outcomes = _take(ray, ready, specs[index])
            results[index] = result
            if callbacks.on_progress is not None:
                callbacks.on_progress(result.requests)
            callbacks.tell(index, result, outcomes)
    finally:
        ray.shutdown()  # ends what is still running
    return [results[index] for index in range(len(specs))]


def _import_ray() -> Any:  # noqa: ANN401 - an optional package
    try:
        import ray
    except ImportError:
        raise ConfigError(
            "--ray needs Ray, which is not installed. Run `pip install 'milepost[ray]'`, or leave it out: "
            "the points then run on the cores of this machine."
        ) from None
    return ray


def _connect(ray: Any, address: str) -> None:  # noqa: ANN401 - an optional package
    try:
        ray.init(address=address or "local", log_to_driver=False, logging_level="error")
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise ConfigError(
            f"There is no Ray cluster at {address or 'this machine'}: {error}. Start one with `ray start`, "
            "or give --ray without an address."
        ) from error


def _answer(spec: RunSpec, trace: Trace, keeps: bool, run: PointRunner) -> _Answer:
    """In the task: the point's result, or what went wrong as a value that Ray does not wrap."""
    watch = PointWatch(None, keeps=keeps)
    try:
        return run(spec, trace, watch.saw), watch.outcomes
    except Exception as error:  # noqa: BLE001 - told to the caller, which raises it
        return name_point(error, spec)


def _take(ray: Any, ready: Any, spec: RunSpec) -> tuple[RunResult, list[RequestOutcome]]:  # noqa: ANN401
    try:
        answer: _Answer = ray.get(ready)
    except Exception as error:
        raise ExecutionError(f"{point_name(spec)}: Ray has lost the task: {error}") from error
    if isinstance(answer, Exception):
        raise answer
    return answer
