"""Serving plans: published figures, every model with every number derived, costs, one line for nonsense."""

from __future__ import annotations

import math

import msgspec
import pytest

from milepost.errors import ConfigError
from milepost.planner.deployment import Deployment
from milepost.planner.serve.plan import ServePlan, plan_serve
from milepost.planner.serve.question import ServeQuestion
from milepost.planner.serve.report import serve_report
from milepost.planner.serve.speculation import DRAFT_STATES, Speculation
from milepost.planner.worksheet import explain
from milepost.shapes.names import SHAPES
from milepost.sim.cost.hardware import hardware_names

EIGHT = Deployment(model="kimi-k3", hardware="gb300", tensor_parallel=8)


def values(plan: ServePlan) -> dict[str, float]:
    return {one.name: one.value for one in plan.derivations}


# -- published figures --------------------------------------------------------------------------------


def test_aggregated_serving_is_near_aiconfigurator() -> None:
    """aiconfigurator 0.12.0: 187.4 tokens/s/GPU on 32 x GB300, 8k in, 1k out, TPOT <= 50 ms, 5 state slots.

    Its replica is TP2 x DP8 with 20 sequences a group, at 48.4 ms a token. A search may divide otherwise.
    """
    division = Deployment(model="kimi-k3", hardware="gb300", tensor_parallel=2, data_parallel=8)
    same = plan_serve(ServeQuestion(deployment=division, batch=20, slots=5.0)).point
    assert same.tokens_per_second_per_gpu == pytest.approx(187.4, rel=0.1)
    assert same.tpot_seconds == pytest.approx(48.4e-3, rel=0.1)
    asked = ServeQuestion(
        deployment=Deployment(hardware="gb300"),
        gpus=(32, 32),
        tpot_limit_seconds=0.05,
        ttft_limit_seconds=2.0,
        slots=5.0,
    )
    wide = plan_serve(asked).point
    assert wide.tokens_per_second_per_gpu > same.tokens_per_second_per_gpu
    assert wide.expert_parallel > 8


def test_what_a_mean_hides_is_noted() -> None:
    """A search without limits takes any latency, and whole prompts in a step hold all answers up."""
    free = plan_serve(ServeQuestion(deployment=Deployment(hardware="gb300"), gpus=(8, 8)))
    assert any(note.startswith("No limits are given") for note in free.notes)
    limited = msgspec.structs.replace(free.question, tpot_limit_seconds=0.05)
    assert not any(note.startswith("No limits are given") for note in plan_serve(limited).notes)
    whole = plan_serve(ServeQuestion(deployment=EIGHT, batch=8, token_budget=16_384))
    assert whole.point.mixed_step_seconds > 10 * whole.point.mean_step_seconds
    assert any("in which all answers stand still" in note for note in whole.notes)
    small = plan_serve(ServeQuestion(deployment=EIGHT, batch=8, token_budget=512))
    assert not any("stand still" in note for note in small.notes)


@pytest.mark.parametrize(("ranks", "published"), [(8, 111.0), (16, 118.0)])
def test_decode_of_one_sequence_is_near_published_speeds(ranks: int, published: float) -> None:
    """The launch post of vLLM: 111 and 118 tokens/s on GB300 at TP8 and TP16, 8k in, 1k out."""
    deployment = msgspec.structs.replace(EIGHT, tensor_parallel=ranks)
    plan = plan_serve(ServeQuestion(deployment=deployment, batch=1))
    assert 1.0 / plan.point.decode_step_seconds == pytest.approx(published, rel=0.2)


def test_drafts_speed_one_sequence_up_as_published() -> None:
    """331 tokens/s at TP8 with DSpark on low-entropy prompts, against 111: the card's mean is 3.85 tokens."""
    plain = plan_serve(ServeQuestion(deployment=EIGHT, batch=1))
    spec = Speculation(drafts=7, accepted_length=3.85, draft_parameters=3.56e9, draft_layers=5)
    drafted = plan_serve(ServeQuestion(deployment=EIGHT, batch=1, speculation=spec))
    gained = plain.point.decode_step_seconds * 3.85 / drafted.point.decode_step_seconds
    assert 2.0 < gained < 331 / 111 * 1.15
    assert 331 * 0.6 < 3.85 / drafted.point.decode_step_seconds < 410


# -- derivations --------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", sorted(SHAPES))
def test_every_model_is_planned_and_each_number_is_held_against_the_roofline(model: str) -> None:
    """`plan_serve` checks each formula of a part against the roofline, so planning is the test."""
    asked = ServeQuestion(
        deployment=Deployment(model=model, hardware="gb300"),
        input_tokens=700,
        output_tokens=50,
        hit_tokens=100,
        gpus=(16, 16),
        price_per_hour=3.0,
        speculation=Speculation(drafts=3, accepted_length=2.0, draft_parameters=1e8, draft_layers=1),
    )
    plan = plan_serve(asked)
    known = values(plan)
    for parts, step in ((plan.decode_parts, "decode"), (plan.prefill_parts, "prefill")):
        assert known[f"{step}.model_seconds"] == pytest.approx(sum(part.seconds for part in parts))
    assert known["tpot"] == pytest.approx(plan.point.tpot_seconds)
    assert explain(plan.derivations, "ttft")
    report = serve_report(plan)
    assert all(
        len(row) == len(table.columns) for s in report.sections for table in s.tables for row in table.rows
    )


@pytest.mark.parametrize("hardware", hardware_names())
def test_every_hardware_is_planned(hardware: str) -> None:
    plan = plan_serve(ServeQuestion(deployment=Deployment(model="kimi-linear", hardware=hardware)))
    assert plan.hardware == hardware
    assert plan.point.tokens_per_second_per_gpu > 0


@pytest.mark.parametrize("ranks", [(1, 16, 0, 1), (8, 2, 8, 4), (16, 1, 0, 1), (4, 4, 16, 2)])
@pytest.mark.parametrize("states", DRAFT_STATES)
def test_every_division_and_design_is_derived(ranks: tuple[int, int, int, int], states: str) -> None:
    tensor, data, experts, context = ranks
    deployment = Deployment(
        model="kimi-k3",
        hardware="gb300",
        tensor_parallel=tensor,
        data_parallel=data,
        expert_parallel=experts,
        context_parallel=context,
        kv_dtype="fp8",
        state_dtype="bf16",
    )
    spec = msgspec.convert({"drafts": 7, "accepted_length": 3.0, "states": states}, Speculation)
    plan = plan_serve(ServeQuestion(deployment=deployment, speculation=spec))
    known = values(plan)
    assert known["left_bytes"] >= 0
    assert known["gpus"] == tensor * data == plan.point.gpus
    assert [design.states for design in plan.drafts] == list(DRAFT_STATES)
    chosen = next(design for design in plan.drafts if design.states == states)
    assert chosen.tpot_seconds == plan.point.tpot_seconds
    assert chosen.largest_batch == plan.largest_batch


def test_snapshots_of_drafts_leave_room_for_fewer_sequences() -> None:
    spec = Speculation(drafts=7, accepted_length=3.85)
    snapshots, replay, fused = plan_serve(ServeQuestion(deployment=EIGHT, batch=1, speculation=spec)).drafts
    assert snapshots.largest_batch < 0.6 * replay.largest_batch
    assert snapshots.step_extra_seconds > replay.step_extra_seconds > fused.step_extra_seconds


# -- costs, hits, batches -----------------------------------------------------------------------------


def test_input_and_output_pay_for_all_gpus() -> None:
    plan = plan_serve(ServeQuestion(deployment=EIGHT, price_per_hour=4.0))
    costs, point = plan.costs, plan.point
    assert costs is not None
    hour = point.requests_per_second * 3600
    input_cost = hour * 8192 / 1e6 * costs.cost_per_million_input_tokens
    output_cost = hour * 1024 / 1e6 * costs.cost_per_million_output_tokens
    assert input_cost + output_cost == pytest.approx(8 * 4.0)
    assert costs.cost_per_million_output_tokens > costs.cost_per_million_input_tokens
    assert hour * costs.cost_per_request == pytest.approx(8 * 4.0)
    free = plan_serve(ServeQuestion(deployment=EIGHT))
    assert free.costs is None


def test_hits_make_prompts_cheaper_and_first_tokens_earlier() -> None:
    cold = plan_serve(ServeQuestion(deployment=EIGHT, price_per_hour=4.0, batch=32))
    warm = plan_serve(ServeQuestion(deployment=EIGHT, price_per_hour=4.0, batch=32, hit_tokens=6144))
    assert cold.costs is not None
    assert warm.costs is not None
    assert warm.costs.cost_per_million_input_tokens < 0.5 * cold.costs.cost_per_million_input_tokens
    assert warm.point.ttft_seconds < cold.point.ttft_seconds
    assert warm.prefill_seconds < cold.prefill_seconds


def test_a_given_batch_is_taken_and_a_missed_limit_is_said() -> None:
    plan = plan_serve(ServeQuestion(deployment=EIGHT, batch=40, tpot_limit_seconds=0.01))
    assert plan.point.batch == 40
    assert any("TPOT is" in note and "above the limit of 0.01 s" in note for note in plan.notes)


def test_without_limits_the_largest_batch_of_one_arrangement_is_taken() -> None:
    plan = plan_serve(ServeQuestion(deployment=EIGHT))
    assert plan.point.batch == plan.largest_batch
    assert plan.replicas == 1
    assert plan.point.gpus == 8


def test_groups_are_added_until_the_weights_fit() -> None:
    plan = plan_serve(ServeQuestion(deployment=Deployment(model="kimi-k3", hardware="gb300")))
    assert (plan.point.tensor_parallel, plan.point.data_parallel) == (1, 16)


def test_a_search_keeps_given_ranks() -> None:
    plan = plan_serve(ServeQuestion(deployment=EIGHT, gpus=(32, 32), tpot_limit_seconds=0.03))
    assert {point.tensor_parallel for point in plan.search.front} == {8}
    assert plan.replicas * plan.point.gpus == 32


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"data_parallel": 2}, "data_parallel"),
        ({"expert_parallel": 8}, "expert_parallel"),
        ({"context_parallel": 4}, "context_parallel"),
    ],
)
def test_a_search_keeps_each_kind_of_given_ranks(given: dict[str, int], field: str) -> None:
    deployment = msgspec.structs.replace(Deployment(model="kimi-linear", hardware="gb300"), **given)
    plan = plan_serve(ServeQuestion(deployment=deployment, gpus=(16, 16)))
    assert {getattr(point, field) for point in plan.search.front} == {given[field]}


def test_a_chunked_prompt_takes_steps() -> None:
    plan = plan_serve(ServeQuestion(deployment=EIGHT, input_tokens=20_000, token_budget=2048, batch=4))
    assert plan.prefill_steps == 10
    assert values(plan)["prefill.tokens"] == 2000


# -- nonsense -----------------------------------------------------------------------------------------


def refusal(**fields: object) -> str:
    with pytest.raises(ConfigError) as caught:
        plan_serve(msgspec.structs.replace(ServeQuestion(deployment=EIGHT), **fields))
    text = str(caught.value)
    assert "\n" not in text
    assert "Given: " in text
    return text


def test_what_does_not_fit_says_the_fewest_that_do() -> None:
    four = msgspec.structs.replace(EIGHT, tensor_parallel=4, data_parallel=1)
    assert "The fewest gb300 that do: 8 (TP" in refusal(deployment=four)
    # Of the divisions of eight, the one with most room, and without a context to divide.
    wide = refusal(deployment=Deployment(hardware="gb300"), gpus=(4, 4))
    assert "The fewest gb300 that do: 8 (TP4 x DP2)." in wide
    long = refusal(input_tokens=1_000_000, slots=10_000.0)
    assert "a request" in long


def test_limits_out_of_reach_say_what_can_be_reached_and_where() -> None:
    text = refusal(tpot_limit_seconds=1e-3, gpus=(8, 16), deployment=Deployment(hardware="gb300"))
    assert "each further one within 0.001 s" in text
    assert "TPOT 0.00" in text
    assert "16 devices, TP16 x DP1, batch 1" in text


def test_a_prompt_that_steps_are_too_short_for() -> None:
    text = refusal(input_tokens=100_000, output_tokens=10, token_budget=256)
    assert "Prefill must keep up with decode" in text
    assert "Raise the token budget" in text


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"input_tokens": 0}, "input_tokens must be 1 to"),
        ({"output_tokens": -5}, "output_tokens must be 1 to"),
        ({"input_tokens": 10**30}, "input_tokens must be 1 to"),
        ({"hit_tokens": 8192}, "hit_tokens must be below input_tokens"),
        ({"hit_tokens": -1}, "hit_tokens must be 0 to"),
        ({"input_tokens": 1 << 21}, "A sequence of this model must be at most 1,048,576 tokens long"),
        ({"batch": -1}, "batch must be 0 to"),
        ({"batch": 10**6}, "token_budget must be at least"),
        ({"batch": 5000}, "batch must be at most"),
        ({"token_budget": 1}, "token_budget must be at least 2"),
        ({"ttft_limit_seconds": 0.0}, "ttft_limit_seconds must be above 0"),
        ({"tpot_limit_seconds": math.nan}, "tpot_limit_seconds must be above 0"),
        ({"price_per_hour": math.inf}, "price_per_hour must be above 0"),
        ({"slots": 0.5}, "slots must be at least 1"),
        ({"slots": math.nan}, "slots must be at least 1"),
        ({"gpus": (0, 8)}, "gpus must be 1 to"),
        ({"gpus": (8, 10**9)}, "gpus must be 1 to"),
        ({"gpus": (16, 8)}, "A range of gpus must go up"),
        ({"gpus": (8, 8), "batch": 4}, "A search chooses the batch"),
        ({"gpus": (8,)}, "Expected `array` of length 2, got 1 - at `$.gpus`"),
        ({"batch": 1.5}, "Expected `int`, got `float` - at `$.batch`"),
        ({"price_per_hour": object()}, "The fields of ServeQuestion must be of their types"),
        (
            {"deployment": Deployment(model="qwen3-235b-a22b", hardware="h100", data_parallel=512)},
            "leave each rank an expert. Given: all 512. The nearest that does: 128",
        ),
        (
            {"deployment": Deployment(model="qwen3-235b-a22b", hardware="h100", memory_share=0.01)},
            "h100 at TP1 x DP128 with",
        ),
        ({"gpus": (7, 7)}, "A search needs a division of its devices"),
        ({"deployment": Deployment(hardware="gb300", tensor_parallel=5)}, "The nearest that does: 4"),
        ({"deployment": Deployment(hardware="gb30")}, "Did you mean 'gb300'"),
        ({"deployment": Deployment(model="kimi-k4")}, "Did you mean 'kimi-k3'"),
        (
            {"deployment": Deployment(hardware="gb300", tensor_parallel=8, expert_parallel=12)},
            "expert_parallel must be whole groups of 8 ranks",
        ),
        ({"deployment": Deployment(hardware="gb300", memory_share=1.5)}, "memory_share must be above 0"),
        ({"deployment": Deployment(hardware="gb300", kv_dtype="fp4")}, "kv_dtype must be one of"),
    ],
)
def test_nonsense_is_one_line(fields: dict[str, object], message: str) -> None:
    assert message in refusal(**fields)
