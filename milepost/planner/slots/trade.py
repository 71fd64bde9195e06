"""Batch against cache: memory that running requests take is missing for what could be hit.

A rank that has more requests than it can run is simulated under a limit of the batch. A larger batch shares
each step's weights among more tokens, but leaves less memory for snapshots, so that more must be computed.
"""

from __future__ import annotations

import msgspec

from milepost.errors import ConfigError, InputError
from milepost.sim.runs import RunSpec
from milepost.sim.sweep.point import run_point
from milepost.sim.traces.trace import Trace

__all__ = ["BatchTrade", "trade_of"]


class BatchTrade(msgspec.Struct, frozen=True, kw_only=True):
    """What one limit of the batch came to, in one budget.

    Attributes:
        batch_limit: most requests that may run at once.
        budget_bytes: memory of a rank for running requests and cache.
        running_mean: requests that ran at once.
        kept_slots_mean: cached snapshots, of all requests together.
        hit_rate: share of the prompt tokens that were not computed, 0 .. 1, the warm-up left out.
        tpot_p50_seconds: from one output token to the next.
        output_tokens_per_second: of the ranks that share one sequence, over the whole run.
        preemptions: requests that lost their memory, as often as they did.
        hardware: of which ranks.
    """

    batch_limit: int
    budget_bytes: int
    running_mean: float
    kept_slots_mean: float
    hit_rate: float
    tpot_p50_seconds: float
    output_tokens_per_second: float
    preemptions: int
    hardware: str


def trade_of(trace: Trace, spec: RunSpec, *, batch_limit: int, budget_bytes: int) -> BatchTrade:
    """Simulate a trace in a queue under a limit of the batch.

    Args:
        trace: faster than the hardware can carry, or the limit is not reached.
        spec: model, hardware, ranks, dtypes, policy and warm-up.
        batch_limit: most requests that may run at once.
        budget_bytes: memory of a rank for running requests and cache.

    Raises:
        ConfigError: a limit below 1, or a budget that holds nothing.
        InputError: no request of the trace could be served, or none drew two tokens.
    """
    if batch_limit < 1:
        raise ConfigError(f"batch_limit must be at least 1. Given: {batch_limit}.")
    limited = msgspec.structs.replace(
        spec, queueing=True, max_num_seqs=batch_limit, budget_bytes=budget_bytes
    )
    found = run_point(limited, trace)
    if found.states is None or found.tpot is None or not found.seconds:
        raise InputError(
            f"No request of {trace.name} drew two tokens within budget_bytes. Given: {budget_bytes:,}. "
            "Give more memory, or another trace."
        )
    drawn = sum(request.num_output for request in trace.requests)
    return BatchTrade(
        batch_limit=batch_limit,
        budget_bytes=budget_bytes,
        running_mean=found.states.running_mean,
        kept_slots_mean=found.states.kept_mean * found.states.running_mean,
        hit_rate=found.hit_rate,
        tpot_p50_seconds=found.tpot.p50,
        output_tokens_per_second=drawn / found.seconds,
        preemptions=found.preemptions,
        hardware=found.hardware,
    )
