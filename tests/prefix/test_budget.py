"""The `budget` policy: its dynamic programme against brute force, its histogram, and what it learns."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from milepost.prefix.policies.budget import Budget
from milepost.prefix.policies.depths import DepthHistogram
from milepost.prefix.policies.placement import Placement
from tests.prefix.views import places, view_of

histograms = st.dictionaries(st.integers(1, 9), st.integers(1, 5), max_size=6)


def recomputed(histogram: Iterable[tuple[int, float]], snapshots: Sequence[int]) -> float:
    """Tokens of the overlaps that are computed again."""
    return sum(
        weight * (depth - max((place for place in snapshots if place <= depth), default=0))
        for depth, weight in histogram
    )


def placement_of(histogram: dict[int, int], snapshots: int) -> Placement:
    depths = sorted(histogram)
    return Placement(depths, [float(histogram[depth]) for depth in depths], snapshots)


@given(histogram=histograms, snapshots=st.integers(1, 4), num_tokens=st.integers(1, 10))
@settings(max_examples=150)
def test_no_choice_of_places_recomputes_less(
    histogram: dict[int, int], snapshots: int, num_tokens: int
) -> None:
    """Brute force over all places, not only the depths, and over every number of them."""
    found = placement_of(histogram, snapshots).best(num_tokens)
    assert list(found) == sorted(set(found))
    assert len(found) <= snapshots
    assert all(0 < place <= num_tokens for place in found)
    reachable = [(depth, float(weight)) for depth, weight in histogram.items() if depth <= num_tokens]
    least = min(
        recomputed(reachable, chosen)
        for count in range(snapshots + 1)
        for chosen in combinations(range(1, num_tokens + 1), count)
    )
    assert recomputed(reachable, found) == least


def test_a_snapshot_stands_where_it_is_worth_it() -> None:
    """1,000 tokens saved twice are more than 100 saved nineteen times, and less than twenty-one times."""
    assert placement_of({100: 19, 1000: 2}, 1).best(5000) == (100,)  # it serves both: 21 * 100
    assert placement_of({100: 17, 1000: 2}, 1).best(5000) == (1000,)
    assert placement_of({100: 17, 1000: 2}, 1).best(999) == (100,)
    assert placement_of({100: 17, 1000: 2}, 2).best(5000) == (100, 1000)
    assert placement_of({100: 17, 1000: 2}, 9).best(5000) == (100, 1000)


def test_nothing_seen_nothing_placed() -> None:
    assert placement_of({}, 3).best(1000) == ()


@given(depths=st.lists(st.integers(1, 60), max_size=80), max_bins=st.integers(1, 8))
def test_a_histogram_is_bounded_and_loses_no_weight(depths: list[int], max_bins: int) -> None:
    histogram = DepthHistogram(max_bins)
    for depth in depths:
        histogram.add(depth)
    assert histogram.depths == sorted(set(histogram.depths))
    assert len(histogram.depths) == len(histogram.weights) <= max_bins
    assert sum(histogram.weights) == len(depths)
    assert set(histogram.depths) <= set(depths)
    assert histogram.depths[:1] == sorted(depths)[:1]


def test_a_histogram_merges_down_the_pair_that_costs_least() -> None:
    histogram = DepthHistogram(2)
    for depth in (700, 700, 700, 5000, 5010):
        histogram.add(depth)
    assert (histogram.depths, histogram.weights) == ([700, 5000], [3.0, 2.0])


def test_a_depth_that_many_share_stays_exact_among_many_others() -> None:
    histogram = DepthHistogram(16)
    for i in range(1000):
        histogram.add(688)
        histogram.add(700 + i * 7919 % 1000)
    assert 688 in histogram.depths
    assert histogram.weights[histogram.depths.index(688)] >= sum(histogram.weights) / 2


def test_bins_cost_little_against_exact_depths() -> None:
    """900 depths in 128 bins: at most a twentieth more is computed again than with a bin for each."""
    generator = random.Random(0)
    depths = sorted({int(generator.lognormvariate(8.5, 1.0)) + 1 for _ in range(900)})
    shuffled = list(depths)
    generator.shuffle(shuffled)
    binned = DepthHistogram(128)
    for depth in shuffled:
        binned.add(depth)
    truth = [(depth, 1.0) for depth in depths]
    exact = Placement(depths, [1.0] * len(depths), 8).best(depths[-1])
    coarse = Placement(binned.depths, binned.weights, 8).best(depths[-1])
    assert recomputed(truth, exact) <= recomputed(truth, coarse) <= 1.05 * recomputed(truth, exact)


def test_a_histogram_forgets() -> None:
    histogram = DepthHistogram(8)
    histogram.add(5)
    for _ in range(6 * 1024):
        histogram.add(9)
    assert histogram.depths == [9]
    assert histogram.weights[0] < 2048


def test_before_it_has_learnt_it_spreads_over_the_prompt() -> None:
    plan = Budget(3).plan(view_of(4000))
    assert places(plan) == {992: "budget", 2000: "budget", 2992: "budget"}
    assert places(Budget(3).plan(view_of(4000, hit=2000))) == {2992: "budget"}
    assert places(Budget(3).plan(view_of(20))) == {}


def test_it_learns_where_prompts_part() -> None:
    policy = Budget(2)
    for i in range(32):
        policy.observe(view_of(2000 + i, matched=688 if i % 4 else 1504))
    assert places(policy.plan(view_of(2000))) == {688: "budget", 1504: "budget"}
    assert places(policy.plan(view_of(1000))) == {688: "budget"}
    assert places(policy.plan(view_of(2000, hit=688))) == {1504: "budget"}


def test_a_prompt_that_is_cached_as_a_whole_teaches_the_place_before_its_last_token() -> None:
    policy = Budget(1)
    for _ in range(16):
        policy.observe(view_of(64, hit=0, matched=64))
    assert places(policy.plan(view_of(64))) == {63: "budget"}


def test_what_overlaps_nothing_teaches_nothing() -> None:
    policy = Budget(3)
    before = policy.plan(view_of(4000))
    for _ in range(100):
        policy.observe(view_of(2000))
        policy.observe(view_of(1, matched=1))
    assert policy.plan(view_of(4000)) == before


def test_it_keeps_to_its_budget() -> None:
    policy = Budget(5)
    for i in range(5000):
        policy.observe(view_of(10**6, matched=1 + i * 7919 % 10**6))
        if i % 500 == 0:
            assert len(policy.plan(view_of(10**6)).points) <= 5
