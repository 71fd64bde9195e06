"""The balance of both sides: instances, throughput, cost; without separation; and with losses."""

from __future__ import annotations

import math

from milepost.errors import ConfigError
from milepost.planner.disagg.balance import Counts, best_counts, colocated_requests, wait_seconds
from milepost.planner.disagg.instances import largest_within
from milepost.planner.disagg.lengths import Mix
from milepost.planner.disagg.plan import Balance, Colocated
from milepost.planner.disagg.question import DisaggQuestion
from milepost.planner.disagg.rates import DecodeRate, PrefillRate
from milepost.planner.worksheet import Worksheet
from milepost.sim.cost.step_work import causal_pairs

__all__ = ["balance_of", "colocated_of", "counts_of"]


def counts_of(prefill: PrefillRate, decode: DecodeRate, ask: DisaggQuestion) -> Counts:
    """Instances of both sides: for a rate, for a number of devices, or the best small ratio.

    Raises:
        ConfigError: so many devices don't hold an instance of each.
    """
    if ask.requests_per_second:
        return Counts(
            max(1, math.ceil(ask.requests_per_second / prefill.requests_per_second - 1e-9)),
            max(1, math.ceil(ask.requests_per_second / decode.requests_per_second - 1e-9)),
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
            f"--gpus must be at least {least}: an instance of each side takes "
            f"{prefill.instance.devices} and {decode.instance.devices}. Given: {ask.devices}."
        )
    return found


def balance_of(sheet: Worksheet, prefill: PrefillRate, decode: DecodeRate, ask: DisaggQuestion) -> Balance:
    """How many of each side, and what they serve together.

    Raises:
        ConfigError: so many devices don't hold an instance of each.
    """
    counts = counts_of(prefill, decode, ask)
    how = "--rate" if ask.requests_per_second else "--gpus" if ask.devices else "best small ratio"
    sheet.derive(
        "prefill_per_decode",
        "decode.requests_per_second / prefill.counted_requests_per_second",
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
        _utilization_formula(prefill),
        "",
        meaning="share of the time in which prefill instances serve",
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
    cost: float | None = None
    if ask.prefill_price or ask.decode_price:
        cost = sheet.derive(
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
        prefill_per_decode_ratio=sheet["prefill_per_decode"],
        prefill_requests_per_second=prefill.requests_per_second,
        decode_requests_per_second=decode.requests_per_second,
        requests_per_second=served,
        output_tokens_per_second=sheet["output_tokens_per_second"],
        output_tokens_per_second_per_device=sheet["output_tokens_per_second_per_device"],
        batch_per_group=decode.batch,
        tpot_seconds=decode.step_seconds,
        prefill_busy_share=sheet["prefill.utilization"],
        wait_seconds=wait,
        ttft_seconds=wait + prefill.ttft_alone_seconds,
        sent_bytes_per_second=sheet["sent_bytes_per_second"],
        sent_bytes_per_second_per_prefill_instance=sheet["sent_bytes_per_second_per_prefill_instance"],
        fits_link=not ask.link_bytes_per_second
        or sheet["sent_bytes_per_second"] <= ask.link_bytes_per_second * (1 + 1e-9),
        ttft_percentile=ask.ttft_percentile,
        cost_per_million_output_tokens=cost,
        bound=bound or _bound(counts, prefill, decode),
    )


def _utilization_formula(prefill: PrefillRate) -> str:
    if prefill.bound == "network":  # then their requests a second don't say how busy they are
        return "requests_per_second * prefill.filled_seconds / (prefill.instances * prefill.groups)"
    return (
        "prefill.utilization_limit * requests_per_second"
        " / (prefill.instances * prefill.counted_requests_per_second)"
    )


def _served(sheet: Worksheet, counts: Counts, ask: DisaggQuestion) -> tuple[float, str]:
    if ask.requests_per_second:
        served = sheet.given("requests_per_second", ask.requests_per_second, "requests/s", "--rate")
        return served, "the rate that was asked for"
    terms = (
        "prefill.instances * prefill.counted_requests_per_second,"
        " decode.instances * decode.requests_per_second"
    )
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


def _bound(counts: Counts, prefill: PrefillRate, decode: DecodeRate) -> str:
    by_prefill = counts.prefill * prefill.requests_per_second
    by_decode = counts.decode * decode.requests_per_second
    if by_prefill >= by_decode:
        return f"decode ({decode.bound})"
    return "prefill" if prefill.bound == "prefill" else f"prefill ({prefill.bound})"


def colocated_of(sheet: Worksheet, decode: DecodeRate, mix: Mix, ask: DisaggQuestion) -> Colocated:
    """The decode side's instance prefilling, too: prompts in steps of their own, or spread over all steps."""
    apart = _apart(sheet, decode, mix, ask)
    spread = _spread(sheet, decode, mix, ask)
    requests = sheet.derive(
        "colocated.requests_per_second",
        "max(colocated.apart.requests_per_second, colocated.spread.requests_per_second)",
        "requests/s",
        meaning="of one instance that prefills and decodes",
    )
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
    spreads = sheet["colocated.spread.requests_per_second"] >= requests
    return Colocated(
        requests_per_second=requests,
        output_tokens_per_second_per_device=per_device,
        batch_per_group=spread if spreads else apart,
        gain_ratio=gain,
    )


def _apart(sheet: Worksheet, decode: DecodeRate, mix: Mix, ask: DisaggQuestion) -> int:
    """Prompts in steps between those of decode; returns the batch."""
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
    prefix = "colocated.apart"
    sheet.given(f"{prefix}.filled_seconds", filled, "seconds", "roofline; mean over the mix", "of a group")
    sheet.given(f"{prefix}.batch", batch, "requests", "the batch that serves most within the TPOT limit")
    step = instance.step_seconds(batch, mix.decode_context_tokens)
    sheet.given(f"{prefix}.step_seconds", step, "seconds", "roofline")
    sheet.derive(
        f"{prefix}.requests_per_second",
        f"min(decode.groups * {prefix}.batch / (tpot_limit_seconds * mix.output_tokens),"
        f" decode.groups * (1 - {prefix}.step_seconds / tpot_limit_seconds) / {prefix}.filled_seconds)",
        "requests/s",
        meaning="prompts in steps of their own, between those of decode",
    )
    sheet.check(f"{prefix}.requests_per_second", requests)
    return batch


def _spread(sheet: Worksheet, decode: DecodeRate, mix: Mix, ask: DisaggQuestion) -> int:
    """Prompts in chunks, as many tokens in each decode step as keep up with it; returns the batch.

    What weights a decode step reads anyhow, these tokens use as well.
    """
    instance = decode.instance
    uncached = max(1.0, mix.mean(lambda share: share.uncached_tokens))
    pairs = mix.mean(lambda share: causal_pairs(share.uncached_tokens, share.cached_tokens))
    before = pairs / uncached

    def seconds(batch: int) -> float:
        tokens = batch * uncached / mix.output_tokens
        return instance.spread_seconds(batch, mix.decode_context_tokens, tokens, before)

    most = min(decode.batch, math.floor(instance.chunk_tokens * mix.output_tokens / uncached))
    batch = largest_within(seconds, ask.tpot_limit_seconds, most)
    prefix = "colocated.spread"
    sheet.given(f"{prefix}.batch", batch, "requests", "the most within the TPOT limit")
    sheet.given(
        f"{prefix}.step_seconds",
        seconds(max(1, batch)),
        "seconds",
        "roofline, with batch * uncached tokens / output tokens of prompts",
    )
    sheet.derive(
        f"{prefix}.requests_per_second",
        f"decode.groups * {prefix}.batch / ({prefix}.step_seconds * mix.output_tokens)",
        "requests/s",
        meaning="prompts in chunks, some in each decode step",
    )
    return batch
