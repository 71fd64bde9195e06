"""The mix of a recorded trace: its lengths, and hits that are given or simulated on it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from milepost.errors import InputError
from milepost.planner.disagg.lengths import Mix, Share
from milepost.planner.disagg.question import DisaggQuestion
from milepost.sim.traces.trace import Trace

__all__ = ["trace_mix"]

POINTS = 400
"""Groups of a trace's requests, of like uncached lengths, that are kept apart."""


class _Row(NamedTuple):
    prompt: int
    cached: int
    output: int


def trace_mix(trace: Trace, ask: DisaggQuestion, longest: int) -> Mix:
    """Lengths of a trace, and what its prefill side has cached.

    Args:
        trace: the requests.
        ask: the question, with the hits or how they are simulated.
        longest: prompt that the model reads; longer ones count as that.

    Raises:
        InputError: it is empty, does not say how long outputs are, or hits can't be simulated on it.
        ConfigError: the simulation can't be run.
    """
    _check_outputs(trace)
    notes = list(trace.notes)
    if ask.simulated_bytes:
        rows, how, never = _simulated(trace, ask)
        if never:
            notes.append(
                f"Requests that the simulated cache can never hold: {never:,}. Each counts without hits."
            )
    else:
        rows = [
            _Row(
                one.num_prompt,
                min(math.floor(one.num_prompt * ask.hit_rate), one.num_prompt - 1),
                one.num_output,
            )
            for one in trace.requests
        ]
        how = f"hits: {ask.hit_rate:.1%} of each prompt, as given" if ask.hit_rate else "no hits"
    if over := sum(row.prompt > longest for row in rows):
        notes.append(f"Prompts longer than the model reads: {over:,}. Each counts as {longest:,} tokens.")
        rows = [_Row(min(row.prompt, longest), min(row.cached, longest - 1), row.output) for row in rows]
    if trace.seconds > 0:
        notes.append(f"The trace has {len(trace.requests) / trace.seconds:.3g} requests a second.")
    return _mix(rows, f"{trace.name}, {len(rows):,} requests; {how}", notes)


def _check_outputs(trace: Trace) -> None:
    """A trace without lengths of outputs has 1 for all: reading counts a missing or empty one so."""
    if not trace.requests:
        raise InputError(f"{trace.name} has no requests; there is nothing to plan for. Give another trace.")
    if all(request.num_output == 1 for request in trace.requests):
        raise InputError(
            f"{trace.name} ({trace.form}) does not say how long outputs are: every request has one token. "
            "Decode can't be planned without. Give a trace that does, or --lengths and --outputs."
        )


def _simulated(trace: Trace, ask: DisaggQuestion) -> tuple[list[_Row], str, int]:
    """Hits of each request by a replay through the prefix cache, each request served alone.

    Returns:
        the requests, in words where their hits are from, and how many of them the cache can never hold.
    """
    from milepost.sim.runs import RequestOutcome, RunSpec
    from milepost.sim.sweep.point import run_point

    outcomes: dict[str, RequestOutcome] = {}

    def keep(outcome: RequestOutcome) -> None:
        outcomes[outcome.request_id] = outcome

    result = run_point(
        RunSpec(
            model=ask.deployment.model,
            budget_bytes=ask.simulated_bytes,
            policy=ask.snapshot_policy,
            kv_itemsize=ask.deployment.kv_itemsize,
            state_itemsize=ask.deployment.state_itemsize,
        ),
        trace,
        keep,
    )
    hits = {name: outcome.hit_tokens for name, outcome in outcomes.items()}
    rows = [_Row(one.num_prompt, hits.get(one.request_id, 0), one.num_output) for one in trace.requests]
    how = f"hits simulated: {result.hit_rate:.1%} of the prompt tokens with {ask.simulated_bytes:,} bytes, "
    return rows, how + f"{result.policy}", len(rows) - len(hits)


def _mix(rows: Sequence[_Row], source: str, notes: Sequence[str]) -> Mix:
    steps = sum(row.output for row in rows)
    context = math.fsum(row.output * (row.prompt + row.output / 2) for row in rows) / steps
    held = math.fsum(row.output * (row.prompt + row.output) for row in rows) / steps
    return Mix(
        source=source,
        shares=_grouped(sorted(rows, key=lambda row: (row.prompt - row.cached, row.prompt))),
        output_tokens=steps / len(rows),
        decode_context_tokens=context,
        held_tokens=held,
        notes=tuple(notes),
    )


def _grouped(rows: Sequence[_Row]) -> tuple[Share, ...]:
    """Means of up to `POINTS` groups of neighbours; their weights are their numbers of requests."""
    groups = min(POINTS, len(rows))
    found = []
    for place in range(groups):
        group = rows[len(rows) * place // groups : len(rows) * (place + 1) // groups]
        prompt = round(sum(row.prompt for row in group) / len(group))
        cached = round(sum(row.cached for row in group) / len(group))
        found.append(
            Share(
                weight=len(group) / len(rows),
                prompt_tokens=max(1, prompt),
                cached_tokens=min(cached, prompt - 1),
            )
        )
    return tuple(sorted(found, key=lambda share: share.uncached_tokens))
