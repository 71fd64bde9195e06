"""What losses of spot machines leave of a prefill instance, in a plan; formulas in `spot`."""

from __future__ import annotations

import math

from milepost.planner.disagg.lengths import Mix
from milepost.planner.disagg.plan import Balance, SpotPlan
from milepost.planner.disagg.question import DisaggQuestion
from milepost.planner.disagg.rates import PrefillRate
from milepost.planner.disagg.spot import SpotLoss, spot_loss
from milepost.planner.worksheet import Worksheet

__all__ = ["note_losses", "spot_of", "with_losses"]


def with_losses(rate: PrefillRate, mix: Mix, ask: DisaggQuestion) -> tuple[PrefillRate, SpotLoss | None]:
    """An instance of which losses leave less, and what they come to; the same one and None without any."""
    if not ask.loss_rate_per_hour:
        return rate, None
    prefills = [
        (share.weight, rate.instance.prefill_seconds(share.uncached_tokens, share.cached_tokens))
        for share in mix.shares
    ]
    loss = spot_loss(ask.loss_rate_per_hour, ask.restart_seconds, prefills)
    return rate._replace(requests_per_second=rate.requests_per_second / loss.capacity_factor), loss


def note_losses(sheet: Worksheet, rate: PrefillRate, loss: SpotLoss | None, ask: DisaggQuestion) -> None:
    """What an instance is counted as, with losses: ``prefill.counted_requests_per_second``."""
    name = "prefill.counted_requests_per_second"
    if loss is None:
        sheet.derive(name, "prefill.requests_per_second", "requests/s", meaning="nothing is lost")
        return
    sheet.given("spot.loss_rate_per_hour", ask.loss_rate_per_hour, "", "--spot-loss")
    sheet.given("spot.losses_per_second", loss.loss_rate_per_second, "1/s", "-log(1 - loss rate) / 3600")
    sheet.given("spot.restart_seconds", ask.restart_seconds, "seconds", "--restart")
    sheet.given(
        "spot.redone_share", loss.redone_share, "", "(exp(nu S) - 1) / (nu S) - 1 over the mix", "of the work"
    )
    sheet.derive("spot.availability", "1 / (1 + spot.losses_per_second * spot.restart_seconds)", "")
    sheet.derive(
        "spot.capacity_factor",
        "(1 + spot.redone_share) / spot.availability",
        "instances",
        meaning="for each that would do without losses",
    )
    sheet.check("spot.capacity_factor", loss.capacity_factor)
    sheet.derive(
        name, "prefill.requests_per_second / spot.capacity_factor", "requests/s", meaning="with losses"
    )
    sheet.check(name, rate.requests_per_second)


def spot_of(sheet: Worksheet, loss: SpotLoss | None, balance: Balance) -> SpotPlan | None:
    """What losses come to in a balance; None without any."""
    if loss is None:
        return None
    needed = sheet.derive(
        "spot.needed_instances",
        "requests_per_second / prefill.requests_per_second",
        "instances",
        meaning="without losses",
    )
    redone = sheet.derive(
        "spot.redone_tokens_per_second",
        "requests_per_second * mix.uncached_tokens * spot.redone_share",
        "tokens/s",
    )
    return SpotPlan(
        loss=loss,
        needed_instances=needed,
        instances=balance.prefill_instances,
        extra_instances=balance.prefill_instances - max(1, math.ceil(needed - 1e-9)),
        redone_tokens_per_second=redone,
    )
