"""Thresholds: who is prefilled elsewhere."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from milepost.planner.disagg.offload import OffloadPoint, best_fleet, crossing, network_threshold

POSITIVE = st.floats(0.01, 10)
POINTS = st.lists(
    st.builds(OffloadPoint, POSITIVE, st.integers(1, 20), POSITIVE, POSITIVE, st.floats(1, 1e3)),
    min_size=1,
    max_size=8,
)


def weighed(points: list[OffloadPoint]) -> list[OffloadPoint]:
    total = sum(point.weight for point in points)
    return [point._replace(weight=point.weight / total) for point in points]


@given(POINTS, st.integers(1, 4), st.integers(2, 5), POSITIVE, st.floats(1, 1e4))
def test_no_other_threshold_and_division_serves_more(
    points: list[OffloadPoint], remote: int, local: int, decode: float, link: float
) -> None:
    points = weighed(points)
    found = best_fleet(
        points,
        remote_instances=remote,
        local_instances=local,
        decode_requests=decode,
        link_bytes_per_second=link,
    )
    best = 0.0
    for threshold in range(21):
        above = [point for point in points if point.uncached_tokens > threshold]
        below = [point for point in points if point.uncached_tokens <= threshold]
        for prefill in range(local):
            if bool(prefill) != bool(below):
                continue
            limits = [(local - prefill) * decode]
            if above:
                limits.append(remote / sum(point.weight * point.remote_seconds for point in above))
                limits.append(link / sum(point.weight * point.sent_bytes for point in above))
            if below:
                limits.append(prefill / sum(point.weight * point.local_seconds for point in below))
            best = max(best, min(limits))
    assert found.requests_per_second == pytest.approx(best)
    assert found.sent_bytes_per_second <= link * (1 + 1e-9)
    assert found.remote_instances == remote
    assert found.local_prefill_instances + found.decode_instances == local


@given(POINTS)
def test_parts_add_up(points: list[OffloadPoint]) -> None:
    points = weighed(points)
    found = best_fleet(points, remote_instances=2, local_instances=3, decode_requests=1.0)
    above = sum(point.weight for point in points if point.uncached_tokens > found.threshold_tokens)
    assert found.remote_share == pytest.approx(above, abs=1e-9)


def test_shares_of_many_requests_are_shares() -> None:
    """200 weights of 1/200 add up to a little more than 1."""
    points = [
        OffloadPoint(weight=1 / 200, uncached_tokens=n, remote_seconds=1.0, local_seconds=1.0, sent_bytes=1e9)
        for n in range(1, 201)
    ]
    assert network_threshold(points, 1e9, 1e6) == (200, 0.0)


def test_without_remote_machines_everything_is_local() -> None:
    points = [OffloadPoint(0.5, 10, 1.0, 2.0, 1.0), OffloadPoint(0.5, 20, 1.0, 4.0, 1.0)]
    found = best_fleet(points, remote_instances=0, local_instances=4, decode_requests=1.0)
    assert found.remote_share == 0.0
    assert found.sent_bytes_per_second == 0.0
    assert found.requests_per_second == pytest.approx(min(3 / 3.0, 1.0))
    everything = best_fleet(
        points, remote_instances=2, local_instances=2, decode_requests=1.0, everything_remote=True
    )
    assert (everything.threshold_tokens, everything.local_prefill_instances) == (0, 0)
    assert everything.bound in {"remote prefill", "decode"}


@given(POINTS, st.floats(0.1, 10), st.floats(0.1, 1e3))
def test_a_link_is_filled_no_further_than_it_goes(
    points: list[OffloadPoint], rate: float, link: float
) -> None:
    points = weighed(points)
    threshold, share = network_threshold(points, rate, link)

    def sent(limit: int) -> float:
        return rate * sum(
            point.weight * point.sent_bytes for point in points if point.uncached_tokens > limit
        )

    assert sent(threshold) <= link * (1 + 1e-9)
    assert threshold == 0 or sent(threshold - 1) > link * (1 - 1e-9)
    above = sum(point.weight for point in points if point.uncached_tokens > threshold)
    assert share == pytest.approx(above, abs=1e-9)


@pytest.mark.parametrize("at", [1, 2, 3, 64, 65, 777, 1000])
def test_crossings_are_found(at: int) -> None:
    assert crossing(lambda length: length >= at, 1000) == at


def test_no_crossing_is_none() -> None:
    asked: list[int] = []

    def never(length: int) -> bool:
        asked.append(length)
        return False

    assert crossing(never, 1000) is None
    assert max(asked) == 1000
    assert len(asked) <= math.ceil(math.log2(1000)) + 1
