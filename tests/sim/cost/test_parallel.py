"""Divisions of a model among ranks: which are refused, and what dividing further does to time and memory."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from milepost.errors import ConfigError
from milepost.shapes.names import find_shape
from milepost.sim.cost.hardware import find_hardware
from milepost.sim.cost.parallel import check_parallel
from milepost.sim.cost.part_weights import rank_weight_bytes
from milepost.sim.cost.part_work import RankSizes, StepParts
from milepost.sim.cost.roofline import RooflineCost
from milepost.sim.cost.step_work import StepWork
from tests.model_shapes import model

K3 = find_shape("kimi-k3")[1]
GB300 = find_hardware("gb300")
DIVISORS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 96)


def decoding(rows: int, context: int) -> StepWork:
    return StepWork(tokens=rows, rows=rows, sampled=rows, context=rows * context, pairs=rows * context)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"tensor_parallel": 7},
            r"tensor_parallel must divide the 96 KDA heads and .* MLA.*nearest.*: [68]\.",
        ),
        ({"tensor_parallel": 0}, "tensor_parallel must be at least 1. Given: 0"),
        ({"data_parallel": 0}, "data_parallel must be at least 1. Given: 0"),
        ({"expert_parallel": -1}, "expert_parallel must be at least 0. Given: -1"),
        ({"context_parallel": 0}, "context_parallel must be at least 1"),
        ({"data_parallel": 10**29}, "data_parallel must be at most 1,048,576"),
        ({"tensor_parallel": 8, "context_parallel": 3}, r"context_parallel must divide the 8 .*: [24]\."),
        (
            {"tensor_parallel": 8, "expert_parallel": 12},
            r"whole groups of 8 ranks, and .*Given: 12.*: (8|16)\.",
        ),
        (
            {"tensor_parallel": 8, "data_parallel": 4, "expert_parallel": 24},
            r"divide the 32 ranks.*nearest.*: (16|32)\.",
        ),
        ({"data_parallel": 2000, "expert_parallel": 2000}, r"leave each rank an expert.*nearest.*: 500\."),
        ({"data_parallel": 2000}, r"leave each rank an expert. Given: all 2000.*nearest.*: 500\."),
        ({"tensor_parallel": 8, "expert_parallel": 10**9}, r"nearest that does: 896\."),
    ],
)
def test_what_cannot_be(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        check_parallel(K3, **({"tensor_parallel": 1} | options))


def test_no_experts_to_divide() -> None:
    check_parallel(model(experts=None), 2)
    with pytest.raises(ConfigError, match="must be 0 for a model without experts"):
        check_parallel(model(experts=None), 2, expert_parallel=2)


def test_the_roofline_refuses_the_same() -> None:
    for sizes in (
        RankSizes(tensor_parallel=8, expert_parallel=12),
        RankSizes(tensor_parallel=8, data_parallel=2, context_parallel=3),
        RankSizes(data_parallel=0),
    ):
        with pytest.raises(ConfigError):
            RooflineCost(GB300, K3, sizes)


@given(
    tensor_parallel=st.sampled_from(DIVISORS),
    groups=st.integers(1, 64),
    expert_parallel=st.integers(0, 256),
)
def test_what_is_allowed_has_whole_copies(tensor_parallel: int, groups: int, expert_parallel: int) -> None:
    """A division is refused, or every rank has a place in one copy of the experts."""
    sizes = RankSizes(tensor_parallel=tensor_parallel, data_parallel=groups, expert_parallel=expert_parallel)
    sharing = expert_parallel or sizes.ranks
    possible = sharing % tensor_parallel == 0 and sizes.ranks % sharing == 0 and sharing <= 896
    try:
        check_parallel(K3, tensor_parallel, groups, expert_parallel=expert_parallel)
    except ConfigError:
        assert not possible
        return
    assert possible
    assert sizes.expert_groups * tensor_parallel == sizes.expert_ranks
    assert sizes.ranks % sizes.expert_ranks == 0


# -- limits -----------------------------------------------------------------------------------------


@given(rows=st.integers(1, 512), context=st.integers(1, 1_000_000))
def test_experts_among_all_ranks_is_the_default(rows: int, context: int) -> None:
    one = RooflineCost(GB300, K3, RankSizes(tensor_parallel=2, data_parallel=8))
    same = RooflineCost(GB300, K3, RankSizes(tensor_parallel=2, data_parallel=8, expert_parallel=16))
    assert one.breakdown(decoding(rows, context)) == same.breakdown(decoding(rows, context))
    assert one.weight_bytes == same.weight_bytes


@given(rows=st.integers(1, 256))
def test_copies_of_experts_that_share_nothing_are_replicas(rows: int) -> None:
    """One copy on each group is that group alone, times as many groups."""
    alone = StepParts(K3, RankSizes(tensor_parallel=8))
    beside = StepParts(K3, RankSizes(tensor_parallel=8, data_parallel=4, expert_parallel=8))
    assert alone.by_tokens(rows) == beside.by_tokens(rows)
    assert alone.collectives(rows) == beside.collectives(rows)


@given(rows=st.integers(1, 512), steps=st.sampled_from([(2, 4), (4, 8), (8, 16), (2, 16)]))
def test_more_expert_ranks_hold_and_read_less(rows: int, steps: tuple[int, int]) -> None:
    few, many = (
        StepParts(K3, RankSizes(tensor_parallel=2, data_parallel=8, expert_parallel=n)) for n in steps
    )
    read = [{part.name: part for part in parts.by_tokens(rows)}["routed experts"] for parts in (few, many)]
    assert read[1].bytes <= read[0].bytes * (1 + 1e-12)
    # Every rank computes as much: the tokens of all groups, divided by the ranks.
    assert read[1].flops == pytest.approx(read[0].flops)
    held = [rank_weight_bytes(K3, 2, 16, expert_parallel=n) for n in steps]
    assert held[1] < held[0]


@given(rows=st.integers(1, 64), context=st.integers(0, 1_000_000), degree=st.sampled_from([2, 4, 8]))
def test_ranks_that_share_a_context_read_less_of_it_and_exchange_more(
    rows: int, context: int, degree: int
) -> None:
    work = decoding(rows, context)
    whole = StepParts(K3, RankSizes(tensor_parallel=8))
    parted = StepParts(K3, RankSizes(tensor_parallel=8, context_parallel=degree))
    for one, other in zip(whole.attention(work), parted.attention(work), strict=True):
        assert other.flops == pytest.approx(one.flops)
        assert other.bytes <= one.bytes
    row = whole.kv_bytes_per_token * (context + 1) * rows
    saved = whole.attention(work)[0].bytes - parted.attention(work)[0].bytes
    assert saved == pytest.approx(row * (1 - 1 / degree), rel=1e-9)
    sent = [sum(kind.bytes for kind in parts.collectives(rows)) for parts in (whole, parted)]
    assert sent[1] > sent[0]


def test_a_context_in_parts_pays_where_it_is_long() -> None:
    whole = RooflineCost(GB300, K3, RankSizes(tensor_parallel=8))
    parted = RooflineCost(GB300, K3, RankSizes(tensor_parallel=8, context_parallel=8))
    assert parted.seconds(decoding(1, 1_000)) > whole.seconds(decoding(1, 1_000))
    assert parted.seconds(decoding(16, 1_000_000)) < whole.seconds(decoding(16, 1_000_000))


@given(degree=st.sampled_from([1, 2, 4, 8]), rows=st.integers(1, 64), context=st.integers(1, 100_000))
def test_attention_of_every_degree_is_bounded_by_its_neighbours(degree: int, rows: int, context: int) -> None:
    """Time of a step never falls with more context, at any degree."""
    cost = RooflineCost(GB300, K3, RankSizes(tensor_parallel=8, context_parallel=degree))
    work = decoding(rows, context)
    longer = msgspec.structs.replace(work, context=work.context * 2, pairs=work.pairs * 2)
    assert cost.seconds(longer) >= cost.seconds(work)
