"""Losses of spot machines."""

from __future__ import annotations

import math
import random

import pytest

from milepost.errors import ConfigError
from milepost.planner.disagg.spot import spot_loss


def test_nothing_is_lost_at_rate_0() -> None:
    loss = spot_loss(0.0, 300.0, [(1.0, 20.0)])
    assert (loss.redone_share, loss.lost_prefill_share) == (0.0, 0.0)
    assert (loss.availability_share, loss.capacity_factor) == (1.0, 1.0)


def test_a_share_an_hour_is_a_rate() -> None:
    loss = spot_loss(0.5, 0.0, [(1.0, 1.0)])
    assert math.exp(-loss.loss_rate_per_second * 3600) == pytest.approx(0.5)


def test_work_done_again_is_what_restarts_come_to() -> None:
    """Prefill of 600 s on machines of which 90 % are lost within an hour, started anew at each loss."""
    draw = random.Random(1)
    loss = spot_loss(0.9, 0.0, [(1.0, 600.0)])
    spent, hits, runs = 0.0, 0, 40_000
    for _ in range(runs):
        lost = draw.expovariate(loss.loss_rate_per_second)
        hits += lost < 600.0
        while lost < 600.0:
            spent += lost
            lost = draw.expovariate(loss.loss_rate_per_second)
        spent += 600.0
    assert spent / runs / 600.0 - 1.0 == pytest.approx(loss.redone_share, rel=0.03)
    assert hits / runs == pytest.approx(loss.lost_prefill_share, rel=0.03)


def test_lost_machines_are_away() -> None:
    loss = spot_loss(0.2, 600.0, [(0.5, 1.0), (0.5, 9.0)])
    away = loss.loss_rate_per_second * 600.0
    assert loss.availability_share == pytest.approx(1 / (1 + away))
    assert loss.capacity_factor == pytest.approx((1 + loss.redone_share) * (1 + away))


@pytest.mark.parametrize("rate", [1.0, 1.5, -0.1, math.nan, math.inf])
def test_rates_outside_a_share_are_refused(rate: float) -> None:
    with pytest.raises(ConfigError, match="at least 0 and below 1"):
        spot_loss(rate, 300.0, [(1.0, 1.0)])


@pytest.mark.parametrize("restart", [-1.0, math.nan, math.inf])
def test_restarts_without_end_are_refused(restart: float) -> None:
    with pytest.raises(ConfigError, match="0 seconds or more"):
        spot_loss(0.1, restart, [(1.0, 1.0)])


@pytest.mark.parametrize("rate", [5e-324, 1e-320, 1e-17, 1e-9])
def test_the_rarest_losses_cost_no_less_than_none(rate: float) -> None:
    loss = spot_loss(rate, 300.0, [(0.3, 0.057), (0.7, 0.19)])
    assert 0.0 <= loss.redone_share < 1e-9
    assert 1.0 <= loss.capacity_factor < 1.0 + 1e-9


def test_small_losses_follow_the_series() -> None:
    """(exp(x) - 1) / x - 1 = x / 2 + x^2 / 6 + ..., of which a difference of like numbers leaves nothing."""
    loss = spot_loss(1e-12, 0.0, [(1.0, 2.0)])
    assert loss.redone_share == pytest.approx(loss.loss_rate_per_second * 2.0 / 2, rel=1e-6, abs=0)


@pytest.mark.parametrize("seconds", [200_000.0, 1e9])
def test_a_prefill_that_hardly_ever_ends_is_refused(seconds: float) -> None:
    with pytest.raises(ConfigError, match=r"too many to finish a prefill of .* seconds"):
        spot_loss(1 - 1e-16, 300.0, [(1.0, seconds)])
