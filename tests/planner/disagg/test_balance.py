"""Waits, utilisation, ratios, and both phases on one instance."""

from __future__ import annotations

import heapq
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from milepost.planner.disagg.balance import (
    best_counts,
    colocated_requests,
    utilization_within,
    wait_seconds,
)


def simulated_wait(utilization: float, groups: int, services: list[float], seed: int) -> float:
    """Mean wait of Poisson arrivals that wait in one queue."""
    draw = random.Random(seed)
    mean = sum(services) / len(services)
    free = [0.0] * groups
    now = waited = 0.0
    count = 200_000
    for _ in range(count):
        now += draw.expovariate(utilization * groups / mean)
        start = max(now, heapq.heappop(free))
        waited += start - now
        heapq.heappush(free, start + draw.choice(services))
    return waited / count


@pytest.mark.parametrize("groups", [1, 4, 16])
def test_waits_are_those_of_a_queue(groups: int) -> None:
    """Within 6 %, or 1 % of a service: an approximation, and at little load waits hardly matter."""
    services = [0.2, 0.4, 1.4]
    mean = sum(services) / len(services)
    residual = sum(one * one for one in services) / len(services) / (2 * mean)
    for utilization in (0.7, 0.8):
        found = simulated_wait(utilization, groups, services, seed=groups)
        assert wait_seconds(utilization, groups, residual) == pytest.approx(found, rel=0.06, abs=0.01 * mean)


@given(st.floats(0.001, 0.999), st.integers(1, 64), st.floats(1e-3, 10))
def test_utilization_is_the_inverse_of_the_wait(utilization: float, groups: int, residual: float) -> None:
    wait = wait_seconds(utilization, groups, residual)
    if wait > 0:
        assert utilization_within(wait, groups, residual) == pytest.approx(utilization, rel=1e-6)


def test_a_full_instance_has_no_end_of_waiting() -> None:
    assert wait_seconds(1.0, 4, 1.0) == math.inf
    assert wait_seconds(1.0 - 1e-12, 4, 1.0) == math.inf
    assert utilization_within(0.0, 4, 1.0) == 0.0
    assert utilization_within(-1.0, 4, 1.0) == 0.0


RATE = st.floats(0.1, 100)


@given(RATE, RATE, st.integers(1, 16), st.integers(1, 16), st.integers(2, 200))
def test_no_other_numbers_within_a_budget_serve_more(
    prefill: float, decode: float, of_prefill: int, of_decode: int, budget: int
) -> None:
    found = best_counts(prefill, decode, of_prefill, of_decode, budget)
    every = [
        (min(some * prefill, others * decode), -(some * of_prefill + others * of_decode))
        for some in range(1, budget)
        for others in range(1, budget)
        if some * of_prefill + others * of_decode <= budget
    ]
    if not every:
        assert found is None
        return
    assert found is not None
    assert found.requests_per_second == pytest.approx(max(every)[0])
    assert found.prefill * of_prefill + found.decode * of_decode <= budget
    assert found.requests_per_second == pytest.approx(min(found.prefill * prefill, found.decode * decode))


@given(RATE, RATE, st.integers(1, 16), st.integers(1, 16))
def test_a_ratio_alone_is_small_and_nearly_the_best(
    prefill: float, decode: float, of_prefill: int, of_decode: int
) -> None:
    found = best_counts(prefill, decode, of_prefill, of_decode)
    assert found is not None
    weight = found.prefill * of_prefill + found.decode * of_decode
    worth = found.requests_per_second / weight
    for others in range(1, 17):
        for some in range(1, 17):
            one = some * of_prefill + others * of_decode
            served = min(some * prefill, others * decode) / one
            assert served * 0.97 <= worth * (1 + 1e-9)
            if served >= worth * (1 + 1e-9):
                assert one >= weight


@given(st.integers(1, 300), st.integers(1, 16), st.floats(0.01, 10), st.floats(1, 4000))
def test_together_the_best_batch_is_found(
    most: int, groups: int, filled_seconds: float, output_tokens: float
) -> None:
    def step(batch: int) -> float:
        return 0.01 + 0.04 * batch / most

    requests, batch = colocated_requests(step, most, groups, filled_seconds, output_tokens, 0.05)
    every = [
        min(groups * one / (0.05 * output_tokens), groups * (1 - step(one) / 0.05) / filled_seconds)
        for one in range(1, most + 1)
    ]
    assert requests == pytest.approx(max(every))
    assert 1 <= batch <= most
