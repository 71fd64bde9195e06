"""State slots of a running request, measured by simulating a trace instead of guessed as a constant."""

from __future__ import annotations

import math

import msgspec
import numpy as np

from milepost.errors import InputError
from milepost.planner.deployment import Deployment
from milepost.planner.slots.state_slots import StateSlots
from milepost.sim.cost.hardware import Hardware
from milepost.sim.runs import TOKEN_BUDGET, RunResult, RunSpec, StateUse
from milepost.sim.sweep.point import run_point
from milepost.sim.traces.trace import Trace

__all__ = ["slots_of", "spec_of"]

_OVERLOAD = 1.25
_LEAST_TRACE_SECONDS = 60.0
"""In a shorter trace the last request alone may take long enough to look like a queue."""
_MANY_REFUSED = 0.01


def spec_of(
    deployment: Deployment,
    hardware: Hardware,
    budget_bytes: int,
    *,
    token_budget: int = TOKEN_BUDGET,
    layout: str = "paged",
) -> RunSpec:
    """What simulates one group of a deployment's ranks in a queue, with the default policy and eviction.

    Args:
        deployment: its model must be one that the engine runs.
        hardware: what the deployment runs on where it names none.
        budget_bytes: memory of a rank for states and KV.
        token_budget: most tokens of a step.
        layout: of pages.

    Raises:
        ConfigError: an unknown dtype.
    """
    return RunSpec(
        model=deployment.model,
        hardware=deployment.hardware or hardware.name,
        budget_bytes=budget_bytes,
        layout=layout,
        tensor_parallel=deployment.tensor_parallel,
        kv_itemsize=deployment.kv_itemsize,
        state_itemsize=deployment.state_itemsize,
        token_budget=token_budget,
        queueing=True,
    )


def slots_of(trace: Trace, spec: RunSpec) -> StateSlots:
    """Simulate a trace in a queue and count the states in memory.

    Args:
        trace: slow enough, by `TraceOptions.time_scale`, for one rank to carry.
        spec: what is simulated: model, hardware, ranks, dtypes, policy, and `budget_bytes`, the memory of a
            rank for running requests and cache. It is run with a queue, whatever it says about that.

    Raises:
        ConfigError: it can't be run.
        InputError: the trace has no requests, or none that fits the budget.
    """
    if not trace.requests:
        raise InputError(f"{trace.name} has no requests, so no states can be counted. Give another trace.")
    queued = msgspec.structs.replace(spec, queueing=True)
    found = run_point(queued, trace)
    if found.states is None or found.ttft is None:
        raise InputError(
            f"None of the {len(trace.requests):,} requests of {trace.name} fits budget_bytes, so no states "
            f"can be counted. Given: {spec.budget_bytes}. Give more memory."
        )
    return _summed_up(trace, queued, found, found.states)


def _summed_up(trace: Trace, spec: RunSpec, found: RunResult, states: StateUse) -> StateSlots:
    contexts = [request.num_prompt + request.num_output for request in trace.requests]
    p50, p90 = np.percentile(contexts, (50, 90)).tolist()
    assert found.ttft is not None  # checked by the caller
    return StateSlots(
        trace=trace.name,
        spec=spec,
        requests=found.requests,
        refused=found.refused,
        running_mean=states.running_mean,
        running_peak=states.running_peak,
        needed_slots_mean=states.needed_mean,
        needed_slots_p99=states.needed_p99,
        needed_slots_peak=states.needed_peak,
        extra_slots_mean=states.extra_mean,
        extra_slots_p99=states.extra_p99,
        extra_slots_peak=states.extra_peak,
        kept_slots_mean=states.kept_mean,
        kept_slots_peak=states.kept_peak,
        context_mean_tokens=sum(contexts) / len(contexts),
        context_p50_tokens=p50,
        context_p90_tokens=p90,
        hit_rate=found.hit_rate,
        ttft_p90_seconds=found.ttft.p90,
        tpot_p50_seconds=None if found.tpot is None else found.tpot.p50,
        arrival_seconds=trace.seconds,
        simulated_seconds=found.seconds,
        hardware=found.hardware,
        notes=(*_load_notes(trace, found), *found.notes),
    )


def _load_notes(trace: Trace, found: RunResult) -> tuple[str, ...]:
    notes = []
    if found.seconds > _OVERLOAD * trace.seconds and trace.seconds >= _LEAST_TRACE_SECONDS:
        ratio = found.seconds / trace.seconds
        notes.append(
            f"The run took {ratio:.1f} times as long as the arrivals: the hardware can't carry this load, "
            "and the batch is as large as memory or max_num_seqs allow. A time_scale "
            f"{math.ceil(1.2 * ratio)} times as large spreads the arrivals."
        )
    if found.refused > _MANY_REFUSED * len(trace.requests):
        notes.append(
            f"{found.refused:,} of {len(trace.requests):,} requests can never fit the budget and were "
            "refused."
        )
    return tuple(notes)
