"""Bytes of dispatch and combine: the published ones, and where they go."""

from __future__ import annotations

from itertools import combinations

import pytest

from milepost.planner.moe.exchange import note_exchange, ranks_reached
from milepost.planner.moe.question import MoeQuestion
from milepost.planner.worksheet import Worksheet
from milepost.sim.cost.hardware import find_hardware
from tests.planner.moe.sheets import facts


def test_k3_sends_172_kb_a_token_and_layer_against_344_at_the_hidden_size() -> None:
    sheet = facts()
    assert sheet["token_layer_bytes"] == 16 * 3 * 3584 == 172_032
    assert sheet["token_layer_bytes_at_hidden"] == 16 * 3 * 7168 == 344_064
    assert sheet["latent_saving"] == 2
    assert sheet["token_bytes"] == 92 * 172_032


def test_an_expert_of_k3_has_17_5_mb() -> None:
    sheet = facts()
    assert sheet["expert_bytes"] == 17_547_264
    assert sheet["model_expert_bytes"] == pytest.approx(1.446e12, rel=1e-3)


def test_without_a_latent_both_widths_are_one() -> None:
    sheet = facts("kimi-linear", "h200")
    assert sheet["token_layer_bytes"] == sheet["token_layer_bytes_at_hidden"] == 8 * 3 * 2304
    assert sheet["latent_saving"] == 1


def test_communication_hides_below_two_d_flop_a_byte() -> None:
    sheet = facts()
    assert sheet["balance_point"] == 2 * 3072 == 6144
    assert sheet["balance_point_at_hidden"] == 3072
    # What FP8 and links reach on GB300 inside its domain; bytes beyond it are nine times as dear.
    share = find_hardware("gb300").efficiency
    assert sheet["device.balance"] == pytest.approx(5e15 * share.experts / (900e9 * share.network))
    assert sheet["device.balance"] < sheet["balance_point"] < sheet["device.scale_out_balance"]


@pytest.mark.parametrize(
    ("dispatch", "combine", "per_element"),
    [("bf16", "bf16", 4), ("fp8", "bf16", 3), ("mxfp8", "bf16", 3 + 1 / 32), ("nvfp4", "fp8", 1.5625)],
)
def test_dtypes_are_options(dispatch: str, combine: str, per_element: float) -> None:
    sheet = facts(question=MoeQuestion(dispatch_dtype=dispatch, combine_dtype=combine))
    assert sheet["token_layer_bytes"] == 16 * 3584 * per_element
    assert sheet["balance_point"] == pytest.approx(2 * 3 * 3072 / per_element)


def exchange(ranks: int, tokens: float, *, shared: bool = False, busiest: float = 1.0) -> Worksheet:
    sheet = facts(ranks=ranks)
    sheet.given("x.rank_tokens", tokens, "tokens", "a test")
    sheet.given("x.copies", 16, "", "a test")
    sheet.given("x.max_over_mean", busiest, "", "a test")
    note_exchange(sheet, "x", f"ep{ranks}", shared_tokens=shared)
    return sheet


@pytest.mark.parametrize(
    ("ranks", "stay", "domain", "cross"),
    [(1, 1, 0, 0), (8, 1 / 8, 7 / 8, 0), (72, 1 / 72, 71 / 72, 0), (144, 1 / 144, 71 / 144, 72 / 144)],
)
def test_what_stays_what_is_near_and_what_is_far(
    ranks: int, stay: float, domain: float, cross: float
) -> None:
    sheet = exchange(ranks, 64)
    for way, size in (("dispatch", 1), ("combine", 2)):
        whole = 64 * 16 * 3584 * size
        assert sheet[f"x.{way}.bytes"] == whole
        for part, share in (("stay", stay), ("domain", domain), ("cross", cross)):
            assert sheet[f"x.{way}.{part}_bytes"] == pytest.approx(whole * share)


def test_time_waits_for_the_busiest_rank_and_the_slower_link() -> None:
    share = find_hardware("gb300").efficiency.network
    near, sent = exchange(8, 64, busiest=1.5), 64 * 16 * 3584
    assert near["x.dispatch.seconds"] == pytest.approx(6e-6 + 1.5 * 7 / 8 * sent / (900e9 * share))
    far = exchange(144, 64)
    assert far["x.combine.seconds"] == pytest.approx(2e-5 + 0.5 * sent * 2 / (100e9 * share))


def test_nothing_moves_where_all_ranks_have_all_tokens_or_there_is_one() -> None:
    shared = exchange(8, 64, shared=True)
    assert shared["x.dispatch.bytes"] == shared["x.combine.seconds"] == 0
    assert exchange(1, 64)["x.dispatch.seconds"] == 0


def test_ranks_reached_is_what_counting_all_choices_gives() -> None:
    """6 experts on 3 ranks, 2 of them chosen: by all 15 choices."""
    reached = [len({expert // 2 for expert in chosen}) for chosen in combinations(range(6), 2)]
    assert ranks_reached(6, 2, 3) == pytest.approx(sum(reached) / len(reached))
    assert ranks_reached(896, 16, 1) == 1
    assert ranks_reached(896, 16, 896) == pytest.approx(16)
    assert 7 < ranks_reached(896, 16, 8) < 8
