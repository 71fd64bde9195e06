"""Work of layers that the engine does not run: gated DeltaNet, Mamba2, grouped queries, no experts."""

from __future__ import annotations

import msgspec
import pytest

from milepost.sim.cost.hardware import find_hardware
from milepost.sim.cost.part_weights import rank_weight_bytes, weights_of
from milepost.sim.cost.part_work import Collective, RankSizes, StepParts
from milepost.sim.cost.roofline import RooflineCost
from milepost.sim.cost.step_work import StepWork
from tests.model_shapes import MAMBA, model

MODELS = {
    "gated DeltaNet": model(),
    "Mamba2": model(MAMBA),
    "attention alone": model(None),
    "recurrence alone": model(attention=None),
    "dense": model(experts=None),
}
DECODE = StepWork(tokens=3, rows=3, sampled=3, context=3_000, pairs=3_000)


def test_a_delta_rule_of_unequal_widths() -> None:
    work = StepParts(model(), RankSizes()).recurrence(10, 2)
    assert work.flops == 6 * 10 * 32 * (6 * 64 * 128 + 64 * (6 * 64 + 4 * 128))
    state = 6 * (32 * 128 * 64 * 4 + 3 * (32 * 128 + 2 * 16 * 64) * 2)
    inputs = 6 * 10 * (2 * 16 * 64 + 32 * 128 + 32 + 32 * 128) * 2
    assert work.bytes == 2 * 2 * state + inputs
    assert work.name == "gated DeltaNet recurrence"


def test_mamba2_shares_scores_in_its_groups() -> None:
    work = StepParts(model(MAMBA), RankSizes()).recurrence(10, 1)
    assert work.flops == 6 * 10 * (64 * (4 * 128 * 64 + 2 * 64 * 64) + 8 * 2 * 64 * 128)


@pytest.mark.parametrize(("ranks", "kv_heads"), [(1, 2), (2, 1), (16, 1)])
def test_grouped_attention_reads_the_key_heads_of_its_rank(ranks: int, kv_heads: int) -> None:
    (work,) = StepParts(model(), RankSizes(tensor_parallel=ranks)).attention(DECODE)
    assert work.flops == pytest.approx(2 * 3_000 * 2 * 16 / ranks * 512)
    rows = 2 * (2 * kv_heads * 256) * 2 * 3_003
    assert work.bytes == pytest.approx(rows + 2 * 3 * 2 * 16 / ranks * 512)


def test_ranks_that_divide_a_context_read_their_part_of_it() -> None:
    whole = StepParts(model(), RankSizes(tensor_parallel=8)).attention(DECODE)[0]
    parted = StepParts(model(), RankSizes(tensor_parallel=8, context_parallel=4)).attention(DECODE)[0]
    assert parted.flops == whole.flops
    queries = 2 * 3 * 2 * 16 / 8 * 512
    # Two ranks for each key head in both: with the context in four, a rank has one whole head of a quarter.
    assert parted.bytes - queries == pytest.approx((whole.bytes - queries) / 4)


def test_windows_of_a_rank_hold_one_key_head_at_least() -> None:
    assert MAMBA.conv_channels() == 64 * 64 + 2 * 8 * 128
    assert MAMBA.conv_channels(8) == 8 * 64 + 2 * 128
    assert MAMBA.conv_channels(16) == 4 * 64 + 2 * 128


def test_copies_of_the_experts_are_shared_by_fewer_tokens() -> None:
    sizes = RankSizes(tensor_parallel=2, data_parallel=8)
    halves = msgspec.structs.replace(sizes, expert_parallel=8)
    all_sixteen, eight = StepParts(model(), sizes), StepParts(model(), halves)
    assert (sizes.expert_groups, halves.expert_groups) == (8, 4)
    once = rank_weight_bytes(model(), 2, 16)
    twice = rank_weight_bytes(model(), 2, 16, expert_parallel=8)
    assert twice - once == weights_of(model())["routed experts"].parameters * 2.0 / 16
    # As many products for each rank, whoever shares with whom; fewer tokens share each expert that is read.
    experts = [
        next(p for p in parts.by_tokens(4) if p.name == "routed experts") for parts in (all_sixteen, eight)
    ]
    assert experts[0].flops == experts[1].flops
    assert experts[0].bytes < experts[1].bytes
    # Eight layers, dispatch and combine, three waits in each.
    crossing = [parts.collectives(4)[-1] for parts in (all_sixteen, eight)]
    assert crossing == [
        Collective(16, 48, 8 * 15 / 16 * 4 * 4 / 2 * 512 * 3),
        Collective(8, 48, 8 * 7 / 8 * 4 * 4 / 2 * 512 * 3),
    ]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(
    "sizes", [RankSizes(), RankSizes(tensor_parallel=4, data_parallel=2, context_parallel=2)]
)
def test_the_quick_way_is_the_sum_of_the_parts(name: str, sizes: RankSizes) -> None:
    cost = RooflineCost(find_hardware("h100"), MODELS[name], sizes)
    for work in (DECODE, StepWork(tokens=500, rows=1, sampled=1, context=900, pairs=325_000, snapshots=2)):
        parts = cost.breakdown(work)
        assert cost.seconds(work) == pytest.approx(sum(part.seconds for part in parts))
        assert all(part.name for part in parts)
        assert len({part.name for part in parts}) == len(parts)


def test_parts_are_those_of_the_model() -> None:
    names = {
        name: {part.name for part in RooflineCost(find_hardware("h100"), shape).breakdown(DECODE)}
        for name, shape in MODELS.items()
    }
    assert not any("recurrence" in part for part in names["attention alone"])
    assert not any("attention" in part for part in names["recurrence alone"])
    assert "routed experts" not in names["dense"]
    assert "dense feed-forward" in names["dense"]
    assert {"Mamba2 recurrence", "GQA projections", "GQA attention"} <= names["Mamba2"]
