"""What a trace holds, and how much of it any prefix cache could save at most."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from milepost.sim.traces.block_tokens import BlockTokens
from milepost.sim.traces.chains import Chainer
from milepost.sim.traces.trace import Trace, TraceRequest

__all__ = ["Spread", "TraceStats", "overlaps", "stats_of"]


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """How a quantity is spread over requests or sessions."""

    mean: float
    p50: float
    p90: float
    p99: float
    max: float


class TraceStats(msgspec.Struct, frozen=True, kw_only=True):
    """What a trace holds.

    Attributes:
        trace: its name.
        form: the form that it was read in.
        block_size: tokens that it tells apart.
        requests: how many.
        sessions: conversations; None where the trace does not tell them apart.
        seconds: from the first arrival to the last.
        requests_per_second: their mean rate; None for a trace of one moment.
        input_tokens: of all prompts.
        output_tokens: drawn by all.
        input: tokens of a prompt.
        output: tokens that a request draws.
        prefix_bound: share of the input that a cache would hit that never forgets and needs no states; the
            most that any prefix cache can save. None without content.
        prefix_bound_tokens: the same in tokens.
        new_beginnings: share of requests whose first block nobody sent before. None without content.
        overlap: tokens of a prompt that stood at the beginning of an earlier one. None without content.
        turns: requests of a session; None without sessions.
        skipped: bad rows that were left out.
        notes: what was assumed in reading.
    """

    trace: str
    form: str
    block_size: int
    requests: int
    sessions: int | None
    seconds: float
    requests_per_second: float | None
    input_tokens: int
    output_tokens: int
    input: Spread
    output: Spread
    prefix_bound: float | None
    prefix_bound_tokens: int | None
    new_beginnings: float | None
    overlap: Spread | None
    turns: Spread | None
    skipped: int
    notes: tuple[str, ...]


def stats_of(trace: Trace) -> TraceStats:
    """Sum a trace up; it must hold at least one request."""
    prompts = [request.num_prompt for request in trace.requests]
    outputs = [request.num_output for request in trace.requests]
    num_input = sum(prompts)
    shared = overlaps(trace) if trace.has_content else None
    sessions: dict[str, int] = {}
    for request in trace.requests:
        if request.session:
            sessions[request.session] = sessions.get(request.session, 0) + 1
    return TraceStats(
        trace=trace.name,
        form=trace.form,
        block_size=trace.block_size,
        requests=len(prompts),
        sessions=len(sessions) or None,
        seconds=trace.seconds,
        requests_per_second=len(prompts) / trace.seconds if trace.seconds > 0 else None,
        input_tokens=num_input,
        output_tokens=sum(outputs),
        input=_spread(prompts),
        output=_spread(outputs),
        prefix_bound=None if shared is None else sum(shared) / num_input,
        prefix_bound_tokens=None if shared is None else sum(shared),
        new_beginnings=None if shared is None else shared.count(0) / len(shared),
        overlap=None if shared is None else _spread(shared),
        turns=_spread([*sessions.values()]) if sessions else None,
        skipped=trace.skipped,
        notes=trace.notes,
    )


def overlaps(trace: Trace) -> list[int]:
    """Tokens of each prompt that stood at the beginning of an earlier one, in whole blocks of the trace.

    Where outputs are known, an earlier one's prompt goes on with what it drew.

    Of token ids the last one never counts, as its logits are always computed.
    """
    find = _TokenOverlap() if trace.block_size == 1 else _BlockOverlap()
    shares: Callable[[TraceRequest], int] = find
    return [shares(request) for request in trace.requests]


class _BlockOverlap:
    """Ids are chained: those of a prompt that were seen before stand at its beginning."""

    def __init__(self) -> None:
        self._seen: set[int] = set()

    def __call__(self, request: TraceRequest) -> int:
        prompt = request.prompt
        assert isinstance(prompt, BlockTokens)
        seen, known, left = self._seen, 0, prompt.num_prompt // prompt.block_size
        for place, run in enumerate(prompt.runs):
            if run[-1] in seen:
                known += len(run)
                left -= len(run)
                continue
            # The first run that is not wholly known; behind it all are new. A block that this prompt fills
            # partly is not seen yet.
            old = bisect_left(run, True, key=lambda block_id: block_id not in seen)
            seen.update(run[old : max(left, 0)])
            left -= len(run)
            for new in prompt.runs[place + 1 :]:
                seen.update(new[: max(left, 0)])
                left -= len(new)
            known += old
            break
        size = prompt.block_size
        return min(known, prompt.num_prompt // size) * size


class _TokenOverlap:
    def __init__(self) -> None:
        self._chainer = Chainer()

    def __call__(self, request: TraceRequest) -> int:
        prompt = request.prompt
        assert isinstance(prompt, tuple)
        known = min(self._chainer.add(prompt)[1], len(prompt) - 1)
        if request.output_ids:
            # What was drawn is cached, too, but for the last token, which was never an input.
            self._chainer.add((*prompt, *request.output_ids[:-1]))
        return known


def _spread(values: Sequence[int]) -> Spread:
    p50, p90, p99 = np.percentile(values, (50, 90, 99)).tolist()
    return Spread(mean=sum(values) / len(values), p50=p50, p90=p90, p99=p99, max=float(max(values)))
