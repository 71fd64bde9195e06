"""Prefill machines that may be taken away: work lost and done again, and how many more are needed.

Losses are a Poisson process with rate nu = -log(1 - p), where p of the instances are lost within an hour. A
prefill of S seconds that starts anew whenever its instance is lost takes (exp(nu S) - 1) / nu seconds of
computing in the mean. A lost instance is away for R seconds, until another one has been found and has loaded
the weights:

    redone        (exp(nu S) - 1) / (nu S) - 1      of the work
    availability  1 / (1 + nu R)
    instances     ceil(needed * (1 + redone) / availability)

A request's prefill is all that is lost: what it has sent stays valid at the decode side. The prefix cache of
a lost instance is gone, too, and is not counted here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from milepost.errors import ConfigError

__all__ = ["SpotLoss", "spot_loss"]

HOUR = 3600.0
MOST_LOSSES = 20.0
"""In the time of one prefill, in the mean: beyond, it starts anew exp(20) = 500 million times."""
_SMALL = 1e-4


class SpotLoss(msgspec.Struct, frozen=True, kw_only=True):
    """What losses come to.

    Attributes:
        loss_rate_per_hour: share of the instances that are lost within an hour.
        loss_rate_per_second: of one instance.
        restart_seconds: until a lost instance is replaced.
        redone_share: of the prefill work, done again.
        lost_prefill_share: of the prefills, hit by a loss.
        availability_share: share of the time in which an instance serves.
        capacity_factor: instances for each that would do without losses.
    """

    loss_rate_per_hour: float
    loss_rate_per_second: float
    restart_seconds: float
    redone_share: float
    lost_prefill_share: float
    availability_share: float
    capacity_factor: float


def spot_loss(
    loss_rate_per_hour: float, restart_seconds: float, prefills: Sequence[tuple[float, float]]
) -> SpotLoss:
    """Losses of a mix of prefills.

    Args:
        loss_rate_per_hour: share of the instances that are lost within an hour, 0 <= rate < 1.
        restart_seconds: until a lost instance is replaced, 0 or more.
        prefills: (weight, seconds) of each kind of request.

    Raises:
        ConfigError: a rate or time outside its range, or so many losses that a prefill hardly ever ends.
    """
    if not 0.0 <= loss_rate_per_hour < 1.0:  # also refuses NaN
        raise ConfigError(
            f"The loss rate of spot instances must be a share an hour, at least 0 and below 1. "
            f"Given: {loss_rate_per_hour}."
        )
    if not 0.0 <= restart_seconds < math.inf:
        raise ConfigError(f"The restart time must be 0 seconds or more. Given: {restart_seconds}.")
    rate = -math.log1p(-loss_rate_per_hour) / HOUR
    work = math.fsum(weight * seconds for weight, seconds in prefills)
    longest = max(seconds for _, seconds in prefills)
    if rate * longest > MOST_LOSSES:
        most = -math.expm1(-MOST_LOSSES * HOUR / longest)
        raise ConfigError(
            f"A loss rate of {loss_rate_per_hour} an hour is too many to finish a prefill of {longest:,.0f} "
            f"seconds. The highest that does: {math.floor(most * 1e6) / 1e6:g}."
        )
    redone = math.fsum(weight * seconds * _redone(rate * seconds) for weight, seconds in prefills) / work
    weights = math.fsum(weight for weight, _ in prefills)
    hit = math.fsum(weight * -math.expm1(-rate * seconds) for weight, seconds in prefills) / weights
    availability = 1.0 / (1.0 + rate * restart_seconds)
    return SpotLoss(
        loss_rate_per_hour=loss_rate_per_hour,
        loss_rate_per_second=rate,
        restart_seconds=restart_seconds,
        redone_share=redone,
        lost_prefill_share=hit,
        availability_share=availability,
        capacity_factor=(1.0 + redone) / availability,
    )


def _redone(losses: float) -> float:
    """Share of a prefill's work that is done again, (exp(x) - 1) / x - 1, by its losses x in the mean."""
    if losses < _SMALL:  # where the difference of like numbers leaves nothing, or divides by 0
        return losses / 2 * (1.0 + losses / 3 * (1.0 + losses / 4))
    return math.expm1(losses) / losses - 1.0
