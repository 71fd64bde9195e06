"""A run in simulated time, with a cost that can be added up by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest

from milepost.errors import ConfigError
from milepost.sim.cost.step_work import StepWork
from milepost.sim.models import find_model
from milepost.sim.replay.setup import parts_of
from milepost.sim.replay.simulation import Simulation
from milepost.sim.runs import RequestOutcome, RunResult, RunSpec
from milepost.sim.traces.trace import Trace, TraceRequest
from tests.model_specs import SMALL
from tests.sim.block_traces import block_trace, random_trace


class LinearCost:
    """A second a step, and a hundredth a token."""

    name = "a second a step"

    def seconds(self, work: StepWork) -> float:
        return 1.0 + work.tokens / 100


def run(
    trace: Trace, spec: RunSpec, *, timed: bool = True
) -> tuple[RunResult, dict[str, RequestOutcome], Simulation]:
    outcomes: dict[str, RequestOutcome] = {}
    simulation = Simulation(
        spec,
        trace,
        parts_of(spec, trace, SMALL),
        LinearCost() if timed else None,
        lambda outcome: outcomes.update({outcome.request_id: outcome}),
    )
    return simulation.run(), outcomes, simulation


def requests(*arrivals: tuple[float, int, int]) -> Trace:
    """A trace of (arrival, prompt tokens, output tokens); nobody shares anything."""
    made = [
        TraceRequest(
            request_id=str(number),
            arrival=arrival,
            prompt=tuple(range(1000 * number, 1000 * number + prompt)),
            num_output=output,
        )
        for number, (arrival, prompt, output) in enumerate(arrivals)
    ]
    return Trace(name="made", form="made", requests=made, block_size=1)


def times(outcomes: dict[str, RequestOutcome]) -> Any:
    return [(outcomes[key].ttft, outcomes[key].tpot) for key in sorted(outcomes)]


def test_alone_a_request_waits_for_nobody() -> None:
    trace = requests((0.0, 100, 3), (0.0, 200, 1))
    _, outcomes, _ = run(trace, RunSpec(token_budget=150))
    # 100 tokens in a step; 150 and 50 in two. A decode step alone takes 1.01 s.
    assert times(outcomes) == [(pytest.approx(2.0), pytest.approx(1.01)), (pytest.approx(4.0), None)]


def test_in_a_queue_requests_wait_and_share_steps() -> None:
    trace = requests((0.0, 100, 2), (0.5, 100, 2), (50.0, 10, 1))
    result, outcomes, simulation = run(trace, RunSpec(queueing=True))
    # The second arrives while the first one's prompt takes until 2.0; both share the step to 4.01,
    # in which the first draws its last token, and the second's last one comes at 5.02.
    assert times(outcomes) == [
        (pytest.approx(2.0), pytest.approx(2.01)),
        (pytest.approx(3.51), pytest.approx(1.01)),
        (pytest.approx(1.1), None),
    ]
    assert result.seconds == pytest.approx(51.1)
    assert simulation._scheduler.stats().steps == 4


def test_one_sequence_at_a_time_queues() -> None:
    trace = requests((0.0, 100, 1), (0.0, 100, 1))
    _, outcomes, _ = run(trace, RunSpec(queueing=True, max_num_seqs=1))
    assert times(outcomes) == [(pytest.approx(2.0), None), (pytest.approx(4.0), None)]


def test_goodput_counts_what_meets_both_limits() -> None:
    trace = requests((0.0, 100, 1), (10.0, 300, 1))
    result, _, _ = run(trace, RunSpec(queueing=True, ttft_limit=2.5))
    assert result.goodput == pytest.approx(1 / 14.0)
    assert result.ttft is not None
    assert result.ttft.p50 == pytest.approx(3.0)
    assert result.ttft.mean == pytest.approx(3.0)


def test_without_a_cost_there_are_no_times() -> None:
    result, outcomes, _ = run(requests((0.0, 100, 3)), RunSpec(), timed=False)
    assert (result.ttft, result.tpot, result.goodput, result.hardware) == (None, None, None, "")
    assert times(outcomes) == [(None, None)]


def test_the_warm_up_is_not_counted() -> None:
    trace = random_trace(1, num_requests=40)
    whole, _, _ = run(trace, RunSpec(policy="turns"))
    _, outcomes, _ = run(trace, RunSpec(policy="turns"))
    half, _, _ = run(trace, RunSpec(policy="turns", warm_up=0.5))
    counted = [outcomes[str(number)] for number in range(20, 40)]
    assert half.requests == 20
    assert half.input_tokens == sum(outcome.prompt_tokens for outcome in counted)
    assert half.hit_tokens == sum(outcome.hit_tokens for outcome in counted)
    assert half.hit_tokens + sum(half.losses.values()) == half.input_tokens
    assert half.snapshots_written < whole.snapshots_written
    assert half.ttft is not None


def test_what_can_never_fit_is_counted_apart() -> None:
    trace = block_trace([(range(3), 192), (range(10, 500), 31_360), (range(3), 192)])
    page = parts_of(RunSpec(), trace, SMALL).layout.page_bytes
    result, outcomes, _ = run(trace, RunSpec(budget_bytes=40 * page, policy="turns+every(64)"))
    assert (result.requests, result.refused) == (2, 1)
    assert result.hit_tokens == outcomes["2"].hit_tokens == 128
    assert result.input_tokens == 384


def test_a_budget_must_hold_a_state() -> None:
    with pytest.raises(ConfigError, match="at least one state and one KV block"):
        parts_of(RunSpec(budget_bytes=100), random_trace(0), SMALL)


@pytest.mark.parametrize("queueing", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_a_run_can_be_repeated_and_leaves_an_engine_in_order(seed: int, queueing: bool) -> None:
    trace = random_trace(seed, num_requests=80)
    page = parts_of(RunSpec(), trace, SMALL).layout.page_bytes
    spec = RunSpec(budget_bytes=60 * page, queueing=queueing)
    first, outcomes, simulation = run(trace, spec)
    second, again, _ = run(trace, spec)
    assert outcomes == again
    assert first.losses == second.losses
    assert 0 < first.hit_tokens < first.input_tokens
    assert first.hit_tokens + sum(first.losses.values()) == first.input_tokens
    assert max(sample.state_bytes + sample.kv_bytes for sample in first.samples) <= 60 * page
    assert sum(first.written_by_depth) == first.snapshots_written >= first.snapshots_used > 0
    simulation._scheduler.check()
    assert simulation._scheduler.stats().pages.leased == 0


@pytest.mark.parametrize("seed", range(4))
def test_hits_and_losses_add_up_behind_a_warm_up_that_ends_among_running_requests(seed: int) -> None:
    trace = random_trace(seed, num_requests=60)
    spec = RunSpec(policy="turns", queueing=True, max_num_seqs=4, token_budget=100, warm_up=1 / 3)
    result, outcomes, _ = run(trace, spec)
    counted = [outcomes[str(number)] for number in range(20, 60)]
    assert result.requests == 40
    assert result.input_tokens == sum(outcome.prompt_tokens for outcome in counted)
    assert result.hit_tokens == sum(outcome.hit_tokens for outcome in counted)
    assert result.hit_tokens + sum(result.losses.values()) == result.input_tokens


def test_refused_requests_are_part_of_the_warm_up() -> None:
    trace = block_trace([(range(3), 192), (range(10, 500), 31_360), (range(3), 192), (range(3), 192)])
    page = parts_of(RunSpec(), trace, SMALL).layout.page_bytes
    result, _, _ = run(trace, RunSpec(budget_bytes=40 * page, policy="turns+every(64)", warm_up=0.75))
    assert (result.requests, result.refused) == (1, 1)
    assert (result.input_tokens, result.hit_tokens, sum(result.losses.values())) == (192, 128, 64)


def test_goodput_is_that_of_the_time_behind_the_warm_up() -> None:
    trace = requests((0.0, 100, 1), (100.0, 100, 1), (102.0, 100, 1))
    result, _, _ = run(trace, RunSpec(queueing=True, ttft_limit=2.5, warm_up=0.4))
    assert result.goodput == pytest.approx(2 / 4.0)
    assert result.seconds == pytest.approx(104.0)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("warm_up", [0.0, 0.5])
def test_depths_count_each_snapshot_once(seed: int, warm_up: float) -> None:
    trace = random_trace(seed, num_requests=60)
    spec = RunSpec(policy="adaptive(spare=64)", queueing=seed == 0, warm_up=warm_up)
    result, _, _ = run(trace, spec)
    assert sum(result.written_by_depth) == result.snapshots_written
    assert sum(result.used_by_depth) == result.snapshots_used
    assert warm_up or result.snapshots_used > 0
    pairs = zip(result.used_by_depth, result.written_by_depth, strict=True)
    assert all(used <= written for used, written in pairs)


@pytest.mark.parametrize("queueing", [False, True])
@pytest.mark.parametrize("seconds", [math.inf, math.nan, 1e300])
def test_a_step_that_takes_forever_is_refused(seconds: float, queueing: bool) -> None:
    class Endless(LinearCost):
        def seconds(self, work: StepWork) -> float:
            return seconds

    spec, trace = RunSpec(queueing=queueing), random_trace(0, num_requests=3)
    with pytest.raises(ConfigError, match=r"A step of .* on a second a step. Mend the figures"):
        Simulation(spec, trace, parts_of(spec, trace, SMALL), Endless()).run()


def test_blocks_are_as_long_without_a_limit_as_with_one() -> None:
    """``aligned`` grows the block; a page's bytes are those of the grown one."""
    trace, (_, model) = random_trace(0), find_model("kimi-linear")
    limited, unlimited = (
        parts_of(RunSpec(layout="aligned", budget_bytes=budget), trace, model).layout
        for budget in (10**11, None)
    )
    assert limited.block_size > trace.block_size
    assert (unlimited.block_size, unlimited.page_bytes) == (limited.block_size, limited.page_bytes)
