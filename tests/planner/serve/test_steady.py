"""The steady state: against a simulation step by step, by hand, and as properties that a search relies on."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from milepost.planner.serve.question import ServeQuestion
from milepost.planner.serve.speculation import Speculation
from milepost.planner.serve.steady import MOST_LOAD
from milepost.shapes.names import find_shape
from milepost.sim.cost.step_work import StepWork
from tests.planner.serve.cases import arranged
from tests.planner.serve.step_by_step import simulate

LONG = ServeQuestion(input_tokens=8192, output_tokens=1024)
SHORT = ServeQuestion(input_tokens=300, output_tokens=100)
CACHED = ServeQuestion(input_tokens=4000, output_tokens=200, hit_tokens=1000)


@pytest.mark.parametrize(
    ("question", "model", "batch", "budget"),
    [
        (LONG, "kimi-k3", 4, 8192),  # hardly ever a prompt
        (LONG, "kimi-k3", 30, 512),  # a prompt takes many steps; half of the steps have one
        (CACHED, "kimi-linear", 40, 2048),
        (SHORT, "kimi-linear", 200, 2048),  # several prompts in each step
    ],
)
def test_formulas_are_near_a_simulation_step_by_step(
    question: ServeQuestion, model: str, batch: int, budget: int
) -> None:
    one = {"kimi-k3": ("gb300", 8), "kimi-linear": ("h200", 1)}[model]
    arrangement = arranged(question, model=model, hardware=one[0], tensor_parallel=one[1])
    point = arrangement.point(batch, budget)
    assert point is not None
    found = simulate(arrangement, question, point, requests=1200)
    assert point.tpot_seconds == pytest.approx(found.tpot_seconds, rel=0.1)
    assert point.ttft_seconds == pytest.approx(found.ttft_seconds, rel=0.1)
    assert batch == pytest.approx(found.batch, rel=0.1)


def test_by_hand() -> None:
    # 32 sequences of 8,192 + 1,024 tokens: each step 1/32 of a prompt begins, 256 tokens of 8,160.
    arrangement = arranged(LONG)
    point = arrangement.point(32, 8192)
    assert point is not None
    assert point.chunk_tokens == 8160
    assert point.mixed_share == pytest.approx(256 / 8160)
    decode = StepWork(tokens=32, rows=32, sampled=32, context=32 * 8704, pairs=32 * 8704)
    mixed = StepWork(
        tokens=8192,
        rows=33,
        sampled=33,
        context=32 * 8704 + (8192 + 8160) // 2,
        pairs=32 * 8704 + 8160 * 8193 // 2,
    )
    assert point.decode_step_seconds == arrangement.cost.seconds(decode)
    assert point.mixed_step_seconds == arrangement.cost.seconds(mixed)
    step = point.decode_step_seconds * (1 - 256 / 8160) + point.mixed_step_seconds * 256 / 8160
    assert point.tpot_seconds == pytest.approx(step)
    assert point.tokens_per_second_per_gpu == pytest.approx(32 / step / 8)
    assert point.requests_per_second == pytest.approx(32 / 1024 / step)


def test_input_and_output_flow_at_the_same_rate_of_requests() -> None:
    arrangement = arranged(CACHED, model="kimi-linear", hardware="h200", tensor_parallel=2, data_parallel=4)
    point = arrangement.point(20, 4096)
    assert point is not None
    output = point.tokens_per_second_per_gpu * point.gpus
    assert output == pytest.approx(point.requests_per_second * CACHED.output_tokens)
    prompts = point.mixed_share * point.chunk_tokens / point.mean_step_seconds * point.data_parallel
    assert prompts == pytest.approx(point.requests_per_second * CACHED.new_tokens)


def test_a_load_that_prefill_cannot_carry_is_none() -> None:
    arrangement = arranged(LONG)
    # 56 sequences begin 448 tokens a step; 512 - 56 leaves 456.
    assert arrangement.point(50, 512) is not None
    assert arrangement.point(56, 512) is None
    assert arrangement.point(512, 512) is None


def test_cached_tokens_shorten_the_wait_for_the_first_token() -> None:
    cold, warm = LONG, ServeQuestion(input_tokens=8192, output_tokens=1024, hit_tokens=6144)
    cold_point, warm_point = arranged(cold).point(8, 8192), arranged(warm).point(8, 8192)
    assert cold_point is not None
    assert warm_point is not None
    assert warm_point.ttft_seconds < 0.5 * cold_point.ttft_seconds
    assert arranged(warm).prefill_seconds(8192) < 0.5 * arranged(cold).prefill_seconds(8192)


@settings(max_examples=60, deadline=None)
@given(
    model=st.sampled_from(["kimi-k3", "kimi-linear", "milepost-toy-k3", "qwen3-next-80b-a3b", "deepseek-v3"]),
    prompt=st.integers(1, 60_000),
    output=st.integers(1, 5_000),
    hit=st.floats(0.0, 0.999),
    ranks=st.sampled_from([(1, 1), (2, 4), (4, 16)]),
    budget=st.sampled_from([64, 512, 8192]),
    speculation=st.sampled_from(
        [
            None,
            Speculation(drafts=3, accepted_length=2.5, states="snapshots"),
            Speculation(drafts=7, accepted_length=1.5, draft_parameters=1e9, draft_layers=3),
        ]
    ),
)
def test_times_and_load_grow_with_the_batch(
    model: str,
    prompt: int,
    output: int,
    hit: float,
    ranks: tuple[int, int],
    budget: int,
    speculation: Speculation | None,
) -> None:
    """What halving for the largest batch under limits needs."""
    experts = find_shape(model)[1].experts
    assume(experts is None or ranks[0] * ranks[1] <= experts.num_experts)
    question = ServeQuestion(
        input_tokens=prompt,
        output_tokens=output,
        hit_tokens=int(prompt * hit),
        speculation=speculation,
    )
    arrangement = arranged(question, model=model, tensor_parallel=ranks[0], data_parallel=ranks[1])
    batches = range(1, budget, max(1, budget // 40))
    points = [arrangement.point(batch, budget) for batch in batches]
    served = [point for point in points if point is not None]
    assert points[: len(served)] == served  # beyond the first batch that is too much, all are
    for before, after in pairwise(served):
        for name in ("tpot_seconds", "ttft_seconds", "prefill_load"):
            assert getattr(after, name) >= getattr(before, name) * (1 - 1e-9), name
    assert all(0 < point.prefill_load <= MOST_LOAD and 0 < point.mixed_share <= 1 for point in served)
