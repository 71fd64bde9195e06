"""The index of future uses, against what is counted block by block."""

from __future__ import annotations

import time
from itertools import takewhile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from milepost.errors import ConfigError
from milepost.sim.clairvoyant.future_uses import NEVER, FutureUses
from milepost.sim.traces.block_tokens import BlockTokens
from milepost.sim.traces.trace import Trace, TraceRequest
from tests.sim.block_traces import block_trace, random_trace

SIZE = 64


def ids_of(trace: Trace) -> list[list[int]]:
    """The ids of every prompt, one by one."""
    return [
        request.prompt.block_ids(0, -(-request.num_prompt // SIZE))
        for request in trace.requests
        if isinstance(request.prompt, BlockTokens)
    ]


def shared(one: list[int], other: list[int]) -> int:
    """Tokens of the whole blocks that two prompts share."""
    return SIZE * len(list(takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))))


def resumes(prompts: list[list[int]], trace: Trace) -> list[int]:
    longest = [(request.num_prompt - 1) // SIZE * SIZE for request in trace.requests]
    return [
        min(longest[n], max((shared(prompts[m], prompts[n]) for m in range(n)), default=0))
        for n in range(len(prompts))
    ]


traces = st.builds(random_trace, st.integers(0, 10**6), st.integers(1, 24))


@given(trace=traces)
@settings(max_examples=60, deadline=None)
def test_it_tells_who_shares_a_prefix_next(trace: Trace) -> None:
    future, prompts = FutureUses(trace), ids_of(trace)
    for n, ids in enumerate(prompts):
        for position in range(SIZE, SIZE * len(ids) + 1, SIZE):
            after = [m for m in range(n + 1, len(prompts)) if shared(ids, prompts[m]) >= position]
            assert future.next_through(n, position) == min(after, default=NEVER)
            holders = [m for m, other in enumerate(prompts) if ids[position // SIZE - 1] in other]
            assert future.first_through(future.id_at(n, position)) == holders[0]
        assert future.next_through(n, SIZE * len(ids) + 1) == NEVER


@given(trace=traces)
@settings(max_examples=60, deadline=None)
def test_it_tells_where_prompts_resume(trace: Trace) -> None:
    future, prompts = FutureUses(trace), ids_of(trace)
    depths = resumes(prompts, trace)
    assert future.resumes == depths
    for n, ids in enumerate(prompts):
        expected = {}
        for position in range(SIZE, SIZE * len(ids) + 1, SIZE):
            later = [
                m
                for m in range(n + 1, len(prompts))
                if depths[m] == position and shared(ids, prompts[m]) >= position
            ]
            block_id = ids[position // SIZE - 1]
            assert future.next_resuming(block_id, n) == min(later, default=NEVER)
            if later:
                expected[position] = later[0]
        assert dict(future.places(n, 0)) == expected
        begin = SIZE * (len(ids) // 2)
        assert dict(future.places(n, begin)) == {p: m for p, m in expected.items() if p > begin}


def test_an_id_that_no_prompt_holds_has_no_request() -> None:
    future = FutureUses(block_trace([([3, 4, 9], 192), ([3, 4, 5], 192)]))
    assert [future.first_through(block_id) for block_id in range(11)] == [
        *(3 * [NEVER]),
        *(0, 0, 1),
        *(3 * [NEVER]),
        *(0, NEVER),
    ]
    assert future.first_through(-5) == NEVER


def test_a_resend_resumes_before_its_last_token() -> None:
    assert FutureUses(block_trace([([0, 1, 2], 192)] * 2)).resumes == [0, 128]
    assert FutureUses(block_trace([([0, 1, 2], 150)] * 2)).resumes == [0, 128]


def test_long_prompts_cost_no_more_than_short_ones() -> None:
    """3,000 turns of one conversation, 22 million blocks in all: only runs are looked at."""
    requests = [
        TraceRequest(
            request_id=str(turn),
            arrival=float(turn),
            prompt=BlockTokens((range((turn + 1) * 5),), (turn + 1) * 5 * SIZE, SIZE),
        )
        for turn in range(3000)
    ]
    started = time.thread_time()
    future = FutureUses(Trace(name="long", form="made", requests=requests, block_size=SIZE))
    assert time.thread_time() - started < 2.0
    assert future.resumes == [turn * 5 * SIZE for turn in range(3000)]
    assert sum(1 for _ in future.places(1000, 0)) == 1  # its own end; those before are in the past


def test_traces_without_equal_blocks_have_no_future() -> None:
    request = TraceRequest(request_id="1", arrival=0.0, prompt=(1, 2, 3))
    tokens = Trace(name="ids", form="token-ids", requests=[request], block_size=1)
    with pytest.raises(ConfigError, match=r"needs a trace of blocks.*token-ids"):
        FutureUses(tokens)
    trace = block_trace([([0], 64)])
    lengths = Trace(name="azure", form="azure", requests=trace.requests, block_size=SIZE, has_content=False)
    with pytest.raises(ConfigError, match=r"which tokens are equal.*azure"):
        FutureUses(lengths)
