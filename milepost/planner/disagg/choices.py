"""Prefill sides that were looked at: what each takes, serves and costs, balanced exactly."""

from __future__ import annotations

from collections.abc import Sequence

from milepost.errors import ConfigError
from milepost.planner.disagg.lengths import Mix
from milepost.planner.disagg.losses import with_losses
from milepost.planner.disagg.plan import PrefillChoice
from milepost.planner.disagg.question import DisaggQuestion
from milepost.planner.disagg.sheets import number_key
from milepost.planner.disagg.sides import Looked, Sides, look, prefill_instances
from milepost.planner.worksheet import Worksheet

__all__ = ["best_choice", "choice_rows"]


def choice_rows(
    sheet: Worksheet,
    ask: DisaggQuestion,
    sides: Sides,
    mix: Mix,
    looked: Sequence[Looked],
) -> tuple[PrefillChoice, ...]:
    """The prefill instances that were looked at, and those of the decode side's hardware where it is another.

    The price of decode hardware is the measure: a prefill there costs its device-seconds at that price, and
    is never lost.
    """
    every = [(Looked(with_losses(one.rate, mix, ask)[0], one.refused), ask.prefill_price) for one in looked]
    if sides.prefill_hardware != sides.decode_hardware:
        try:
            same = prefill_instances(ask, sides, sides.decode_hardware, mix.longest_tokens)
        except ConfigError:
            same = []
        every += [(look(one, sides, mix, ask), ask.decode_price) for one in same]
    measure = _device_seconds(every, sides)
    if measure:
        sheet.given(
            "choice.device_seconds",
            measure,
            "device-seconds",
            "a prefill on the decode side's hardware, at best",
        )
    return tuple(_choice(sheet, one, price, ask) for one, price in every)


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
        if one.rate.instance.hardware == sides.decode_hardware and not one.refused
    ]
    return min(found, default=0.0)


def _choice(sheet: Worksheet, one: Looked, price: float, ask: DisaggQuestion) -> PrefillChoice:
    """Balanced exactly, not by whole instances: by the devices that a request a second takes."""
    instance, requests = one.rate.instance, one.rate.requests_per_second
    sizes = instance.sizes
    usable = requests > 0 and not one.refused
    key = f"choice.{number_key(instance.hardware.name)}_tp{sizes.tensor_parallel}_dp{sizes.data_parallel}"
    if f"{key}.devices" in sheet:  # of other hardware with the same name
        key = f"{key}_{len(sheet.derivations)}"
    sheet.given(f"{key}.devices", instance.devices, "devices", "arrangement")
    sheet.given(
        f"{key}.requests_per_second",
        requests,
        "requests/s",
        "as prefill.counted_requests_per_second",
        "at most",
    )
    per_device, cost, even = 0.0, None, None
    if usable:
        per_device = sheet.derive(
            f"{key}.output_tokens_per_second_per_device",
            f"mix.output_tokens / ({key}.devices / {key}.requests_per_second"
            " + decode.devices / decode.requests_per_second)",
            "tokens/s",
        )
    if usable and (price or ask.decode_price):
        sheet.given(
            f"{key}.price", price, "a device-hour", "--prefill-price, or --decode-price of its hardware"
        )
        cost = sheet.derive(
            f"{key}.cost_per_million_output_tokens",
            f"({key}.price * {key}.devices / {key}.requests_per_second"
            " + decode.price * decode.devices / decode.requests_per_second) / 3600 / mix.output_tokens * 1e6",
            "",
            meaning="in the currency of the prices",
        )
    if usable and ask.decode_price and "choice.device_seconds" in sheet:
        even = sheet.derive(
            f"{key}.even_price",
            f"decode.price * choice.device_seconds * {key}.requests_per_second / {key}.devices",
            "a device-hour",
            meaning="at which prefill costs what it does on the decode side's hardware",
        )
    return PrefillChoice(
        hardware=instance.hardware.name,
        tensor_parallel=sizes.tensor_parallel,
        data_parallel=sizes.data_parallel,
        devices=instance.devices,
        prefill_seconds=one.rate.late_seconds,
        requests_per_second_per_device=requests / instance.devices,
        output_tokens_per_second_per_device=per_device,
        cost_per_million_output_tokens=cost,
        even_price_per_device_hour=even,
        refused=one.refused,
    )
