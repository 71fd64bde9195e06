"""Whole plans: degrees, memory, times against the roofline, choices, and what is refused."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from milepost.errors import ConfigError
from milepost.planner.deployment import Deployment
from milepost.planner.device_memory import free_memory
from milepost.planner.moe.facts import can_multicast, experts_of
from milepost.planner.moe.plan import MoePlan, plan_moe
from milepost.planner.moe.question import MoeQuestion
from milepost.planner.worksheet import explain
from milepost.shapes.names import SHAPES, find_shape
from milepost.sim.cost.hardware import find_hardware
from milepost.sim.cost.part_weights import rank_weight_bytes
from milepost.sim.cost.part_work import RankSizes
from milepost.sim.cost.roofline import RooflineCost
from milepost.sim.cost.step_work import StepWork

K3 = find_shape("kimi-k3")[1]


def plan(deployment: dict[str, Any] | None = None, **question: Any) -> MoePlan:
    return plan_moe(MoeQuestion(deployment=Deployment(**deployment or {}), **question))


@pytest.fixture(scope="module")
def wide() -> MoePlan:
    """Kimi K3 on 32 GB300."""
    return plan({"data_parallel": 32})


# -- the published figures ------------------------------------------------------------------------------


def test_the_bytes_of_a_token_and_of_an_expert(wide: MoePlan) -> None:
    assert wide.token_layer_bytes == 172_032
    assert wide.token_layer_bytes_at_hidden == 344_064
    assert wide.expert_bytes == 17_547_264
    assert wide.balance_flops_per_byte == 6144


def test_the_wave_counts_of_a_device_with_148_sms() -> None:
    found = plan({"data_parallel": 32}, sms=148)
    shapes = {(point.ranks, point.rank_tokens): point.shape for point in found.waves}
    for tokens in (32, 128, 512):
        assert (shapes[8, tokens].experts_per_wave, shapes[8, tokens].waves) == (7, 16)
    assert shapes[8, 8192].experts_per_wave == 1
    assert shapes[32, 32].experts_per_wave == shapes[32, 128].experts_per_wave == 7
    assert shapes[32, 512].experts_per_wave == 4


def test_waves_follow_the_hardware_unless_it_is_said_otherwise() -> None:
    h200 = plan({"hardware": "h200", "data_parallel": 32, "tensor_parallel": 8})
    assert {entry.name: entry.value for entry in h200.derivations}["device.sms"] == 132
    assert not any("SMs" in note for note in h200.notes)


# -- degrees --------------------------------------------------------------------------------------------


def test_degrees_divide_the_ranks_and_memory_says_which_fit(wide: MoePlan) -> None:
    assert [degree.ranks for degree in wide.degrees] == [1, 2, 4, 8, 16, 32]
    assert [degree.ranks for degree in wide.degrees if degree.fits] == [16, 32]
    for degree in wide.degrees:
        assert degree.copies * degree.ranks == 32
        assert degree.experts_per_rank * degree.ranks == 896
        held = rank_weight_bytes(K3, 1, 32, expert_parallel=degree.ranks)
        assert degree.weight_bytes == pytest.approx(held, abs=1)
        sizes = RankSizes(data_parallel=32, expert_parallel=degree.ranks)
        room = free_memory(K3, find_hardware("gb300"), sizes, memory_share=0.9, tokens_per_step=8192)
        assert degree.free_bytes == pytest.approx(room.free_bytes, abs=2)


def test_degrees_are_whole_groups() -> None:
    found = plan({"data_parallel": 8, "tensor_parallel": 8})
    assert [degree.ranks for degree in found.degrees] == [8, 16, 32, 64]


def test_a_degree_that_does_not_divide_the_experts_holds_one_more() -> None:
    found = plan({"model": "kimi-linear", "hardware": "h200", "data_parallel": 12})
    three = found.degree(3)
    assert not three.even
    assert three.experts_per_rank == 86  # of 256
    assert all(found.degree(found.best(phase)).even for phase in ("decode", "prefill"))


def test_replicas_take_memory() -> None:
    plain = plan({"data_parallel": 32}).degree(32)
    more = plan({"data_parallel": 32}, placement="replicated", redundant_per_rank=2).degree(32)
    assert more.experts_per_rank == plain.experts_per_rank + 2
    assert more.weight_bytes - plain.weight_bytes == 92 * 2 * 17_547_264


def test_the_fewest_ranks_are_taken_where_none_are_given() -> None:
    assert plan().ranks == 16
    assert plan({"tensor_parallel": 8}).ranks == 8
    assert plan({"model": "kimi-linear"}).hardware == "h200"
    # 160 GB of weights are below 85 % of a device; activations of 2^20 tokens do not fit beside them.
    assert plan({"model": "qwen3-next-80b-a3b"}).ranks == 1
    assert plan({"model": "qwen3-next-80b-a3b"}, prefill_tokens=1 << 20).ranks > 1


# -- times ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("phase", ["decode", "prefill"])
@pytest.mark.parametrize(
    ("model", "hardware", "degrees"),
    [
        ("kimi-k3", "gb300", (16, 32)),
        ("kimi-k3", "mi355x", (32,)),
        ("kimi-k3", "mi300x", (32,)),
        ("kimi-linear", "h200", (2, 8)),
    ],
)
def test_even_ranks_take_what_the_roofline_says(
    model: str, hardware: str, degrees: tuple[int, ...], phase: str
) -> None:
    """Experts of one layer against the simulator's part, whose ranks are all as busy."""
    tokens = {"decode": 64, "prefill": 8192}[phase]
    shape, ranks = find_shape(model)[1], degrees[-1]
    found = plan({"model": model, "hardware": hardware, "data_parallel": ranks})
    known = {entry.name: float(entry.value) for entry in found.derivations}
    device, layers = find_hardware(hardware), shape.moe_layers
    for degree in degrees:
        cost = RooflineCost(device, shape, RankSizes(data_parallel=ranks, expert_parallel=degree))
        work = StepWork(tokens=tokens, rows=1, sampled=0, context=tokens, pairs=tokens)
        parts = {part.name: part for part in cost.breakdown(work)}
        p = f"balance.ep{degree}.{phase}.even"
        experts, collectives = parts["routed experts"], parts["collectives"]
        assert known[f"{p}.experts.flops"] * layers == pytest.approx(experts.flops)
        assert known[f"{p}.experts.bytes"] * layers == pytest.approx(experts.bytes)
        assert known[f"{p}.experts.seconds"] * layers == pytest.approx(experts.seconds)
        far = known[f"{p}.dispatch.cross_bytes"] + known[f"{p}.combine.cross_bytes"]
        sent = known[f"{p}.dispatch.domain_bytes"] + known[f"{p}.combine.domain_bytes"] + far
        assert sent * layers == pytest.approx(collectives.bytes)
        if not far:  # the roofline knows the slower link only
            assert known[f"{p}.exchange.seconds"] * layers == pytest.approx(collectives.seconds)


def test_a_larger_degree_touches_fewer_weights_and_sends_more(wide: MoePlan) -> None:
    layers = [degree.at("decode") for degree in wide.degrees]
    assert [one.touched_bytes for one in layers] == sorted(
        (one.touched_bytes for one in layers), reverse=True
    )
    assert [one.domain_bytes for one in layers] == sorted(one.domain_bytes for one in layers)
    for one in layers:
        assert one.touched_bytes == pytest.approx(one.busiest_touched_experts * 17_547_264)
        assert one.all_touched_bytes == pytest.approx(32 * one.touched_experts * 17_547_264)
        assert one.stay_bytes + one.domain_bytes + one.cross_bytes == pytest.approx(
            one.dispatch_bytes + one.combine_bytes
        )


def test_decoding_wants_a_large_degree_and_prefill_a_small_one(wide: MoePlan) -> None:
    """Decoding reads weights, which a large degree divides; prefill computes, and only sends more."""
    assert wide.best_decode == 32
    assert wide.best_prefill == 16
    for phase, best in (("decode", wide.best_decode), ("prefill", wide.best_prefill)):
        fitting = [degree.at(phase).layer_seconds for degree in wide.degrees if degree.fits]  # type: ignore[arg-type]
        assert wide.degree(best).at(phase).layer_seconds == min(fitting)  # type: ignore[arg-type]


def test_a_domain_is_left_only_where_it_must_be() -> None:
    found = plan({"hardware": "b200", "data_parallel": 4, "tensor_parallel": 8})
    eight, all_of_them = (degree.at("decode") for degree in found.degrees if degree.ranks in (8, 32))
    assert eight.cross_bytes == 0
    assert all_of_them.cross_bytes == pytest.approx(
        24 / 32 * (all_of_them.dispatch_bytes + all_of_them.combine_bytes)
    )
    assert any("leave the domain" in note for note in found.notes)


def test_overlap_chooses_by_waves() -> None:
    plain, waved = plan({"data_parallel": 32}), plan({"data_parallel": 32}, overlap=True)
    one, other = plain.degree(32).at("decode"), waved.degree(32).at("decode")
    assert one.layer_seconds == pytest.approx(one.serial_seconds + one.rest_seconds)
    assert other.layer_seconds == pytest.approx(other.waved_seconds + other.rest_seconds)
    assert other.layer_seconds < one.layer_seconds


def test_sending_once_a_rank_sends_less() -> None:
    pairs, ranks = plan({"data_parallel": 32}), plan({"data_parallel": 32}, send="ranks")
    one, other = pairs.degree(16).at("decode"), ranks.degree(16).at("decode")
    assert other.dispatch_bytes == pytest.approx(one.dispatch_bytes * pairs.degree(16).ranks_reached / 16)


def test_uneven_loads_take_longer_and_replicas_mend_it() -> None:
    found = plan({"data_parallel": 32}, load="zipf(0.5)")
    known = {(one.ranks, one.phase, one.placement): one for one in found.balance}
    even, numbered, balanced, replicated = (
        known[32, "prefill", placement] for placement in ("even", "numbered", "balanced", "replicated")
    )
    assert numbered.serial_seconds > balanced.serial_seconds > replicated.serial_seconds
    assert replicated.serial_seconds == pytest.approx(even.serial_seconds, rel=0.02)
    assert found.degree(32).at("prefill").max_over_mean == numbered.max_over_mean


def test_measured_counts_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "router.json"
    path.write_text(json.dumps([[1000 if expert < 28 else 100 for expert in range(896)]] * 92))
    found = plan({"data_parallel": 32}, load=str(path))
    assert found.load == "router.json"
    # The first of 32 ranks has 28,000 of 28,000 + 86,800.
    assert found.degree(32).at("prefill").max_over_mean == pytest.approx(28_000 * 32 / 114_800, rel=0.01)
    assert any("16 layers" in note for note in found.notes)


# -- tensor parallelism ---------------------------------------------------------------------------------


def test_one_group_shares_every_token_and_ends_with_a_tail() -> None:
    found = plan({"tensor_parallel": 8}, decode_tokens=16)
    assert [degree.ranks for degree in found.degrees] == [8]
    layer = found.degree(8).at("decode")
    assert layer.dispatch_bytes == layer.exchange_seconds == 0
    assert layer.rank_tokens == 2
    sixteen = next(tail for tail in found.tails if (tail.ranks, tail.tokens) == (8, 16))
    known = {entry.name: entry.value for entry in found.derivations}
    rest = float(known["decode.front.seconds"] + known["decode.shared.seconds"])
    assert layer.rest_seconds == pytest.approx(rest + min(one.seconds for one in sixteen.tails))
    assert any("have the same tokens" in note for note in found.notes)


@pytest.mark.parametrize(
    ("hardware", "given", "multicast"),
    [
        ("gb300", None, True),
        ("h200", None, True),
        ("mi355x", None, False),
        ("rtx-pro-6000", None, False),
        ("gb300", False, False),
        ("mi355x", True, True),
    ],
)
def test_a_tail_that_needs_multicast_is_taken_where_there_is_some(
    hardware: str, given: bool | None, multicast: bool
) -> None:
    found = plan(
        {"hardware": hardware, "tensor_parallel": 8, "data_parallel": 4}, decode_tokens=16, multicast=given
    )
    assert found.multicast is multicast
    tail = next(tail for tail in found.tails if (tail.ranks, tail.tokens) == (8, 16))
    known = {entry.name: entry for entry in found.derivations}
    assert tail.winner(multicast=multicast) in known["decode.tail_rest.seconds"].formula
    assert ("scattered" in known["decode.tail_rest.seconds"].formula) is (
        tail.best == "scattered" and multicast
    )


def test_a_device_alone_multicasts_to_nobody() -> None:
    alone = msgspec.structs.replace(find_hardware("gb300"), domain_devices=1)
    assert can_multicast(find_hardware("gb300"), MoeQuestion())
    assert not can_multicast(alone, MoeQuestion())


def test_a_group_with_its_own_copy_dispatches_nothing_and_several_do() -> None:
    found = plan({"tensor_parallel": 8, "data_parallel": 4})
    own, several = found.degree(8).at("decode"), found.degree(16).at("decode")
    assert own.dispatch_bytes == own.exchange_seconds == 0
    assert several.domain_bytes > 0
    known = {entry.name: entry.value for entry in found.derivations}
    assert own.rest_seconds == known["decode.tail_rest.seconds"]
    assert several.rest_seconds == known["decode.rest.seconds"]


@pytest.mark.parametrize("model", ["kimi-k3", "kimi-linear"])
def test_what_follows_the_exchange_by_hand(model: str) -> None:
    """On GB300 at tensor parallel 2: the latents of both halves, W_up by columns, one sum."""
    shape = find_shape(model)[1]
    found = plan({"model": model, "hardware": "gb300", "tensor_parallel": 2, "data_parallel": 8})
    known = {entry.name: entry.value for entry in found.derivations}
    share = find_hardware("gb300").efficiency
    tokens, link, memory = 64, 900e9 * share.network, 8e12 * share.memory
    assert shape.experts is not None
    # One shot of a sum between two ranks is as many bytes as two shots, and one latency less.
    expected = 6e-6 + 2 * tokens * shape.hidden_size / link
    if shape.experts.latent:
        expected += 6e-6 + tokens * shape.experts.width / link + shape.experts.latent_up / memory
    assert known["decode.end.seconds"] == pytest.approx(expected)
    assert known["decode.shared.seconds"] == pytest.approx(shape.experts.shared_parameters / memory)


def test_one_rank_a_group_needs_no_sum() -> None:
    known = {entry.name: entry.value for entry in plan({"data_parallel": 32}).derivations}
    assert known["decode.end.seconds"] == pytest.approx(2 * 7168 * 3584 / (8e12 * 0.8))
    shape = K3.experts
    assert shape is not None
    front = 2 * (shape.router + shape.latent_down) / (8e12 * 0.8)
    assert known["decode.front.seconds"] == pytest.approx(front)
    assert known["decode.shared.seconds"] == pytest.approx(2 * 3 * 7168 * 6144 / (8e12 * 0.8))


def test_without_a_latent_there_are_no_tails() -> None:
    found = plan({"model": "kimi-linear", "hardware": "h200", "tensor_parallel": 2, "data_parallel": 2})
    assert not found.tails
    assert not found.tail_ranges


# -- derivations ----------------------------------------------------------------------------------------


def test_every_number_says_where_it_is_from(wide: MoePlan) -> None:
    for entry in wide.derivations:
        assert entry.formula or entry.source, entry.name
    text = explain(wide.derivations, "ep32.decode.layer.seconds")
    assert "ep32.decode.dispatch.domain_bytes" in text
    assert "config.json of kimi-k3" in text


def test_plans_are_plain_data(wide: MoePlan) -> None:
    assert msgspec.json.decode(msgspec.json.encode(wide), type=MoePlan) == wide


def test_a_plan_is_quick() -> None:
    start = time.process_time()
    plan({"data_parallel": 64}, load="zipf(0.5)")
    assert time.process_time() - start < 1.0


# -- what is refused ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("deployment", "question", "message"),
    [
        ({}, {"decode_tokens": 0}, "decode_tokens must be 1"),
        ({}, {"prefill_tokens": 1 << 40}, "prefill_tokens must be 1"),
        ({}, {"dispatch_dtype": "fp9"}, "dispatch_dtype must be one of .* Did you mean 'fp8'"),
        ({}, {"combine_dtype": ""}, "combine_dtype must be one of"),
        ({}, {"send": "rank"}, "send must be one of pairs, ranks.*Did you mean 'ranks'"),
        ({}, {"placement": "balance"}, "placement must be one of.*Did you mean 'balanced'"),
        ({}, {"redundant_per_rank": 0}, "redundant_per_rank must be 1 to 64"),
        ({}, {"redundant_per_rank": 65}, "redundant_per_rank must be 1 to 64"),
        ({}, {"sms": -1}, "sms must be 0"),
        ({}, {"seed": -1}, "seed must be 0"),
        ({}, {"load": "zipf(x)"}, "The S of zipf"),
        ({"model": "kimi-k4"}, {}, "Did you mean 'kimi-k3'"),
        ({"hardware": "gb301"}, {}, "Did you mean"),
        ({"tensor_parallel": 5}, {}, "tensor_parallel must divide the 96 KDA heads.*nearest that does: 4"),
        ({"data_parallel": -1}, {}, "data_parallel must be 0"),
        ({"memory_share": float("nan")}, {}, "memory_share must be above 0"),
        ({"data_parallel": 8}, {}, "8 x gb300, each .* bytes short. The fewest that do: 16"),
        ({"data_parallel": 16}, {"prefill_tokens": 1 << 24}, "use fewer prefill_tokens"),
        ({"data_parallel": 16384, "tensor_parallel": 2, "expert_parallel": 2}, {}, "must be at most 16,384"),
        (
            {"data_parallel": 32, "expert_parallel": 5},
            {},
            "divide the 32 ranks.*Given: 5. The nearest that does: 4",
        ),
        ({"data_parallel": 32, "expert_parallel": 8}, {}, "expert_parallel 8.*The fewest that do: 16"),
        (
            {"data_parallel": 4, "tensor_parallel": 8, "expert_parallel": 4},
            {},
            "groups of 8 ranks.*Given: 4. The nearest that does: 8",
        ),
        ({"expert_parallel": 5}, {}, "divide the 16 ranks.*Given: 5. The nearest that does: 4"),
        ({"hardware": "h100"}, {}, "Weights must take at most 85%"),
    ],
)
def test_nonsense_is_one_line(deployment: dict[str, Any], question: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as refused:
        plan(deployment, **question)
    assert "\n" not in str(refused.value)


def test_the_given_degree_is_taken() -> None:
    found = plan({"data_parallel": 32, "expert_parallel": 16})
    assert found.best_decode == found.best_prefill == 16


def test_a_model_without_experts_is_one_line() -> None:
    with pytest.raises(ConfigError, match=r"needs a model with experts\. Given: plain, which has none"):
        experts_of("plain", msgspec.structs.replace(K3, experts=None))


# -- models ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", sorted(SHAPES))
def test_every_model_has_a_plan_or_one_line(model: str) -> None:
    shape = find_shape(model)[1]
    if shape.experts is None:
        with pytest.raises(
            ConfigError, match=f"needs a model with experts. Given: {re.escape(model)}, which has"
        ):
            plan({"model": model})
        return
    found = plan({"model": model})
    experts = shape.experts
    assert found.token_layer_bytes == 3 * experts.top_k * experts.width
    assert found.latent_saving == shape.hidden_size / experts.width
    assert found.balance_flops_per_byte == pytest.approx(2 * experts.matrices * experts.intermediate / 3)
    assert bool(found.tails) is experts.latent
    assert found.degree(found.best_decode).fits


def test_nemotron_3_super_divides_bytes_by_four() -> None:
    """LatentMoE, arXiv:2601.18089: alpha is hidden size over latent."""
    assert plan({"model": "nemotron-3-super"}).latent_saving == 4
