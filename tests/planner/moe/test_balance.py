"""Placements of experts, and how busy they leave the busiest rank."""

from __future__ import annotations

import math
import tracemalloc

import numpy as np
import pytest

from milepost.planner.moe.balance import LoadDraws
from milepost.planner.moe.loads import ExpertLoads, read_loads
from milepost.planner.moe.placement import PlacedExperts, place_by_load, place_by_number
from milepost.planner.moe.question import MOST_REDUNDANT, PLACEMENTS, Placement


def draws(load: str = "uniform", *, experts: int = 896, top_k: int = 16, redundant: int = 1) -> LoadDraws:
    return LoadDraws(read_loads(load, experts, 92), top_k, redundant, seed=0)


def counted(*loads: float, top_k: int = 1) -> LoadDraws:
    """Of measured loads, whose experts have numbers."""
    return LoadDraws(ExpertLoads(name="measured", layers=np.array([loads]), ordered=True), top_k, 1, seed=0)


def check(placed: PlacedExperts, num_experts: int, room: int) -> None:
    """Every expert is somewhere, no rank holds more than it may, and replicas are numbered."""
    assert set(placed.experts.tolist()) == set(range(num_experts))
    assert np.bincount(placed.rank, minlength=placed.ranks).max() <= room
    assert np.bincount(placed.experts, minlength=num_experts).tolist() == placed.replicas.tolist()
    for expert in range(num_experts):
        assert sorted(placed.ordinal[placed.experts == expert]) == list(range(placed.replicas[expert]))


@pytest.mark.parametrize("ranks", [1, 3, 8, 10])
@pytest.mark.parametrize("redundant", [0, 1, 3])
def test_placements_hold_every_expert(ranks: int, redundant: int) -> None:
    loads = np.random.default_rng(ranks).pareto(1.0, 40) + 0.01
    check(place_by_number(40, ranks), 40, -(-40 // ranks))
    placed = place_by_load(loads, ranks, redundant)
    check(placed, 40, -(-40 // ranks) + redundant)
    if redundant:
        assert len(placed.experts) == ranks * (-(-40 // ranks) + redundant)


def test_the_hottest_expert_is_the_one_that_lies_on_two_ranks() -> None:
    placed = place_by_load(np.array([1.0, 9.0, 2.0, 2.0]), 2, 1)
    assert placed.replicas.tolist() == [1, 3, 1, 1]
    loads = np.array([1.0, 9.0, 2.0, 2.0]) / placed.replicas
    per_rank = np.bincount(placed.rank, weights=loads[placed.experts])
    assert per_rank.max() <= 8  # of 14 in all; by numbers a rank has 10


def test_one_rank_is_always_even() -> None:
    for placement in PLACEMENTS:
        assert draws("zipf(1)").balance(placement, 1, 64).max_over_mean == pytest.approx(1.0)


@pytest.mark.parametrize("ranks", [4, 16, 64])
def test_an_even_load_is_as_uneven_as_chance_makes_it(ranks: int) -> None:
    """Against the normal approximation of the maximum of equal sums, sigma / mean = sqrt(ranks / pairs)."""
    tokens = 64 * ranks
    pairs = tokens * 16
    found = draws().balance("numbered", ranks, tokens).max_over_mean
    sigma = math.sqrt((1 - 1 / ranks) * ranks / pairs)
    highest = np.random.default_rng(1).standard_normal((20_000, ranks)).max(axis=1).mean()
    # Sums of ranks are anti-correlated, which raises the maximum by sqrt(r / (r - 1)).
    expected = 1 + sigma * highest * math.sqrt(ranks / (ranks - 1))
    assert found - 1 == pytest.approx(expected - 1, rel=0.12)


def test_many_tokens_of_an_even_load_are_even() -> None:
    assert draws().balance("numbered", 8, 10**6).max_over_mean == pytest.approx(1.0, abs=0.002)


def test_measured_counts_come_out_for_many_tokens() -> None:
    loads = counted(8, 4, 2, 2)
    # By numbers the first of two ranks has 12 of 16; the best division is 8 and 8.
    assert loads.balance("numbered", 2, 10**6).max_over_mean == pytest.approx(1.5, abs=0.005)
    assert loads.balance("balanced", 2, 10**6).max_over_mean == pytest.approx(10 / 8, abs=0.005)
    # With three slots a rank: 8 lies three times or twice, and the ranks come out even.
    assert loads.balance("replicated", 2, 10**6).max_over_mean < 1.1


@pytest.mark.parametrize("load", ["zipf(0.5)", "zipf(1)"])
@pytest.mark.parametrize("ranks", [8, 64])
def test_each_placement_is_better_than_the_one_before(load: str, ranks: int) -> None:
    drawn = draws(load)
    found = [drawn.balance(placement, ranks, 8192 * ranks).max_over_mean for placement in PLACEMENTS]
    assert found[0] > found[1] > found[2] >= 1.0


@pytest.mark.parametrize("tokens", [1, 8, 64, 512])
@pytest.mark.parametrize("ranks", [1, 8])
def test_touched_experts_are_the_closed_form(tokens: int, ranks: int) -> None:
    closed = 896 * (1 - (1 - 16 / 896) ** tokens)
    found = draws().balance("numbered", ranks, tokens)
    assert found.touched_experts * ranks == pytest.approx(closed)
    assert found.touched_experts <= found.busiest_touched_experts <= 896 / ranks
    even = draws().even(ranks, tokens)
    assert even.max_over_mean == 1.0
    assert even.touched_experts == pytest.approx(closed / ranks)


def test_one_token_touches_its_sixteen() -> None:
    assert draws().balance("numbered", 1, 1).touched_experts == pytest.approx(16)


def test_a_replica_that_no_token_takes_is_not_touched() -> None:
    # One token takes one expert, which lies three times among the slots.
    found = counted(1000, 1, 1, 1).balance("replicated", 2, 1)
    assert found.touched_experts * 2 == pytest.approx(1.0)
    # Many tokens take every slot.
    assert counted(1000, 1, 1, 1).balance("replicated", 2, 10**6).touched_experts * 2 == pytest.approx(6.0)


def test_touched_experts_of_an_uneven_load_are_fewer() -> None:
    even = draws().balance("numbered", 8, 64).touched_experts
    assert draws("zipf(1)").balance("numbered", 8, 64).touched_experts < even


@pytest.mark.parametrize("tokens", [2, 8, 32])
def test_the_busiest_rank_is_that_of_tokens_whose_experts_are_distinct(tokens: int) -> None:
    """Against steps simulated token by token: 8 of 128 experts, on 8 ranks."""
    generator = np.random.default_rng(5)
    keys = generator.random((1000, tokens, 128))
    chosen = np.argpartition(keys, 8, axis=2)[:, :, :8].reshape(1000, -1)
    counts = np.stack([np.bincount(step, minlength=128) for step in chosen]).reshape(1000, 8, 16)
    found = draws(experts=128, top_k=8).balance("numbered", 8, tokens)
    assert found.max_over_mean == pytest.approx(counts.sum(axis=2).max(axis=1).mean() / tokens, rel=0.05)
    touched = (counts > 0).sum(axis=2)
    assert found.touched_experts == pytest.approx(touched.mean(), rel=0.01)
    assert found.busiest_touched_experts == pytest.approx(touched.max(axis=1).mean(), rel=0.05)
    assert touched.max(axis=1).mean() > 1.1 * touched.mean()


def test_which_experts_are_hot_is_not_known_of_a_law() -> None:
    """If they lay by their numbers the first of 8 ranks would have some 0.35 of all choices."""
    assert draws("zipf(0.5)").balance("numbered", 8, 10**6).max_over_mean < 1.5
    measured = LoadDraws(
        ExpertLoads(name="measured", layers=read_loads("zipf(0.5)", 896, 92).layers, ordered=True),
        16,
        1,
        seed=0,
    )
    assert measured.balance("numbered", 8, 10**6).max_over_mean == pytest.approx(8 * 0.341, rel=0.02)


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_draws_are_the_same_every_time(placement: Placement) -> None:
    assert draws("zipf(0.5)").balance(placement, 8, 64) == draws("zipf(0.5)").balance(placement, 8, 64)


def test_layers_are_averaged_and_at_most_sixteen_are_taken() -> None:
    rows = np.ones((92, 8))
    rows[:, 0] = 1000.0
    rows[1:-1, 0] = 1.0  # only the first and the last layer are uneven, and both are among those taken
    loads = LoadDraws(ExpertLoads(name="measured", layers=rows, ordered=True), 1, 1, seed=0)
    found = loads.balance("numbered", 2, 10**5).max_over_mean
    assert found == pytest.approx((2 * 2 * 1003 / 1007 + 14) / 16, abs=0.01)


def test_fewer_tokens_than_one_are_drawn_as_one() -> None:
    found = draws().balance("numbered", 8, 0.5)
    assert 0 < found.touched_experts < 2
    assert found.busiest_touched_experts <= 112


def test_many_replicas_on_many_ranks_take_little_memory() -> None:
    """A table of slots by ranks would take half a GB here."""
    tracemalloc.start()
    draws("zipf(0.5)", redundant=MOST_REDUNDANT).balance("replicated", 896, 512)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 300e6
