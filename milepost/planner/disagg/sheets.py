"""A plan's numbers in a worksheet, each given with a source or derived; checked against what was computed."""

from __future__ import annotations

import re
from collections.abc import Sequence

from milepost.planner.device_memory import derive_free_memory, part_key
from milepost.planner.disagg.instances import Instance
from milepost.planner.disagg.lengths import Mix
from milepost.planner.disagg.question import DisaggQuestion
from milepost.planner.disagg.rates import DecodeRate, PrefillRate
from milepost.planner.disagg.sides import Sides
from milepost.planner.worksheet import Worksheet
from milepost.sim.cost.roofline import PartCost

__all__ = [
    "note_decode",
    "note_mix",
    "note_parts",
    "note_prefill",
    "note_sizes",
    "number_key",
]

CONFIG = "config.json"
ROOFLINE = "roofline, docs/cost-model.md"


def note_sizes(sheet: Worksheet, sides: Sides, ask: DisaggQuestion) -> None:
    """Bytes of a state and of a token, as the model has them and as if all layers were attention."""
    shape, deployment = sides.shape, ask.deployment
    sheet.given("recurrent_layers", shape.recurrent_layers, "layers", CONFIG)
    sheet.given("attention_layers", shape.attention_layers, "layers", CONFIG)
    if shape.recurrent is not None:
        layer = shape.recurrent
        sheet.given(
            "state.matrix_elements", layer.matrix_elements, "elements", CONFIG, "of all heads of a layer"
        )
        sheet.given("state.itemsize", deployment.state_itemsize, "bytes", "--state-dtype")
        sheet.given("state.conv_channels", layer.conv_channels(), "channels", CONFIG)
        sheet.given("state.conv_window", layer.conv_window, "inputs", CONFIG)
        sheet.derive(
            "state_bytes",
            "recurrent_layers * (state.matrix_elements * state.itemsize"
            " + state.conv_channels * state.conv_window * 2)",
            "bytes",
            meaning="of one request, on all ranks; the convolution's window is bf16",
        )
    else:
        sheet.given("state_bytes", 0, "bytes", f"{CONFIG}: no recurrent layer")
    row = shape.attention.row_dim if shape.attention else 0
    sheet.given("kv.row_elements", row, "elements", CONFIG, "of a token in an attention layer")
    sheet.given("kv.itemsize", deployment.kv_itemsize, "bytes", "--kv-dtype")
    sheet.derive("kv_bytes_per_token", "attention_layers * kv.row_elements * kv.itemsize", "bytes")
    sheet.derive(
        "all_attention.kv_bytes_per_token",
        "(recurrent_layers + attention_layers) * kv.row_elements * kv.itemsize",
        "bytes",
        meaning="of a model of the same depth whose layers all are attention",
    )
    sheet.check("state_bytes", sides.sizes.state_bytes)
    sheet.check("kv_bytes_per_token", sides.sizes.kv_bytes_per_token)
    sheet.given("network_bytes_per_second", ask.network_bytes_per_second, "bytes/s", "--network")


def number_key(name: str) -> str:
    """A name of a model or of hardware as part of a number's name."""
    word = re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")
    return f"m_{word}" if not word or word[0].isdigit() else word


def note_parts(sheet: Worksheet, prefix: str, steps: Sequence[tuple[PartCost, ...]], meaning: str) -> None:
    """Seconds of each part over some steps, and their sum as ``PREFIX_seconds``."""
    totals: dict[str, float] = {}
    for step in steps:
        for part in step:
            totals[part.name] = totals.get(part.name, 0.0) + part.seconds
    names = []
    for part_name, seconds in totals.items():
        name = f"{prefix}.{part_key(part_name)}.seconds"
        sheet.given(name, seconds, "seconds", ROOFLINE, part_name)
        names.append(name)
    sheet.derive(f"{prefix}_seconds", " + ".join(names), "seconds", meaning=meaning)


def note_mix(sheet: Worksheet, mix: Mix) -> None:
    """Means of the requests."""
    sheet.given("mix.prompt_tokens", mix.prompt_tokens, "tokens", mix.source, "mean")
    sheet.given("mix.cached_tokens", mix.cached_tokens, "tokens", mix.source, "mean, at the prefill side")
    sheet.derive("mix.uncached_tokens", "mix.prompt_tokens - mix.cached_tokens", "tokens")
    sheet.given("mix.output_tokens", mix.output_tokens, "tokens", mix.source, "mean")
    sheet.given(
        "mix.decode_context_tokens", mix.decode_context_tokens, "tokens", mix.source, "mean over decode steps"
    )
    sheet.given(
        "mix.held_tokens",
        mix.held_tokens,
        "tokens",
        mix.source,
        "prompt and whole output, mean over decode steps",
    )
    sheet.derive(
        "mix.sent_bytes",
        "state_bytes + mix.prompt_tokens * kv_bytes_per_token",
        "bytes",
        meaning="mean, from prefill to decode",
    )


def note_prefill(sheet: Worksheet, rate: PrefillRate, ask: DisaggQuestion) -> None:
    """A prefill instance: what a request takes of it, and how many it takes."""
    instance = rate.instance
    _note_ranks(sheet, "prefill", instance, ask.prefill_price)
    late = f"uncached {rate.late.uncached_tokens:,}, cached {rate.late.cached_tokens:,} tokens"
    note_parts(
        sheet,
        "prefill.late",
        instance.prefill_parts(rate.late.uncached_tokens, rate.late.cached_tokens),
        f"request at percentile {ask.ttft_percentile:g}, alone: {late}",
    )
    sheet.check("prefill.late_seconds", rate.late_seconds)
    sheet.given(
        "prefill.late_exposed_seconds",
        rate.late_exposed_seconds,
        "seconds",
        f"pieces over one link as they are ready, streaming by {ask.streaming}",
        "its transfer, as far as it is waited for",
    )
    sheet.given(
        "prefill.filled_seconds",
        rate.filled_seconds,
        "seconds",
        f"{ROOFLINE}; mean over the mix",
        "of a busy group, a request",
    )
    sheet.given(
        "prefill.squared_seconds",
        rate.squared_seconds,
        "seconds^2",
        f"{ROOFLINE}; mean over the mix",
        "its square",
    )
    sheet.derive(
        "prefill.residual_seconds",
        "prefill.squared_seconds / (2 * prefill.filled_seconds)",
        "seconds",
        meaning="left of the prefill that an arriving request finds",
    )
    sheet.given("prefill.most_utilization", ask.utilization, "", "--utilization")
    if ask.ttft_limit_seconds:
        sheet.given("ttft_limit_seconds", ask.ttft_limit_seconds, "seconds", "--ttft")
        sheet.derive(
            "prefill.wait_limit_seconds",
            "ttft_limit_seconds - prefill.late_seconds - prefill.late_exposed_seconds",
            "seconds",
        )
        sheet.given(
            "prefill.utilization_limit",
            rate.utilization,
            "",
            "largest with a mean wait within prefill.wait_limit_seconds, up to prefill.most_utilization",
            "share of its time",
        )
    else:
        sheet.derive("prefill.utilization_limit", "prefill.most_utilization", "")
    sheet.derive(
        "prefill.requests_per_second",
        "min(prefill.groups * prefill.utilization_limit / prefill.filled_seconds,"
        " network_bytes_per_second / mix.sent_bytes)",
        "requests/s",
        meaning="of one prefill instance, at most",
        source="arXiv:2604.15039, equations 3 and 4",
    )
    sheet.check("prefill.requests_per_second", rate.requests_per_second)
    sheet.derive(
        "prefill.kv_bytes_per_second",
        "prefill.groups * mix.sent_bytes / prefill.filled_seconds",
        "bytes/s",
        meaning="that a prefill instance exports which is never idle",
        source="arXiv:2604.15039, equation 1",
    )


def note_decode(sheet: Worksheet, rate: DecodeRate, sides: Sides, ask: DisaggQuestion) -> None:
    """A decode instance: batch by memory and by the limit, its step, and how many requests it takes."""
    instance = rate.instance
    _note_ranks(sheet, "decode", instance, ask.decode_price)
    derive_free_memory(
        sheet,
        sides.shape,
        sides.decode_hardware,
        instance.sizes,
        memory_share=ask.deployment.memory_share,
        tokens_per_step=instance.tokens_per_step,
    )
    sheet.given("decode.rank_state_bytes", instance.state_bytes, "bytes", "state_bytes by heads, on one rank")
    sheet.given(
        "decode.rank_kv_bytes_per_token",
        instance.kv_bytes_per_token,
        "bytes",
        "kv_bytes_per_token on one rank",
    )
    sheet.given("decode.slots", ask.slots, "states", "--slots", "of a running request")
    sheet.derive(
        "decode.batch_by_memory",
        "floor(free_bytes / (decode.slots * decode.rank_state_bytes"
        " + mix.held_tokens * decode.rank_kv_bytes_per_token))",
        "requests",
        meaning="of a group",
    )
    sheet.check("decode.batch_by_memory", rate.batch_by_memory)
    sheet.given("tpot_limit_seconds", ask.tpot_limit_seconds, "seconds", "--tpot")
    sheet.given(
        "decode.batch_by_tpot",
        rate.batch_by_tpot,
        "requests",
        f"{ROOFLINE}; most whose step meets tpot_limit_seconds, looked for up to decode.batch_by_memory + 1",
    )
    sheet.derive("decode.batch", "min(decode.batch_by_memory, decode.batch_by_tpot)", "requests")
    step = instance.cost.breakdown(instance.decode_step(rate.batch, sheet["mix.decode_context_tokens"]))
    note_parts(sheet, "decode.step", [step], "one decode step of a group's batch: TPOT")
    sheet.check("decode.step_seconds", rate.step_seconds)
    sheet.derive(
        "decode.requests_per_second",
        "decode.groups * decode.batch / (decode.step_seconds * mix.output_tokens)",
        "requests/s",
        meaning="of one decode instance",
        source="arXiv:2604.15039, equation 5",
    )
    sheet.check("decode.requests_per_second", rate.requests_per_second)


def _note_ranks(sheet: Worksheet, side: str, instance: Instance, price: float) -> None:
    sizes = instance.sizes
    sheet.given(f"{side}.tensor_parallel", sizes.tensor_parallel, "ranks", "arrangement")
    sheet.given(f"{side}.groups", sizes.data_parallel, "groups", "arrangement", "data-parallel")
    sheet.derive(
        f"{side}.devices", f"{side}.tensor_parallel * {side}.groups", "devices", meaning="of an instance"
    )
    sheet.given(f"{side}.price", price, "a device-hour", f"--{side}-price")
