"""The search: halving against trying every batch, the front against its definition, and what is refused."""

from __future__ import annotations

import math
import random
import time

import msgspec
import pytest

from milepost.planner.serve.question import ServeQuestion
from milepost.planner.serve.request_memory import fits, largest_batch
from milepost.planner.serve.search import (
    deployment_counts,
    divisions,
    keeps_limits,
    largest_under_limits,
    pareto_front,
    replica_sizes,
    search,
)
from milepost.planner.serve.speculation import Speculation
from milepost.planner.serve.steady import ServePoint
from milepost.shapes.names import find_shape
from milepost.sim.cost.hardware import find_hardware
from milepost.sim.cost.part_work import RankSizes
from tests.planner.serve.cases import arranged

K3 = find_shape("kimi-k3")[1]
GB300 = find_hardware("gb300")
BF16_FP32 = (2, 4)


def question(**fields: object) -> ServeQuestion:
    return msgspec.structs.replace(ServeQuestion(), **fields)


@pytest.mark.parametrize("slots", [1.0, 5.0])
@pytest.mark.parametrize("drafts", [None, Speculation(drafts=3, accepted_length=2.0, draft_parameters=1e9)])
@pytest.mark.parametrize("lengths", [(8192, 1024), (200_000, 100), (16, 3000)])
def test_the_largest_batch_is_the_last_that_fits(
    slots: float, drafts: Speculation | None, lengths: tuple[int, int]
) -> None:
    asked = question(input_tokens=lengths[0], output_tokens=lengths[1], slots=slots, speculation=drafts)
    arrangement = arranged(asked)
    most = largest_batch(arrangement, asked, 2048)
    ceiling = 2047 // arrangement.verified  # room for one token of a prompt
    assert 0 < most <= ceiling
    assert fits(arrangement, asked, 2048, most)
    assert most == ceiling or not fits(arrangement, asked, 2048, most + 1)


def test_memory_refuses_and_shrinks_the_batch() -> None:
    asked = question()
    assert largest_batch(arranged(asked, tensor_parallel=4), asked, 2048) == 0  # the weights don't fit
    five = question(slots=5.0)
    one_slot, five_slots = (
        largest_batch(arranged(asked), asked, 8192),
        largest_batch(arranged(five), five, 8192),
    )
    # 56.2 MB of a state and 254.8 MB of KV, or five states of it: 311 MB against 536 MB a request.
    assert five_slots / one_slot == pytest.approx(311.0 / 535.7, rel=0.03)


def test_halving_finds_what_trying_every_batch_finds() -> None:
    chance = random.Random(7)
    for _ in range(20):
        asked = question(
            input_tokens=chance.choice([100, 3000, 20_000]),
            output_tokens=chance.choice([50, 500]),
            ttft_limit_seconds=chance.choice([None, 0.3, 2.0]),
            tpot_limit_seconds=chance.choice([None, 0.012, 0.03]),
        )
        arrangement = arranged(asked, model="kimi-linear", hardware="h200", tensor_parallel=1)
        most = min(300, largest_batch(arrangement, asked, 4096))
        every = [arrangement.point(batch, 4096) for batch in range(1, most + 1)]
        good = [point for point in every if point is not None and keeps_limits(asked, point)]
        found = largest_under_limits(arrangement, asked, 4096, most)
        assert found == (good[-1] if good else None)


def test_every_division_is_whole() -> None:
    found = list(divisions(K3, 32, BF16_FP32))
    assert len(found) == len(set(found))
    for sizes in found:
        assert sizes.ranks == 32
        assert K3.recurrent is not None
        assert K3.recurrent.heads % sizes.tensor_parallel == 0
        assert sizes.ranks % sizes.expert_ranks == 0
        assert sizes.expert_ranks % sizes.tensor_parallel == 0
        assert sizes.tensor_parallel % sizes.context_parallel == 0
    arrangements = {(one.tensor_parallel, one.expert_ranks, one.context_parallel) for one in found}
    assert {(1, 32, 1), (8, 8, 8), (16, 32, 4), (32, 32, 1)} <= arrangements


def test_models_without_experts_or_attention_heads_in_eights_have_divisions_too() -> None:
    dense = find_shape("qwen3.5-4b")[1]
    assert {one.expert_parallel for one in divisions(dense, 4, BF16_FP32)} == {0}
    assert not list(divisions(K3, 5, BF16_FP32)) or all(
        one.tensor_parallel == 1 for one in divisions(K3, 5, BF16_FP32)
    )


def test_a_range_is_its_ends_and_powers_of_two() -> None:
    assert deployment_counts(8, 64) == (8, 16, 32, 64)
    assert deployment_counts(6, 24) == (6, 8, 16, 24)
    assert deployment_counts(7, 7) == (7,)
    assert replica_sizes((6, 8)) == (1, 2, 3, 4, 6, 8)


def made(user: float, gpu: float) -> ServePoint:
    values: dict[str, float] = dict.fromkeys(ServePoint.__struct_fields__, 1)
    values |= {"tokens_per_second_per_user": user, "tokens_per_second_per_gpu": gpu}
    return msgspec.convert(values, ServePoint)


def test_the_front_is_what_no_other_beats() -> None:
    chance = random.Random(3)
    points = [made(chance.randint(1, 20), chance.randint(1, 20)) for _ in range(200)]
    speeds = {(one.tokens_per_second_per_user, one.tokens_per_second_per_gpu) for one in points}
    beaten = {
        (user, gpu)
        for user, gpu in speeds
        if any(u >= user and g >= gpu and (u, g) != (user, gpu) for u, g in speeds)
    }
    front = [(one.tokens_per_second_per_user, one.tokens_per_second_per_gpu) for one in pareto_front(points)]
    assert front == sorted(speeds - beaten)
    assert pareto_front([]) == ()


def test_a_search_counts_what_it_refuses_and_keeps_its_limits() -> None:
    asked = question(ttft_limit_seconds=0.4, tpot_limit_seconds=0.012)
    candidates = [one for ranks in (4, 8, 16) for one in divisions(K3, ranks, BF16_FP32)]
    found = search(K3, GB300, asked, candidates, (8, 16))
    counts = found.refusals
    reasons = (counts.memory, counts.prefill, counts.tpot, counts.ttft, counts.kept)
    assert counts.considered == sum(reasons) == 7 * len(candidates)
    assert counts.memory >= 7 * len(list(divisions(K3, 4, BF16_FP32)))
    assert counts.tpot > 0
    assert found.best is not None
    assert keeps_limits(asked, found.best)
    kept = [point for point in found.front if keeps_limits(asked, point)]
    assert max(point.tokens_per_second_per_gpu for point in kept) == found.best.tokens_per_second_per_gpu
    assert found.fastest_token is not None
    assert found.fastest_token.tpot_seconds == min(point.tpot_seconds for point in found.front)
    assert [one.gpus for one in found.by_count] == [8, 16]
    assert all(one.gpus == one.replicas * one.point.gpus for one in found.by_count)
    sixteen = found.by_count[1].point
    assert sixteen.tokens_per_second_per_gpu == found.best.tokens_per_second_per_gpu


def test_out_of_reach_has_no_best() -> None:
    asked = question(tpot_limit_seconds=1e-4)
    found = search(K3, GB300, asked, [RankSizes(tensor_parallel=8)], (8,))
    assert found.best is None
    assert found.by_count == ()
    assert found.fastest_token is not None
    assert found.refusals.tpot == 7


def test_a_search_over_a_rack_takes_seconds() -> None:
    asked = question(tpot_limit_seconds=0.05, ttft_limit_seconds=2.0)
    started = time.process_time()
    candidates = [
        one for ranks in replica_sizes(deployment_counts(8, 64)) for one in divisions(K3, ranks, BF16_FP32)
    ]
    search(K3, GB300, asked, candidates, deployment_counts(8, 64))
    assert time.process_time() - started < 10.0


def test_the_times_of_points_are_finite() -> None:
    asked = question(output_tokens=1)
    found = search(K3, GB300, asked, [RankSizes(tensor_parallel=8)], (8,))
    assert all(math.isfinite(point.ttft_seconds) for point in found.front)
