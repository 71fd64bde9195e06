"""Prefill sides that were looked at: what each takes, serves and costs, balanced exactly."""

from __future__ import annotations

from collections.abc import Sequence

from milepost.errors import ConfigError
from milepost.planner.disagg.lengths import Mix
from milepost.planner.disagg.losses import with_losses
from milepost.planner.disagg.plan import PrefillChoice
from milepost.planner.disagg.question import DisaggQuestion
from milepost.planner.disagg.rates import DecodeRate, prefill_rate
from milepost.planner.disagg.sides import Looked, Sides, prefill_instances

__all__ = ["best_choice", "choice_rows"]

_HOUR = 3600.0
_MILLION = 1e6


def choice_rows(
    ask: DisaggQuestion, sides: Sides, mix: Mix, looked: Sequence[Looked], decode: DecodeRate
) -> tuple[PrefillChoice, ...]:
    """The prefill instances that were looked at, and those of the decode side's hardware where it is another.

    The price of decode hardware is the measure: a prefill there costs its device-seconds at that price, and
    is never lost.
    """
    every = [(Looked(with_losses(one.rate, mix, ask)[0], one.refused), ask.prefill_price) for one in looked]
    if sides.prefill_hardware.name != sides.decode_hardware.name:
        try:
            same = prefill_instances(ask, sides, sides.decode_hardware)
        except ConfigError:
            same = []
        every += [(Looked(prefill_rate(one, sides.sizes, mix, ask), ""), ask.decode_price) for one in same]
    measure = _device_seconds(every, sides)
    return tuple(_choice(one, price, decode, mix, ask, measure) for one, price in every)


def best_choice(choices: Sequence[PrefillChoice]) -> int | None:
    """The place of the one that costs least, or without prices that serves most a device; None for none."""
    usable = [place for place, one in enumerate(choices) if not one.refused]
    if not usable:
        return None
    return min(
        usable,
        key=lambda place: (
            choices[place].cost_per_million_output_tokens or 0.0,
            -choices[place].output_tokens_per_second_per_device,
        ),
    )


def _device_seconds(every: Sequence[tuple[Looked, float]], sides: Sides) -> float:
    """Device-seconds of a prefill on the decode side's hardware, at best; 0 where that was not looked at."""
    found = [
        one.rate.instance.devices / one.rate.requests_per_second
        for one, _ in every
        if one.rate.instance.hardware.name == sides.decode_hardware.name and one.rate.requests_per_second > 0
    ]
    return min(found, default=0.0)


def _choice(
    one: Looked, price: float, decode: DecodeRate, mix: Mix, ask: DisaggQuestion, measure: float
) -> PrefillChoice:
    rate = one.rate
    instance, requests = rate.instance, rate.requests_per_second
    per_device, refused = 0.0, one.refused
    cost: float | None = None
    if requests > 0 and not refused:
        # Balanced exactly, not by whole instances: what devices of both sides a request a second takes.
        needed = instance.devices / requests + decode.instance.devices / decode.requests_per_second
        per_device = mix.output_tokens / needed
        if price or ask.decode_price:
            hourly = price * instance.devices / requests
            hourly += ask.decode_price * decode.instance.devices / decode.requests_per_second
            cost = hourly / _HOUR / mix.output_tokens * _MILLION
    return PrefillChoice(
        hardware=instance.hardware.name,
        tensor_parallel=instance.sizes.tensor_parallel,
        data_parallel=instance.sizes.data_parallel,
        devices=instance.devices,
        prefill_seconds=rate.late_seconds,
        requests_per_second_per_device=requests / instance.devices,
        output_tokens_per_second_per_device=per_device,
        cost_per_million_output_tokens=cost,
        even_price_per_device_hour=ask.decode_price * measure * requests / instance.devices or None,
        refused=refused or ("the TTFT limit" if requests <= 0 else ""),
    )
