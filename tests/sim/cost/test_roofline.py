"""The roofline: hand-computed parts, limits that must hold, and the published figures."""

from __future__ import annotations

from copy import deepcopy

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from milepost.model_spec import ModelSpec
from milepost.sim.cost.hardware import Efficiency, Hardware, PeakFlops, find_hardware
from milepost.sim.cost.part_weights import NORMS, weights_of
from milepost.sim.cost.part_work import RankSizes
from milepost.sim.cost.roofline import PartCost, RooflineCost
from milepost.sim.cost.step_work import StepWork
from milepost.sim.models import find_model

FIELDS = ("tokens", "rows", "sampled", "context", "pairs", "snapshots", "copied_pages")
WORKS = st.builds(
    StepWork,
    tokens=st.integers(1, 20_000),
    rows=st.integers(1, 256),
    sampled=st.integers(0, 256),
    context=st.integers(0, 10_000_000),
    pairs=st.integers(0, 10_000_000_000),
    snapshots=st.integers(0, 500),
    copied_pages=st.integers(0, 5_000),
)


def decoding(rows: int, context: int) -> StepWork:
    return StepWork(tokens=rows, rows=rows, sampled=rows, context=rows * context, pairs=rows * context)


def prefill(tokens: int, behind: int = 0) -> StepWork:
    pairs = tokens * behind + tokens * (tokens + 1) // 2
    return StepWork(tokens=tokens, rows=1, sampled=1, context=behind + tokens, pairs=pairs)


@pytest.fixture(scope="module")
def k3() -> ModelSpec:
    return find_model("kimi-k3")[1]


@pytest.fixture(scope="module")
def gb300() -> Hardware:
    return find_hardware("gb300")


COSTS = {
    "k3 alone": RooflineCost(find_hardware("gb300"), find_model("kimi-k3")[1], RankSizes(data_parallel=16)),
    "k3 tp8": RooflineCost(find_hardware("h200"), find_model("kimi-k3")[1], RankSizes(tensor_parallel=8)),
    "k3 both": RooflineCost(
        find_hardware("b200"), find_model("kimi-k3")[1], RankSizes(tensor_parallel=8, data_parallel=2)
    ),
    "linear": RooflineCost(find_hardware("h200"), find_model("kimi-linear")[1]),
    "toy": RooflineCost(find_hardware("cpu"), find_model("milepost-toy-k3")[1]),
}


def part(cost: RooflineCost, work: StepWork, name: str) -> PartCost:
    return {found.name: found for found in cost.breakdown(work)}[name]


# -- by hand ----------------------------------------------------------------------------------------


def test_parts_of_kimi_k3_by_hand(k3: ModelSpec, gb300: Hardware) -> None:
    cost = RooflineCost(gb300, k3)
    work = decoding(1, 1000)
    # One token touches 16 of 896 experts in each of 92 layers.
    experts = part(cost, work, "routed experts")
    assert experts.flops == pytest.approx(2 * 92 * 16 * 3 * 3584 * 3072)
    activations = 92 * 16 * (3584 + 2 * 3072) * 4
    assert experts.bytes == pytest.approx(92 * 16 * 17_547_264 + activations, rel=1e-9)
    # Each of 69 KDA layers: a 128 x 128 fp32 matrix and 3 x 128 windows of 3 bf16 a head, read and written.
    recurrence = part(cost, work, "KDA recurrence")
    assert recurrence.bytes == pytest.approx(2 * 449_372_160 + 69 * 96 * 5 * 128 * 2)
    assert recurrence.flops == pytest.approx(69 * 96 * (6 * 128**2 + 10 * 64 * 128))
    # 24 MLA layers, 1,000 cached rows of 576 bf16 read and one written; queries are 1,088 wide.
    attention = part(cost, work, "MLA attention")
    assert attention.bytes == pytest.approx(24 * 576 * 2 * 1001 + 24 * 96 * 1088 * 2)
    assert attention.flops == pytest.approx(24 * 2 * (512 * 96 * 256 + 1000 * 96 * (576 + 512)))
    head = part(cost, work, "output head")
    assert head.flops == 2 * 163_840 * 7_168
    assert head.bytes == 163_840 * 7_168 * 2 + 163_840 * 8


def test_flops_of_a_token_are_twice_the_activated_parameters(k3: ModelSpec, gb300: Hardware) -> None:
    """Attention aside: all products with weights, one token and its logits."""
    found = RooflineCost(gb300, k3).breakdown(decoding(1, 1))
    others = {"KDA recurrence", "norms and residual reads"}
    flops = sum(one.flops for one in found if one.name not in others)
    norms = weights_of(k3)[NORMS].parameters
    scores = 24 * 2 * 96 * (192 + 128)  # one pair; keys and values of one token either way
    assert flops == 2 * (104_189_612_640 - norms) + scores


def test_touched_experts(k3: ModelSpec, gb300: Hardware) -> None:
    """N (1 - (1 - k/N)^tokens), of all data-parallel groups together."""
    for groups in (1, 4):
        cost = RooflineCost(gb300, k3, RankSizes(data_parallel=groups))
        tokens = 64
        touched = 896 * (1 - (1 - 16 / 896) ** (tokens * groups))
        found = part(cost, decoding(tokens, 10), "routed experts")
        weights = 92 * touched * 17_547_264 / groups
        activations = 92 * tokens * 16 * (3584 + 2 * 3072) * 4
        assert found.bytes == pytest.approx(weights + activations)


def test_long_chunks_expand_keys_and_values(k3: ModelSpec, gb300: Hardware) -> None:
    cost = RooflineCost(gb300, k3)
    long = part(cost, prefill(8192), "MLA attention")
    assert long.flops == pytest.approx(24 * 2 * (8192 * 512 * 96 * 256 + 8192 * 8193 // 2 * 96 * (192 + 128)))
    assert part(cost, decoding(1, 8192), "MLA attention").flops == pytest.approx(
        24 * 2 * (512 * 96 * 256 + 8192 * 96 * (576 + 512))
    )


def test_residual_reads_of_attention_residuals(k3: ModelSpec, gb300: Hardware) -> None:
    """187 sites; banks of layers 0, 12, ... 84; each site moves four more rows of 7,168 bf16."""
    banks = sum(
        (layer + 11) // 12 + layer // 12 + 1  # before attention, and before the feed-forward network
        for layer in range(93)
    )
    found = part(RooflineCost(gb300, k3), decoding(1, 0), "norms and residual reads")
    weights = (187 * 3 * 7168 + 92 * 3584) * 2
    assert found.bytes == pytest.approx((banks + 8 + 4 * 187 + 2) * 7168 * 2 + weights)


def test_collectives_by_hand(k3: ModelSpec, gb300: Hardware) -> None:
    assert part(RooflineCost(gb300, k3), decoding(1, 0), "collectives").seconds == 0
    eight = part(RooflineCost(gb300, k3, RankSizes(tensor_parallel=8)), decoding(1, 0), "collectives")
    assert eight.bytes == pytest.approx(2 * 7 / 8 * 2 * (2 * 93 * 7168 + 92 * 3584))
    assert eight.bound == "latency"
    assert eight.seconds > (2 * 93 + 92) * gb300.interconnect_latency_seconds
    # 16 experts a token, one byte there and two back: the published 172 kB a token-layer.
    groups = part(RooflineCost(gb300, k3, RankSizes(data_parallel=16)), decoding(1, 0), "collectives")
    assert groups.bytes == pytest.approx(92 * 172_032 * 15 / 16)


def test_beyond_the_domain_links_are_slower(k3: ModelSpec) -> None:
    hardware = find_hardware("h200")
    inside = RooflineCost(hardware, k3, RankSizes(data_parallel=8))
    beyond = RooflineCost(hardware, k3, RankSizes(data_parallel=9))
    work = prefill(4096)
    assert part(beyond, work, "collectives").seconds > 5 * part(inside, work, "collectives").seconds


def test_snapshots_and_copies_move_their_bytes_twice(k3: ModelSpec, gb300: Hardware) -> None:
    cost = RooflineCost(gb300, k3, RankSizes(tensor_parallel=8, page_bytes=1_000_000))
    work = msgspec.structs.replace(decoding(1, 0), snapshots=3, copied_pages=5)
    assert part(cost, work, "snapshot writes").bytes == pytest.approx(2 * 3 * 449_372_160 / 8)
    assert part(cost, work, "page copies").bytes == 10_000_000
    plain = cost.seconds(decoding(1, 0))
    rate = gb300.memory_bytes_per_second * gb300.efficiency.memory
    assert cost.seconds(work) - plain == pytest.approx((2 * 3 * 449_372_160 / 8 + 1e7) / rate)


# -- limits that always hold ------------------------------------------------------------------------


@pytest.mark.parametrize("name", COSTS)
@given(work=WORKS)
def test_seconds_are_the_sum_of_the_breakdown(name: str, work: StepWork) -> None:
    cost = COSTS[name]
    parts = cost.breakdown(work)
    assert cost.seconds(work) == pytest.approx(sum(one.seconds for one in parts), rel=1e-9)
    assert len({one.name for one in parts}) == len(parts)
    assert all(one.seconds >= 0 for one in parts)
    assert {one.bound for one in parts} <= {"compute", "memory", "network", "latency"}


@pytest.mark.parametrize("name", COSTS)
@given(work=WORKS, field=st.sampled_from(FIELDS), more=st.integers(1, 1_000_000))
def test_more_work_never_takes_less_time(name: str, work: StepWork, field: str, more: int) -> None:
    larger = msgspec.structs.replace(work, **{field: getattr(work, field) + more})
    cost = COSTS[name]
    assert cost.seconds(larger) >= cost.seconds(work) * (1 - 1e-12)
    assert cost.seconds(work) > 0


def test_a_copy_takes_as_long(k3: ModelSpec, gb300: Hardware) -> None:
    cost = RooflineCost(gb300, k3, RankSizes(tensor_parallel=8))
    other = deepcopy(cost)
    assert other.seconds(decoding(3, 100)) == cost.seconds(decoding(3, 100))


def test_perfect_hardware_is_a_bound(k3: ModelSpec, gb300: Hardware) -> None:
    perfect = Efficiency(compute=1, experts=1, attention=1, recurrence=1, memory=1, cache=1, network=1)
    ideal = RooflineCost(msgspec.structs.replace(gb300, efficiency=perfect), k3, RankSizes(data_parallel=16))
    real = RooflineCost(gb300, k3, RankSizes(data_parallel=16))
    for work in (decoding(8, 8192), prefill(8192)):
        assert ideal.seconds(work) < real.seconds(work)


# -- dtypes of experts ------------------------------------------------------------------------------


def test_without_fp4_units_packed_experts_run_in_bf16(k3: ModelSpec, gb300: Hardware) -> None:
    plain = msgspec.structs.replace(gb300, peak_flops=PeakFlops(bf16=1e15))
    experts = part(RooflineCost(plain, k3), prefill(8192), "routed experts")
    assert experts.seconds == pytest.approx(experts.flops / (1e15 * plain.efficiency.experts))
