"""With unlimited memory hits can be counted by hand, and the simulator is held to that."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from milepost.sim.traces.trace import TraceRequest
from tests.sim.block_traces import Places, expected_hits, random_trace, replay


def every(period: int) -> Places:
    return lambda request, _shared: range(period, request.num_prompt + 1, period)


def prompt_end(request: TraceRequest, _shared: int) -> Iterable[int]:
    return [request.num_prompt]


def branch(request: TraceRequest, shared: int) -> Iterable[int]:
    return [min(shared, request.num_prompt - 1)]


def both(*places: Places) -> Places:
    return lambda request, shared: [place for one in places for place in one(request, shared)]


POLICIES: dict[str, Places] = {
    "every(64)": every(64),
    "every(192)": every(192),
    "every(100)": every(128),  # periods are whole blocks of what the trace tells apart
    "turns": prompt_end,
    "turns+branch": both(prompt_end, branch),
    "turns+every(512)": both(prompt_end, every(512)),
    "branch": both(prompt_end, branch),  # its last token is the prompt's last whole block
}


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("seed", range(6))
def test_hits_and_snapshots_are_those_counted_by_hand(policy: str, seed: int) -> None:
    trace = random_trace(seed)
    result = replay(trace, policy)
    hits, written = expected_hits(trace, POLICIES[policy])
    assert (result.hit_tokens, result.snapshots_written) == (hits, written)
    assert result.hit_tokens > 0.2 * result.input_tokens
    assert result.hit_tokens + sum(result.losses.values()) == result.input_tokens == trace.num_input


def test_adaptive_reaches_the_prefix_bound() -> None:
    """Spare snapshots at every block: what a model without a recurrent state would hit."""
    trace = random_trace(7)
    bound, _ = expected_hits(trace, every(64))
    assert replay(trace, "adaptive").hit_tokens == bound


@pytest.mark.parametrize("eviction", ["lru", "value", "marconi(alpha=1)"])
def test_a_budget_that_is_never_full_hits_as_much_as_no_budget(eviction: str) -> None:
    trace = random_trace(8)
    unlimited = replay(trace, "turns+branch")
    plenty = replay(trace, "turns+branch", eviction, budget=1 << 31)
    assert plenty.hit_tokens == unlimited.hit_tokens
    assert plenty.snapshots_written == unlimited.snapshots_written
    assert plenty.losses == unlimited.losses
