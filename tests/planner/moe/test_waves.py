"""Waves of experts: the published counts, and what overlap gains."""

from __future__ import annotations

import pytest

from milepost.planner.moe.waves import WaveShape, note_overlap, note_waves
from milepost.planner.worksheet import Worksheet
from tests.planner.moe.sheets import facts


def shape_of(ranks: int, tokens: float, *, model: str = "kimi-k3", experts: int = 896) -> WaveShape:
    sheet = facts(model)
    sheet.given("tokens", tokens, "tokens", "a test")
    sheet.given("held", experts // ranks, "experts", "a test")
    return note_waves(sheet, "wave", "tokens", "held")


@pytest.mark.parametrize("tokens", [32, 64, 128, 256, 512])
def test_k3_on_eight_ranks_computes_seven_experts_a_wave(tokens: int) -> None:
    shape = shape_of(8, tokens)
    assert (shape.experts_per_wave, shape.waves, shape.tiles_per_expert) == (7, 16, 48)


def test_k3_on_eight_ranks_computes_one_expert_a_wave_in_prefill() -> None:
    shape = shape_of(8, 8192)
    assert (shape.experts_per_wave, shape.waves, shape.tile_rows) == (1, 112, 192)
    assert shape.tiles_per_expert == 7 * 48  # ceil(1,171 / 192) * 2 * 3,072 / 128


@pytest.mark.parametrize(("tokens", "experts"), [(32, 7), (64, 7), (128, 7), (256, 7), (512, 4)])
def test_k3_on_thirty_two_ranks(tokens: int, experts: int) -> None:
    assert shape_of(32, tokens).experts_per_wave == experts


@pytest.mark.parametrize(
    ("per_expert", "rows"),
    [
        *((1, 16), (8.5, 16), (8.6, 32), (16.5, 32), (16.6, 64), (32.5, 64), (32.6, 96)),
        *((64.5, 96), (64.6, 128), (96.5, 128), (96.6, 192), (5000, 192)),
    ],
)
def test_rows_of_a_tile_grow_at_the_published_thresholds(per_expert: float, rows: int) -> None:
    # 112 experts a rank and 16 a token: 7 tokens of a rank are one an expert.
    shape = shape_of(8, per_expert * 7)
    assert shape.tokens_per_expert == pytest.approx(per_expert)
    assert shape.tile_rows == rows


def test_below_one_token_an_expert_all_are_one_wave() -> None:
    shape = shape_of(8, 6)
    assert (shape.experts_per_wave, shape.waves) == (112, 1)


@pytest.mark.parametrize("ranks", [1, 2, 4, 7, 14, 64, 128, 448, 896])
@pytest.mark.parametrize("tokens", [1, 100, 3000])
def test_waves_are_all_of_one_size(ranks: int, tokens: int) -> None:
    shape = shape_of(ranks, tokens)
    assert shape.experts_per_wave * shape.waves == 896 // ranks


def overlapped(dispatch: float, experts: float, combine: float, waves: int) -> Worksheet:
    sheet = facts()
    for name, value in (("dispatch", dispatch), ("experts", experts), ("combine", combine)):
        sheet.given(f"x.{name}.seconds", value, "seconds", "a test")
    sheet.derive("x.exchange.seconds", "x.dispatch.seconds + x.combine.seconds", "seconds")
    sheet.derive("x.serial.seconds", "x.experts.seconds + x.exchange.seconds", "seconds")
    sheet.given("x.waves", waves, "waves", "a test")
    note_overlap(sheet, "x")
    return sheet


@pytest.mark.parametrize("r", [0.1, 0.5, 0.92, 1.0, 1.5, 4.0])
@pytest.mark.parametrize("waves", [1, 16])
def test_waves_take_the_longer_and_one_wave_of_the_shorter(r: float, waves: int) -> None:
    sheet = overlapped(r / 3, 1.0, 2 * r / 3, waves)
    assert sheet["x.serial.seconds"] == pytest.approx(1 + r)
    assert sheet["x.exchange_ratio"] == pytest.approx(r)
    assert sheet["x.waved.seconds"] == pytest.approx(max(1, r) + min(1, r) / waves)


def test_one_wave_gains_nothing() -> None:
    assert overlapped(0.2, 1.0, 0.4, 1)["x.waves_gain"] == pytest.approx(1.0)


def test_the_published_theory_takes_equal_parts_and_many_waves() -> None:
    assert overlapped(1 / 3, 1.0, 2 / 3, 24)["x.waves_gain"] == pytest.approx(1.92)
    # Without any fill and drain, 1.92x is r = 0.92.
    assert overlapped(0.92 / 3, 1.0, 1.84 / 3, 10**9)["x.waves_gain"] == pytest.approx(1.92)


@pytest.mark.parametrize("r", [0.5, 0.75, 1.0, 1.5, 2.0])
def test_halves_gain_half_where_a_part_of_each_is_hidden(r: float) -> None:
    # Two of three products beside a third of the bytes, the last beside two thirds of them.
    assert overlapped(r / 3, 1.0, 2 * r / 3, 16)["x.halves_gain"] == pytest.approx(1.5)


def test_halves_gain_the_published_of_comet_where_all_is_hidden() -> None:
    assert overlapped(0.14, 1.0, 0.28, 16)["x.halves_gain"] == pytest.approx(1.42)
