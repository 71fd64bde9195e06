"""State slots of a running request, measured by simulating a trace instead of guessed as a constant."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import numpy as np

from milepost.errors import InputError
from milepost.planner.deployment import Deployment
from milepost.sim.runs import RunResult, RunSpec, StateUse
from milepost.sim.sweep.point import run_point
from milepost.sim.traces.options import TraceOptions
from milepost.sim.traces.reading import read_trace
from milepost.sim.traces.trace import Trace

__all__ = ["StateSlots", "measure_slots", "slots_of", "spec_of"]

_OVERLOAD = 1.25
_LEAST_TRACE_SECONDS = 60.0
"""In a shorter trace the last request alone may take long enough to look like a queue."""
_MOST_SEQS = 1024
_MANY_REFUSED = 0.01


class StateSlots(msgspec.Struct, frozen=True, kw_only=True):
    """What running requests took of a state's size each, and what the cache kept, on one rank.

    A slot is the memory of one recurrent state. *Needed* are those that can't be evicted: the live state of
    each running request, and, for the step that does it, a snapshot that is written or copied from. *Kept*
    are all cached snapshots; they go when memory is needed. Means and shares are of simulated time in which
    requests ran.

    Attributes:
        trace: name of the trace.
        spec: what was simulated, with a queue.
        requests: requests served.
        refused: requests that could never fit.
        running_mean: requests that ran at once.
        running_peak: the same, most.
        needed_slots_mean: for each running request.
        needed_slots_p99: the same, not exceeded in 99 % of the time; high where few run.
        needed_slots_peak: the same, most.
        extra_slots_mean: needed beyond one for each running request, of all together.
        extra_slots_p99: the same, not exceeded in 99 % of the time.
        extra_slots_peak: the same, most.
        kept_slots_mean: for each running request.
        kept_slots_peak: of all together, most.
        context_mean_tokens: prompt and output of a request.
        context_p50_tokens: the same.
        context_p90_tokens: the same.
        hit_rate: share of the prompt tokens that were not computed, 0 .. 1.
        ttft_p90_seconds: to the first token, waiting included.
        tpot_p50_seconds: from one output token to the next; None when nobody drew two.
        arrival_seconds: from the first arrival to the last.
        simulated_seconds: until the last request ended.
        hardware: of which ranks.
        notes: what a reader must know, such as that the load was more than the hardware could carry.
    """

    trace: str
    spec: RunSpec
    requests: int
    refused: int
    running_mean: float
    running_peak: int
    needed_slots_mean: float
    needed_slots_p99: float
    needed_slots_peak: float
    extra_slots_mean: float
    extra_slots_p99: int
    extra_slots_peak: int
    kept_slots_mean: float
    kept_slots_peak: int
    context_mean_tokens: float
    context_p50_tokens: float
    context_p90_tokens: float
    hit_rate: float
    ttft_p90_seconds: float
    tpot_p50_seconds: float | None
    arrival_seconds: float
    simulated_seconds: float
    hardware: str
    notes: tuple[str, ...] = ()

    def slots_for(self, batch: int) -> int:
        """Slots that `batch` running requests need together.

        One for each, and beyond it what was not exceeded in 99 % of the time, or, where the batch is larger
        than what ran, the measured mean for each.
        """
        return batch + max(self.extra_slots_p99, math.ceil(batch * (self.needed_slots_mean - 1)))

    @property
    def slots_per_request(self) -> float:
        """What a plan charges each request: `slots_for` of the most that ran at once, shared among them."""
        return self.slots_for(self.running_peak) / self.running_peak

    @property
    def source(self) -> str:
        """Where the numbers are from, in words."""
        policy, requests = self.spec.preset or self.spec.policy, f"{self.requests:,} requests"
        return f"measured on {requests} of {self.trace}, {policy}, at most {self.running_peak:,} at once"


def spec_of(deployment: Deployment, budget_bytes: int) -> RunSpec:
    """What simulates one group of a deployment's ranks, with the default policy and eviction.

    Args:
        deployment: its model must be one that the engine runs.
        budget_bytes: memory of a rank for states and KV.

    Raises:
        ConfigError: an unknown dtype.
    """
    return RunSpec(
        model=deployment.model,
        hardware=deployment.hardware,
        budget_bytes=budget_bytes,
        tensor_parallel=deployment.tensor_parallel,
        kv_itemsize=deployment.kv_itemsize,
        state_itemsize=deployment.state_itemsize,
        max_num_seqs=_MOST_SEQS,
        queueing=True,
    )


def measure_slots(trace: Path, options: TraceOptions, spec: RunSpec) -> StateSlots:
    """Simulate a trace in a queue and count the states in memory.

    Args:
        trace: file of requests, in any form that says which tokens are equal.
        options: how it is read; `time_scale` slows it down to what one rank can carry, `first` shortens it.
        spec: what is simulated: model, hardware, ranks, dtypes, policy, and `budget_bytes`, the memory of a
            rank for running requests and cache. It is run with a queue, whatever it says about that.

    Raises:
        ConfigError: it can't be run.
        InputError: the trace can't be read, has no requests, or none that fits the budget.
    """
    return slots_of(read_trace(trace, options), spec)


def slots_of(trace: Trace, spec: RunSpec) -> StateSlots:
    """As `measure_slots`, of a trace that has been read."""
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
