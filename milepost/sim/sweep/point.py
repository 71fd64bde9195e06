"""One point of a sweep: model, simulated engine and model of time by their names, put together and run."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from milepost.error_text import listing
from milepost.errors import ConfigError, InputError
from milepost.model_spec import ModelSpec
from milepost.sim.cost.by_name import find_cost_model
from milepost.sim.cost.step_work import CostModel
from milepost.sim.models import find_model
from milepost.sim.replay.keys import BlockHasher
from milepost.sim.replay.setup import Parts
from milepost.sim.replay.simulation import Simulation
from milepost.sim.runs import RequestOutcome, RunResult, RunSpec
from milepost.sim.sweep.grid import point_name
from milepost.sim.sweep.parts_by_name import parts_by_name
from milepost.sim.traces.trace import Trace

__all__ = ["PointRunner", "check_points", "run_point"]

PointRunner = Callable[[RunSpec, Trace, Callable[[RequestOutcome], None] | None], RunResult]
"""Runs one point and tells of each request."""


def run_point(
    spec: RunSpec, trace: Trace, on_request: Callable[[RequestOutcome], None] | None = None
) -> RunResult:
    """One point: the model, the engine that is simulated and the model of time, put together and run.

    Args:
        spec: the point.
        trace: what is replayed.
        on_request: called after each request with its outcome.

    Raises:
        ConfigError: the point can't be run.
        TraceError: the trace does not say which tokens are equal.
    """
    name, simulation = _compose(spec, trace, on_request)
    return msgspec.structs.replace(simulation.run(), model=name)


def _compose(
    spec: RunSpec, trace: Trace, on_request: Callable[[RequestOutcome], None] | None
) -> tuple[str, Simulation]:
    name, model = find_model(spec.model)
    parts = parts_by_name(spec, trace, model)
    return name, Simulation(spec, trace, parts, _cost_model(spec, model, parts), on_request)


def _cost_model(spec: RunSpec, model: ModelSpec, parts: Parts) -> CostModel | None:
    return find_cost_model(
        spec.hardware,
        model,
        tensor_parallel=spec.tensor_parallel,
        kv_itemsize=spec.kv_itemsize,
        page_bytes=parts.layout.page_bytes,
        state_itemsize=spec.state_itemsize,
    )


def check_points(specs: Sequence[RunSpec], trace: Trace) -> tuple[RunSpec, ...]:
    """Put every point together without running it.

    Returns:
        one spec for each of `specs`: itself, or the first that comes to the same. Two do if, say, one names
        the match unit that the other takes by default.

    Raises:
        ConfigError: some can't be run; the message has all reasons.
        InputError: the trace has nothing to replay, or does not say which tokens are equal.
    """
    if not trace.requests:
        raise InputError(f"{trace.name} has no requests; there is nothing to replay. Give another trace.")
    if not trace.has_content:
        raise InputError(
            f"{trace.name} ({trace.form}) has lengths only: it does not say which tokens are equal, so no "
            "reuse can be computed. Give a trace with hashes, token ids or messages; 'milepost trace stats' "
            "shows the lengths."
        )
    first: dict[tuple[object, ...], RunSpec] = {}
    checked: list[RunSpec] = []
    reasons: dict[str, list[str]] = {}
    for spec in specs:
        try:
            checked.append(first.setdefault(_identity(spec, trace), spec))
        except InputError as error:
            reasons.setdefault(str(error), []).append(point_name(spec))
    if reasons:
        count = sum(map(len, reasons.values()))
        what = f"{count} of {len(specs)} points" if len(specs) > 1 else "The point"
        raise ConfigError(f"{what} can't be run:{listing(map(_reason, reasons, reasons.values()))}")
    return tuple(checked)


def _identity(spec: RunSpec, trace: Trace) -> tuple[object, ...]:
    """What a point comes to: equal for points that would run alike."""
    if spec.match_unit and trace.block_size > 1:
        BlockHasher(spec.match_unit, trace.block_size)  # says what does not fit
    _, simulation = _compose(spec, trace, None)
    parts = simulation.parts
    plain = msgspec.structs.replace(spec, policy="", eviction="", match_unit=0, block_size=0)
    return (plain, parts.policy.name, parts.eviction.name, parts.match_unit, parts.layout.block_size)


def _reason(reason: str, points: Sequence[str]) -> str:
    more = f" and {len(points) - 1} more" if len(points) > 1 else ""
    return f"{points[0]}{more}: {reason}"
