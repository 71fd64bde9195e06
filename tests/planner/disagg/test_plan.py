"""The plan of `milepost plan disagg`: reference figures, and what every plan must keep to."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import msgspec
import pytest

from milepost.errors import ConfigError
from milepost.planner.deployment import Deployment
from milepost.planner.disagg.exports import FITTED_TOKENS, checked_error
from milepost.planner.disagg.plan import DisaggPlan
from milepost.planner.disagg.planning import plan_disagg
from milepost.planner.disagg.question import DisaggQuestion
from milepost.planner.disagg.report import disagg_report
from milepost.planner.serve.plan import plan_serve
from milepost.planner.serve.question import ServeQuestion
from milepost.shapes.names import SHAPES
from milepost.sim.cost.hardware import PeakFlops, find_hardware
from milepost.sim.cost.part_work import RankSizes
from milepost.sim.cost.roofline import RooflineCost
from milepost.sim.cost.step_work import StepWork
from milepost.sim.models import find_model


def ask(**more: Any) -> DisaggPlan:
    return plan_disagg(DisaggQuestion(**({"against": ()} | more)))


def value(plan: DisaggPlan, name: str) -> float:
    return next(entry.value for entry in plan.derivations if entry.name == name)


@pytest.fixture(scope="module")
def k3() -> DisaggPlan:
    return ask()


MIX = "p50=8k,p90=32k,p99=128k"

# -- reference figures --------------------------------------------------------------------------------


def test_bytes_and_milliseconds_of_k3(k3: DisaggPlan) -> None:
    """8k 0.68 GB, 32k 1.36, 128k 4.07, 256k 7.70 GB; at 50 GB/s 14 / 27 / 81 / 154 ms."""
    rows = k3.transfers
    assert [row.prompt_tokens for row in rows] == [8192, 32768, 131072, 262144]
    assert [row.sent_bytes for row in rows] == [
        449_372_160 + tokens * 27_648 for tokens in (8192, 32768, 131072, 262144)
    ]
    assert [f"{row.sent_bytes / 1e9:.2f}" for row in rows] == ["0.68", "1.36", "4.07", "7.70"]
    assert [f"{row.transfer_seconds * 1e3:.0f}" for row in rows] == ["14", "27", "81", "154"]
    assert [row.transfer_seconds for row in rows] == [row.sent_bytes / 50e9 for row in rows]


@pytest.mark.parametrize(
    ("model", "kv_dtype", "sent", "all_attention"),
    [
        ("kimi-k3", "bf16", "7.697", "28.09"),
        ("kimi-linear", "bf16", "2.157", "8.15"),
        ("kimi-k3", "fp8", "4.073", "14.04"),
        ("kimi-linear", "fp8", "1.100", "4.08"),
    ],
)
def test_bytes_at_256k(model: str, kv_dtype: str, sent: str, all_attention: str) -> None:
    row = ask(deployment=Deployment(model=model, kv_dtype=kv_dtype)).transfers[-1]
    assert f"{row.sent_bytes / 1e9:.3f}" == sent
    assert f"{row.all_attention_bytes / 1e9:.2f}" == all_attention


def test_prefill_is_the_rooflines(k3: DisaggPlan) -> None:
    side = k3.prefill
    cost = RooflineCost(
        find_hardware("gb300"),
        find_model("kimi-k3")[1],
        RankSizes(tensor_parallel=side.tensor_parallel, data_parallel=side.data_parallel),
    )
    chunks = [
        StepWork(
            tokens=8192,
            rows=1,
            sampled=int(done == 3 * 8192),
            context=done + 8192,
            pairs=8192 * done + 8192 * 8193 // 2,
        )
        for done in range(0, 32768, 8192)
    ]
    assert k3.transfers[1].prefill_seconds == pytest.approx(sum(map(cost.seconds, chunks)))


def test_kv_throughput_is_bytes_over_prefill(k3: DisaggPlan) -> None:
    for row in k3.transfers:
        groups = k3.prefill.data_parallel
        assert row.kv_bytes_per_second == pytest.approx(groups * row.sent_bytes / row.prefill_seconds)


# -- exposed transfers --------------------------------------------------------------------------------


def test_streaming_hides_what_prefill_has_time_for(k3: DisaggPlan) -> None:
    for row in k3.transfers:
        assert row.exposed_whole_seconds == pytest.approx(row.transfer_seconds)
        assert row.exposed_layer_wise_seconds <= row.exposed_chunk_wise_seconds <= row.exposed_whole_seconds
        # The last chunk's KV and the whole state are ready only in the end.
        last = row.state_bytes + 8192 * 27_648
        assert row.exposed_chunk_wise_seconds == pytest.approx(last / 50e9)


def test_a_slow_network_hides_nothing_and_bounds_prefill() -> None:
    plan = ask(network_bytes_per_second=0.1e9)
    row = plan.transfers[0]
    assert row.exposed_layer_wise_seconds > 0.8 * (row.transfer_seconds - row.prefill_seconds)
    assert plan.balance.prefill_requests_per_second == pytest.approx(0.1e9 / plan.mix.sent_bytes)
    assert plan.balance.prefill_busy_share < 0.5
    assert "network" in plan.balance.bound
    assert any("network keeps prefill instances idle" in note for note in plan.notes)


# -- balance ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"devices": 64},
        {"requests_per_second": 33.0},
        {"lengths": MIX, "ttft_limit_seconds": 6.0},
        {"lengths": MIX, "hit_rate": 0.5, "outputs": "p50=200,p90=2k"},
        {"prefill_hardware": "h200", "loss_rate_per_hour": 0.3, "prefill_price": 2.0, "decode_price": 6.0},
        {"deployment": Deployment(tensor_parallel=8, kv_dtype="fp8"), "prefill_tensor_parallel": 8},
        {"deployment": Deployment(model="kimi-linear"), "lengths": "32k"},
        {"link_bytes_per_second": 5e9},
        {"utilization": 1.0},
        {"slots": 5.0},
    ],
)
def test_what_is_served_is_what_both_sides_can(more: dict[str, Any]) -> None:
    question = DisaggQuestion(against=(), **more)
    plan = plan_disagg(question)
    balance, mix = plan.balance, plan.mix
    capacity = min(
        balance.prefill_instances * balance.prefill_requests_per_second,
        balance.decode_instances * balance.decode_requests_per_second,
    )
    assert balance.requests_per_second <= capacity * (1 + 1e-9)
    assert balance.devices == (
        balance.prefill_instances * plan.prefill.devices + balance.decode_instances * plan.decode.devices
    )
    assert balance.output_tokens_per_second == pytest.approx(balance.requests_per_second * mix.output_tokens)
    assert balance.sent_bytes_per_second == pytest.approx(balance.requests_per_second * mix.sent_bytes)
    assert balance.tpot_seconds <= question.tpot_limit_seconds
    assert balance.prefill_busy_share <= question.utilization * (1 + 1e-9)
    assert balance.prefill_per_decode_ratio == pytest.approx(
        balance.decode_requests_per_second / balance.prefill_requests_per_second
    )
    if question.ttft_limit_seconds:
        assert balance.ttft_seconds <= question.ttft_limit_seconds * (1 + 1e-6)
    if question.requests_per_second:
        assert balance.requests_per_second == question.requests_per_second
        fewer = (balance.prefill_instances - 1) * balance.prefill_requests_per_second
        assert fewer < question.requests_per_second
    if question.devices:
        assert balance.devices <= question.devices
    if question.link_bytes_per_second:
        assert balance.sent_bytes_per_second <= question.link_bytes_per_second * (1 + 1e-9)
    # Whatever was asked, it can be shown and every number has a derivation.
    report = disagg_report(plan)
    assert len(report.derivations) == len({entry.name for entry in report.derivations})


def test_no_larger_batch_meets_the_limit(k3: DisaggPlan) -> None:
    plan, batch = k3, k3.balance.batch_per_group
    cost = RooflineCost(
        find_hardware("gb300"),
        find_model("kimi-k3")[1],
        RankSizes(tensor_parallel=1, data_parallel=plan.decode.data_parallel),
    )
    context = round(plan.mix.decode_context_tokens)

    def step(rows: int) -> float:
        total = rows * context
        return cost.seconds(StepWork(tokens=rows, rows=rows, sampled=rows, context=total, pairs=total))

    assert step(batch) <= 0.05
    held = 449_372_160 + 9216 * 27_648
    fits = plan.decode.rank_free_bytes // held
    assert batch == fits or step(batch + 1) > 0.05
    assert batch <= fits


def test_memory_bounds_the_batch_where_it_is_short() -> None:
    plan = ask(deployment=Deployment(memory_share=0.75), tpot_limit_seconds=0.2)
    assert (
        "memory" in plan.balance.bound
        or value(plan, "decode.batch_by_memory") == plan.balance.batch_per_group
    )
    assert any("Memory bounds" in note for note in plan.notes)
    five = ask(deployment=Deployment(memory_share=0.75), tpot_limit_seconds=0.2, slots=5.0)
    assert five.balance.batch_per_group < plan.balance.batch_per_group


def test_fewer_tokens_to_compute_need_less_prefill() -> None:
    cold, hit = ask(lengths="32k"), ask(lengths="32k", hit_rate=0.75)
    assert hit.balance.prefill_per_decode_ratio < 0.5 * cold.balance.prefill_per_decode_ratio
    assert hit.mix.sent_bytes == cold.mix.sent_bytes


def test_a_tighter_ttft_leaves_prefill_more_room() -> None:
    loose = ask(lengths=MIX, prefill_tensor_parallel=8)
    alone = value(loose, "prefill.late_seconds")
    tight = ask(lengths=MIX, prefill_tensor_parallel=8, ttft_limit_seconds=1.3 * alone)
    assert tight.balance.prefill_busy_share < loose.balance.prefill_busy_share
    assert tight.balance.ttft_seconds <= 1.3 * alone * (1 + 1e-6)
    assert "TTFT" in tight.balance.bound or tight.balance.bound.startswith("decode")


def test_separation_is_compared_with_none(k3: DisaggPlan) -> None:
    together = k3.colocated
    assert together.gain_ratio == pytest.approx(
        k3.balance.output_tokens_per_second_per_device / together.output_tokens_per_second_per_device
    )
    # In steps of its own, prefill takes what decode steps leave of the limit.
    apart = "colocated.apart"
    filled, step = value(k3, f"{apart}.filled_seconds"), value(k3, f"{apart}.step_seconds")
    share = value(k3, f"{apart}.requests_per_second") * filled / k3.decode.data_parallel
    assert step / (1 - share) <= 0.05 * (1 + 1e-6)
    # Spread over all steps it uses the weights that decoding reads anyhow.
    assert value(k3, "colocated.spread.step_seconds") <= 0.05
    assert together.requests_per_second == value(k3, "colocated.spread.requests_per_second")
    assert together.requests_per_second > value(k3, f"{apart}.requests_per_second")


def test_no_separation_is_as_fast_as_plan_serve_has_it(k3: DisaggPlan) -> None:
    """Of the same division and TPOT: a gain over less than `plan serve` finds would be none."""
    division = Deployment(model="kimi-k3", hardware="gb300", data_parallel=k3.decode.data_parallel)
    found = [
        plan_serve(
            ServeQuestion(
                deployment=division,
                input_tokens=round(k3.mix.prompt_tokens),
                output_tokens=round(k3.mix.output_tokens),
                tpot_limit_seconds=0.05,
                token_budget=budget,
            )
        ).point.tokens_per_second_per_gpu
        for budget in (256, 512, 1024, 8192)
    ]
    assert k3.colocated.output_tokens_per_second_per_device == pytest.approx(max(found), rel=0.15)


# -- hardware, prices, losses -------------------------------------------------------------------------


def test_cheaper_machines_have_an_even_price() -> None:
    prices = {"decode_price": 6.0, "prefill_price": 2.0}
    plan = ask(prefill_hardware="h200", **prices)
    rows = {(row.hardware, row.tensor_parallel): row for row in plan.choices}
    assert {hardware for hardware, _ in rows} == {"h200", "gb300"}
    own = max(
        (row for row in plan.choices if row.hardware == "h200"),
        key=lambda row: row.requests_per_second_per_device,
    )
    even = own.even_price_per_device_hour
    assert even is not None
    at_even = ask(prefill_hardware="h200", decode_price=6.0, prefill_price=even)
    costs = {
        hardware: min(
            row.cost_per_million_output_tokens or math.inf
            for row in at_even.choices
            if row.hardware == hardware
        )
        for hardware in ("h200", "gb300")
    }
    assert costs["h200"] == pytest.approx(costs["gb300"], rel=1e-6)


def test_costs_are_device_hours_over_tokens() -> None:
    plan = ask(prefill_price=3.0, decode_price=5.0, devices=96)
    balance = plan.balance
    hourly = balance.prefill_instances * plan.prefill.devices * 3.0
    hourly += balance.decode_instances * plan.decode.devices * 5.0
    assert balance.cost_per_million_output_tokens == pytest.approx(
        hourly / 3600 / balance.output_tokens_per_second * 1e6
    )
    assert ask().balance.cost_per_million_output_tokens is None


def test_hardware_of_one_name_is_told_apart(tmp_path: Path) -> None:
    fast = msgspec.structs.replace(find_hardware("h200"), peak_flops=PeakFlops(bf16=9e15, fp8=9e15))
    file = tmp_path / "h200.json"
    file.write_bytes(msgspec.json.encode(fast))
    deployment = Deployment(model="kimi-linear", hardware="h200")
    plan = ask(deployment=deployment, prefill_hardware=str(file), decode_price=6.0)
    assert {row.hardware for row in plan.choices} == {"h200"}
    speeds = {row.requests_per_second_per_device for row in plan.choices}
    assert len(speeds) == len(plan.choices) > 4
    assert (
        plan.balance.prefill_requests_per_second
        > ask(deployment=deployment).balance.prefill_requests_per_second
    )


def test_losses_take_instances() -> None:
    sure = ask(requests_per_second=500.0)
    lossy = ask(requests_per_second=500.0, loss_rate_per_hour=0.5, restart_seconds=1200.0)
    spot = lossy.spot
    assert sure.spot is None
    assert spot is not None
    assert spot.instances == lossy.balance.prefill_instances
    assert spot.extra_instances == lossy.balance.prefill_instances - sure.balance.prefill_instances > 0
    assert spot.needed_instances * spot.loss.capacity_factor <= spot.instances
    assert lossy.balance.decode_instances == sure.balance.decode_instances


# -- who prefills what --------------------------------------------------------------------------------


def test_all_wait_alike_at_the_threshold(k3: DisaggPlan) -> None:
    rule = k3.remote
    assert rule.threshold_tokens is not None
    here = rule.local_seconds + rule.batch * rule.local_delay_seconds
    assert rule.remote_seconds <= here
    assert rule.remote_seconds == pytest.approx(here, rel=0.2)
    assert value(k3, "remote.local_cost_seconds") == pytest.approx(here)


def test_a_slower_network_keeps_more_prompts_here() -> None:
    fast = ask(streaming="whole").remote.threshold_tokens
    slow = ask(streaming="whole", network_bytes_per_second=1e9).remote.threshold_tokens
    assert fast is not None
    assert slow is not None
    assert fast < slow


def test_only_long_prompts_cross_a_narrow_link() -> None:
    plan = ask(lengths=MIX, requests_per_second=50.0, link_bytes_per_second=12.5e9)
    rule = plan.remote
    assert not plan.balance.fits_link
    assert any("does not fit the link" in note for note in plan.notes)
    assert rule.link_threshold_tokens is not None
    assert rule.link_threshold_tokens > 8192
    assert 0.0 < rule.link_share < 0.5
    wide = ask(lengths=MIX, requests_per_second=50.0, link_bytes_per_second=1e12)
    assert (wide.balance.fits_link, wide.remote.link_threshold_tokens) == (True, 0)


def test_a_fleet_serves_most_when_short_prompts_stay() -> None:
    plan = ask(lengths=MIX, prefill_hardware="b300", fleet=(2, 6), link_bytes_per_second=5e9)
    fleet = plan.fleet
    assert fleet is not None
    assert fleet.offloaded.requests_per_second >= fleet.all_remote.requests_per_second
    assert fleet.offloaded.sent_bytes_per_second <= 5e9 * (1 + 1e-9)
    assert fleet.gain_ratio == pytest.approx(
        fleet.offloaded.requests_per_second / fleet.local_only.requests_per_second
    )
    assert ask().fleet is None


# -- other models -------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", sorted(SHAPES))
def test_every_known_model_can_be_planned(model: str) -> None:
    plan = ask(deployment=Deployment(model=model), tpot_limit_seconds=1.0)
    assert plan.balance.requests_per_second > 0
    disagg_report(plan)


def test_others_are_compared_on_the_same_hardware() -> None:
    plan = ask(against=("kimi-linear",))
    (other,) = plan.other_models
    assert (other.model, other.prompt_tokens) == ("kimi-linear", 32768)
    assert other.kv_bytes_per_second >= other.sent_bytes / other.prefill_seconds * (1 - 1e-9)


def test_published_throughputs_stand_beside_ours() -> None:
    rows = ask().published
    assert {row.shape for row in rows} <= set(SHAPES)
    for row in rows:
        assert row.ratio == pytest.approx(row.predicted_bytes_per_second / row.published_bytes_per_second)
        assert row.ratio == pytest.approx(row.published_prefill_seconds / row.predicted_prefill_seconds)
        # A roofline without the engine's queues is no slower than what was measured, or hardly: the shares
        # that are fitted on GB300 make Qwen3-235B's 128k on H200 a seventh too slow.
        assert row.ratio > 0.85
    fitted = [row for row in rows if row.prompt_tokens == FITTED_TOKENS]
    late = [row.published_prefill_seconds - row.predicted_prefill_seconds for row in fitted]
    overhead = sum(late) / len(late)
    for row in rows:
        assert row.with_overhead_ratio == pytest.approx(
            row.published_prefill_seconds / (row.predicted_prefill_seconds + overhead)
        )
    error = checked_error(rows)
    assert error is not None
    alone = [abs(row.ratio - 1) for row in rows if row.prompt_tokens != FITTED_TOKENS]
    assert error < sum(alone) / len(alone)
    at_32k = {
        row.model: row.published_bytes_per_second * 8 / 1e9 for row in rows if row.prompt_tokens == 32768
    }
    published = {"Kimi Linear": 3.87, "MiniMax-M2.5": 59.93, "Qwen3-235B": 33.35, "Qwen3.5-397B": 8.25}
    assert at_32k == pytest.approx({name: published[name] for name in at_32k})


# -- nonsense -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"network_bytes_per_second": 0.0}, "--network must be bytes a second"),
        ({"network_bytes_per_second": math.nan}, "--network must be bytes a second"),
        ({"network_bytes_per_second": 1e99}, "--network must be bytes a second"),
        ({"link_bytes_per_second": -1.0}, "--link must be bytes a second"),
        ({"loss_rate_per_hour": 1.0}, "at least 0 and below 1"),
        ({"loss_rate_per_hour": math.nan}, "at least 0 and below 1"),
        ({"restart_seconds": -1.0}, "--restart must be seconds"),
        ({"hit_rate": 1.0}, "--hit-rate must be a share"),
        ({"streaming": "layer"}, "Did you mean 'layers'?"),
        ({"utilization": 0.0}, "--utilization must be a share"),
        ({"requests_per_second": math.inf}, "--rate must be requests a second"),
        ({"requests_per_second": 1.0, "devices": 32}, "Give one of them"),
        ({"devices": 8}, "--gpus must be at least 32"),
        ({"fleet": (0, 8)}, "--fleet must name"),
        ({"fleet": (4, 1)}, "--fleet must name"),
        ({"chunk_tokens": 0}, "--token-budget must be"),
        ({"prefill_price": math.nan}, "--prefill-price must be"),
        ({"slots": 0.5}, "--slots must be"),
        ({"simulated_bytes": 10**9}, "Give --trace as well"),
        ({"prefill_tensor_parallel": 7}, "On the prefill side"),
        ({"prefill_hardware": "h20x"}, "Did you mean 'h200'?"),
        ({"deployment": Deployment(hardware="none")}, "Hardware must be one of"),
        ({"deployment": Deployment(state_dtype="fp7")}, "state_dtype must be one of"),
        ({"deployment": Deployment(data_parallel=8)}, "--dp 16, 16 devices, is the least"),
        (
            {"prefill_tensor_parallel": 1, "prefill_data_parallel": 8},
            "--prefill-dp 16, 16 devices, is the least",
        ),
        ({"against": ("qwen",)}, "A model must be one of"),
    ],
)
def test_nonsense_is_one_line(more: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ask(**more)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_limit_that_cannot_be_met_names_the_best() -> None:
    with pytest.raises(ConfigError, match="--ttft must be above") as caught:
        ask(ttft_limit_seconds=0.01)
    best = float(str(caught.value).split("above ")[1].split()[0])
    assert ask(ttft_limit_seconds=1.05 * best).balance.ttft_seconds <= 1.05 * best * (1 + 1e-6)
    with pytest.raises(ConfigError, match="--tpot must be at least") as caught:
        ask(tpot_limit_seconds=0.001)
    best = float(str(caught.value).split("at least ")[1].split()[0])
    assert ask(tpot_limit_seconds=1.001 * best).balance.batch_per_group >= 1


def test_a_question_survives_json() -> None:
    question = DisaggQuestion(lengths=MIX, fleet=(4, 8), deployment=Deployment(tensor_parallel=8))
    assert msgspec.json.decode(msgspec.json.encode(question), type=DisaggQuestion) == question
