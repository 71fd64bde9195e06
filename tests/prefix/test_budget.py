"""The `budget` policy: its dynamic programme against brute force, its histogram, and what it learns."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from milepost.prefix.policies.budget import Budget
from milepost.prefix.policies.depths import DepthHistogram
from milepost.prefix.policies.placement import best_places
from tests.prefix.views import places, view_of

histograms = st.dictionaries(st.integers(1, 9), st.integers(1, 5), max_size=6)


def recomputed(histogram: Iterable[tuple[int, float]], snapshots: Sequence[int]) -> float:
    """Tokens of the overlaps that are computed again."""
    return sum(
        weight * (depth - max((place for place in snapshots if place <= depth), default=0))
        for depth, weight in histogram
    )


def placed(
    histogram: dict[int, int], snapshots: int, end: int, standing: Sequence[int] = ()
) -> tuple[int, ...]:
    """The best places, given overlaps of at most `end` tokens."""
    depths = sorted(depth for depth in histogram if depth <= end)
    return best_places(depths, [float(histogram[depth]) for depth in depths], snapshots, standing)


@given(
    histogram=histograms,
    snapshots=st.integers(1, 4),
    end=st.integers(1, 10),
    standing=st.sets(st.integers(1, 9), max_size=3),
)
@settings(max_examples=200)
def test_no_choice_of_places_recomputes_less(
    histogram: dict[int, int], snapshots: int, end: int, standing: set[int]
) -> None:
    """Brute force over all places, not only the depths, and over every number of them."""
    found = placed(histogram, snapshots, end, sorted(standing))
    assert list(found) == sorted(set(found))
    assert len(found) <= snapshots
    assert all(0 < place <= end for place in found)
    assert not standing & set(found)
    reachable = [(depth, float(weight)) for depth, weight in histogram.items() if depth <= end]
    least = min(
        recomputed(reachable, [*chosen, *standing])
        for count in range(snapshots + 1)
        for chosen in combinations(range(1, end + 1), count)
    )
    assert recomputed(reachable, [*found, *standing]) == least


def test_a_snapshot_stands_where_it_is_worth_it() -> None:
    """1,000 tokens saved twice are more than 100 saved nineteen times, and less than twenty-one times."""
    assert placed({100: 19, 1000: 2}, 1, 5000) == (100,)  # it serves both: 21 * 100
    assert placed({100: 17, 1000: 2}, 1, 5000) == (1000,)
    assert placed({100: 17, 1000: 2}, 1, 999) == (100,)
    assert placed({100: 17, 1000: 2}, 2, 5000) == (100, 1000)
    assert placed({100: 17, 1000: 2}, 9, 5000) == (100, 1000)
    assert placed({100: 19, 1000: 2}, 1, 5000, [90]) == (1000,)  # 10 tokens saved 21 times are few


def test_nothing_seen_nothing_placed() -> None:
    assert placed({}, 3, 1000) == ()


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
    exact = best_places(depths, [1.0] * len(depths), 8)
    coarse = best_places(binned.depths, binned.weights, 8)
    assert recomputed(truth, exact) <= recomputed(truth, coarse) <= 1.05 * recomputed(truth, exact)


def test_a_histogram_forgets() -> None:
    histogram = DepthHistogram(8)
    histogram.add(5)
    for _ in range(6 * 1024):
        histogram.add(9)
    assert histogram.depths == [9]
    assert histogram.weights[0] < 2048


def taught(snapshots: int) -> Budget:
    """A policy that has met overlaps of 688 and of 1,504 tokens."""
    policy = Budget(snapshots)
    for i in range(32):
        policy.observe(view_of(2000 + i, matched=688 if i % 4 else 1504))
    return policy


def test_the_first_stands_at_the_end_of_the_prompt() -> None:
    for policy in (Budget(1), taught(1)):
        assert places(policy.plan(view_of(4000))) == {3999: "prompt_tail"}
        assert places(policy.plan(view_of(4000, message_ends=(688, 3980)))) == {3980: "turn"}
        assert places(policy.plan(view_of(4000, hit=3980, message_ends=(3980,)))) == {3999: "prompt_tail"}


def test_the_second_stands_where_the_prompt_leaves_what_is_cached() -> None:
    for policy in (Budget(2), taught(2)):
        view = view_of(4000, hit=100, matched=1000, message_ends=(3980,))
        assert places(policy.plan(view)) == {1000: "branch", 3980: "turn"}
    assert places(Budget(2).plan(view_of(64, matched=64))) == {63: "branch"}


def test_before_it_has_learnt_it_spreads_over_what_is_computed() -> None:
    spread = places(Budget(4).plan(view_of(100_000)))
    assert spread == {24576: "budget", 49152: "budget", 73728: "budget", 99_999: "prompt_tail"}
    behind = places(Budget(3).plan(view_of(100_000, hit=80_000)))
    assert behind == {88064: "budget", 94208: "budget", 99_999: "prompt_tail"}
    assert places(Budget(4).plan(view_of(2000))) == {1999: "prompt_tail"}  # too short for a guess


def test_what_it_has_learnt_does_not_blind_it() -> None:
    """All overlaps so far were short; a long prompt gets a snapshot far behind them all the same."""
    policy = taught(3)
    assert [place for place in places(policy.plan(view_of(100_000))) if 2000 < place < 99_999]


def test_it_learns_where_prompts_part() -> None:
    policy = taught(3)
    assert places(policy.plan(view_of(2000))) == {688: "budget", 1504: "budget", 1999: "prompt_tail"}
    assert places(policy.plan(view_of(1000))) == {688: "budget", 999: "prompt_tail"}
    assert places(policy.plan(view_of(600))) == {599: "prompt_tail"}


def test_what_is_hit_needs_no_snapshot() -> None:
    """All that may be spent is spent behind the hit, where the places in front stand already."""
    policy = taught(2)
    assert places(policy.plan(view_of(2000, hit=688))) == {1504: "budget", 1999: "prompt_tail"}
    assert places(policy.plan(view_of(2000, hit=700))) == {1504: "budget", 1999: "prompt_tail"}
    assert places(policy.plan(view_of(2000, hit=1504))) == {1999: "prompt_tail"}


def test_what_is_certain_is_not_learnt_again() -> None:
    """One token behind the branch point saves nothing: the rest goes to the next depth."""
    policy = taught(3)
    view = view_of(2000, matched=687)
    assert places(policy.plan(view)) == {687: "branch", 1504: "budget", 1999: "prompt_tail"}


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
