"""The balance of both sides: instances, throughput, cost; without separation; and with losses."""

from __future__ import annotations

import math
from collections.abc import Sequence

from milepost.errors import ConfigError
from milepost.planner.disagg.balance import Counts, best_counts, colocated_requests, wait_seconds
from milepost.planner.disagg.lengths import Mix
from milepost.planner.disagg.plan import Balance, Colocated, PrefillChoice, SpotPlan
from milepost.planner.disagg.question import DisaggQuestion
from milepost.planner.disagg.rates import DecodeRate, PrefillRate, prefill_rate
from milepost.planner.disagg.sides import Looked, Sides, prefill_instances
from milepost.planner.disagg.spot import spot_loss
from milepost.planner.worksheet import Worksheet

__all__ = ["balance_of", "choice_rows", "colocated_of", "counts_of", "spot_of"]

_HOUR = 3600.0
_MILLION = 1e6


def counts_of(prefill: PrefillRate, decode: DecodeRate, ask: DisaggQuestion) -> Counts:
    """Instances of both sides: for a rate, for a number of devices, or the best small ratio.

    Raises:
        ConfigError: so many devices don't hold an instance of each.
    """
    if ask.requests_per_second:
        return Counts(
            math.ceil(ask.requests_per_second / prefill.requests_per_second - 1e-9),
            math.ceil(ask.requests_per_second / decode.requests_per_second - 1e-9),
            ask.requests_per_second,
        )
    weights = [float(prefill.instance.devices), float(decode.instance.devices)]
    if not ask.devices and ask.prefill_price and ask.decode_price:
        weights = [weights[0] * ask.prefill_price, weights[1] * ask.decode_price]
    found = best_counts(
        prefill.requests_per_second, decode.requests_per_second, weights[0], weights[1], float(ask.devices)
    )
    if found is None:
        least = prefill.instance.devices + decode.instance.devices
        raise ConfigError(
            f"--devices must be at least {least}: an instance of each side takes "
            f"{prefill.instance.devices} and {decode.instance.devices}. Given: {ask.devices}."
        )
    return found


def balance_of(sheet: Worksheet, prefill: PrefillRate, decode: DecodeRate, ask: DisaggQuestion) -> Balance:
    """How many of each side, and what they serve together.

    Raises:
        ConfigError: so many devices don't hold an instance of each, or what is asked does not fit the link.
    """
    counts = counts_of(prefill, decode, ask)
    how = "--rate" if ask.requests_per_second else "--devices" if ask.devices else "best small ratio"
    sheet.derive(
        "prefill_per_decode",
        "decode.requests_per_second / prefill.requests_per_second",
        "instances",
        meaning="prefill instances for each decode instance",
        source="arXiv:2604.15039, equation 8",
    )
    sheet.given("prefill.instances", counts.prefill, "instances", how)
    sheet.given("decode.instances", counts.decode, "instances", how)
    sheet.derive(
        "devices",
        "prefill.instances * prefill.devices + decode.instances * decode.devices",
        "devices",
    )
    served, bound = _served(sheet, counts, ask)
    sheet.derive(
        "output_tokens_per_second", "requests_per_second * mix.output_tokens", "tokens/s", meaning="of all"
    )
    sheet.derive("output_tokens_per_second_per_device", "output_tokens_per_second / devices", "tokens/s")
    sheet.derive(
        "prefill.utilization",
        "requests_per_second * prefill.filled_seconds / (prefill.instances * prefill.groups)",
        "",
        meaning="share of the prefill instances' time",
    )
    wait = wait_seconds(sheet["prefill.utilization"], prefill.instance.groups, prefill.residual_seconds)
    if math.isfinite(wait):
        sheet.derive(
            "prefill.wait_seconds",
            "prefill.utilization ** (sqrt(2 * (prefill.groups + 1)) - 1)"
            " / (prefill.groups * (1 - prefill.utilization)) * prefill.residual_seconds",
            "seconds",
            meaning="mean",
            source="Sakasegawa 1977",
        )
        sheet.check("prefill.wait_seconds", wait)
        sheet.derive(
            "ttft_seconds",
            "prefill.wait_seconds + prefill.late_seconds + prefill.late_exposed_seconds",
            "seconds",
            meaning=f"of the request at percentile {ask.ttft_percentile:g}",
        )
    sheet.derive("sent_bytes_per_second", "requests_per_second * mix.sent_bytes", "bytes/s", meaning="in all")
    sheet.derive(
        "sent_bytes_per_second_per_prefill_instance", "sent_bytes_per_second / prefill.instances", "bytes/s"
    )
    if ask.prefill_price or ask.decode_price:
        sheet.derive(
            "cost_per_million_output_tokens",
            "(prefill.instances * prefill.devices * prefill.price"
            " + decode.instances * decode.devices * decode.price) / 3600 / output_tokens_per_second * 1e6",
            "",
            meaning="in the currency of the prices",
        )
    return Balance(
        prefill_instances=counts.prefill,
        decode_instances=counts.decode,
        devices=int(sheet["devices"]),
        prefill_per_decode=sheet["prefill_per_decode"],
        prefill_requests_per_second=prefill.requests_per_second,
        decode_requests_per_second=decode.requests_per_second,
        requests_per_second=served,
        output_tokens_per_second=sheet["output_tokens_per_second"],
        output_tokens_per_second_per_device=sheet["output_tokens_per_second_per_device"],
        batch_per_group=decode.batch,
        tpot_seconds=decode.step_seconds,
        prefill_utilization=sheet["prefill.utilization"],
        wait_seconds=wait,
        ttft_seconds=wait + prefill.ttft_alone_seconds,
        sent_bytes_per_second=sheet["sent_bytes_per_second"],
        sent_bytes_per_second_per_prefill_instance=sheet["sent_bytes_per_second_per_prefill_instance"],
        cost_per_million_output_tokens=_or_zero(sheet, "cost_per_million_output_tokens"),
        bound=bound or _bound(counts, prefill, decode),
    )


def _served(sheet: Worksheet, counts: Counts, ask: DisaggQuestion) -> tuple[float, str]:
    if ask.requests_per_second:
        served = sheet.given("requests_per_second", ask.requests_per_second, "requests/s", "--rate")
        if ask.link_bytes_per_second and served * sheet["mix.sent_bytes"] > ask.link_bytes_per_second:
            most = ask.link_bytes_per_second / sheet["mix.sent_bytes"]
            sent = served * sheet["mix.sent_bytes"]
            raise ConfigError(
                f"--rate must be at most {most:.4g} requests a second for what they send to fit --link. Given: "
                f"{served:g}, which send {sent:.4g} bytes a second. With --fleet only long prompts are sent."
            )
        return served, "the rate that was asked for"
    terms = "prefill.instances * prefill.requests_per_second, decode.instances * decode.requests_per_second"
    if not ask.link_bytes_per_second:
        return sheet.derive("requests_per_second", f"min({terms})", "requests/s", meaning="of all"), ""
    sheet.given("link_bytes_per_second", ask.link_bytes_per_second, "bytes/s", "--link")
    served = sheet.derive(
        "requests_per_second",
        f"min({terms}, link_bytes_per_second / mix.sent_bytes)",
        "requests/s",
        meaning="of all",
    )
    return served, "link" if served < counts.requests_per_second * (1 - 1e-9) else ""


def _or_zero(sheet: Worksheet, name: str) -> float:
    return sheet[name] if name in sheet else 0.0  # noqa: SIM401 - a worksheet has no get


def _bound(counts: Counts, prefill: PrefillRate, decode: DecodeRate) -> str:
    by_prefill = counts.prefill * prefill.requests_per_second
    by_decode = counts.decode * decode.requests_per_second
    return f"prefill ({prefill.bound})" if by_prefill < by_decode else f"decode ({decode.bound})"


# -- without separation -------------------------------------------------------------------------------


def colocated_of(sheet: Worksheet, decode: DecodeRate, mix: Mix, ask: DisaggQuestion) -> Colocated:
    """The decode side's instance prefilling, too."""
    instance = decode.instance
    filled = mix.mean(lambda share: instance.filled_seconds(share.uncached_tokens, share.cached_tokens))
    requests, batch = colocated_requests(
        lambda batch: instance.step_seconds(batch, mix.decode_context_tokens),
        decode.batch,
        instance.groups,
        filled,
        mix.output_tokens,
        ask.tpot_limit_seconds,
    )
    sheet.given(
        "colocated.filled_seconds", filled, "seconds", "roofline; mean over the mix", "of a decode group"
    )
    sheet.given("colocated.batch", batch, "requests", "the batch that serves most within the TPOT limit")
    step = instance.step_seconds(batch, mix.decode_context_tokens)
    sheet.given("colocated.step_seconds", step, "seconds", "roofline")
    sheet.derive(
        "colocated.requests_per_second",
        "min(decode.groups * colocated.batch / (tpot_limit_seconds * mix.output_tokens),"
        " decode.groups * (1 - colocated.step_seconds / tpot_limit_seconds) / colocated.filled_seconds)",
        "requests/s",
        meaning="of one instance that prefills between its decode steps",
    )
    sheet.check("colocated.requests_per_second", requests)
    per_device = sheet.derive(
        "colocated.output_tokens_per_second_per_device",
        "colocated.requests_per_second * mix.output_tokens / decode.devices",
        "tokens/s",
    )
    gain = sheet.derive(
        "colocated.gain",
        "output_tokens_per_second_per_device / colocated.output_tokens_per_second_per_device",
        "times",
        meaning="of disaggregation",
    )
    return Colocated(
        requests_per_second=requests,
        output_tokens_per_second_per_device=per_device,
        batch_per_group=batch,
        gain=gain,
    )


# -- other prefill sides ------------------------------------------------------------------------------


def choice_rows(
    ask: DisaggQuestion, sides: Sides, mix: Mix, looked: Sequence[Looked], decode: DecodeRate
) -> tuple[PrefillChoice, ...]:
    """The prefill instances that were looked at, and those of the decode side's hardware where it is another.

    The price of decode hardware is the measure: a prefill there costs its device-seconds at that price.
    """
    every = [(one, ask.prefill_price) for one in looked]
    if sides.prefill_hardware.name != sides.decode_hardware.name:
        try:
            same = prefill_instances(ask, sides, sides.decode_hardware)
        except ConfigError:
            same = []
        every += [(Looked(prefill_rate(one, sides.sizes, mix, ask), ""), ask.decode_price) for one in same]
    measure = _device_seconds(every, sides)
    return tuple(_choice(one, price, decode, mix, ask, measure) for one, price in every)


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
    per_device, cost, refused = 0.0, 0.0, one.refused
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
        even_price_per_device_hour=ask.decode_price * measure * requests / instance.devices,
        refused=refused or ("the TTFT limit" if requests <= 0 else ""),
    )


# -- losses -------------------------------------------------------------------------------------------


def spot_of(sheet: Worksheet, prefill: PrefillRate, mix: Mix, ask: DisaggQuestion) -> SpotPlan | None:
    """What losses of prefill instances come to; None without any."""
    if not ask.loss_rate_per_hour:
        return None
    instance = prefill.instance
    loss = spot_loss(
        ask.loss_rate_per_hour,
        ask.restart_seconds,
        [
            (share.weight, instance.prefill_seconds(share.uncached_tokens, share.cached_tokens))
            for share in mix.shares
        ],
    )
    sheet.given("spot.loss_rate_per_hour", ask.loss_rate_per_hour, "", "--spot-loss")
    sheet.given("spot.losses_per_second", loss.losses_per_second, "1/s", "-log(1 - loss rate) / 3600")
    sheet.given("spot.restart_seconds", ask.restart_seconds, "seconds", "--restart")
    sheet.given(
        "spot.redone_share", loss.redone_share, "", "(exp(nu S) - 1) / (nu S) - 1 over the mix", "of the work"
    )
    sheet.derive("spot.availability", "1 / (1 + spot.losses_per_second * spot.restart_seconds)", "")
    sheet.check("spot.availability", loss.availability)
    needed = sheet.derive(
        "spot.needed_instances",
        "requests_per_second / prefill.requests_per_second",
        "instances",
        meaning="without losses",
    )
    instances = int(
        sheet.derive(
            "spot.instances",
            "ceil(spot.needed_instances * (1 + spot.redone_share) / spot.availability - 1e-9)",
            "instances",
            meaning="with losses",
        )
    )
    redone = sheet.derive(
        "spot.redone_tokens_per_second",
        "requests_per_second * mix.uncached_tokens * spot.redone_share",
        "tokens/s",
    )
    return SpotPlan(
        loss=loss,
        needed_instances=needed,
        instances=instances,
        extra_instances=instances - math.ceil(needed - 1e-9),
        redone_tokens_per_second=redone,
    )
