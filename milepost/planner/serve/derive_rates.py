"""What every step's parts share, in a worksheet: ranks, layers, widths, and what hardware reaches."""

from __future__ import annotations

from milepost.planner.worksheet import Worksheet
from milepost.shapes.shape import AttentionKind, AttentionShape, ModelShape, RecurrentKind, RecurrentShape
from milepost.sim.cost.hardware import Efficiency, Hardware
from milepost.sim.cost.part_weights import EXPERTS, attention_projections, recurrent_projections, weights_of
from milepost.sim.cost.part_work import CHUNK, COMBINE_BYTES, DISPATCH_BYTES, EXCHANGE_ROUNDS, RankSizes

__all__ = ["CONFIG", "derive_rates", "derive_shape", "derive_sizes", "layers_of"]

CONFIG = "config.json"
ROOFLINE = "docs/cost-model.md"


def derive_sizes(sheet: Worksheet, sizes: RankSizes) -> None:
    """Ranks and item sizes."""
    sheet.given("tensor_parallel", sizes.tensor_parallel, "ranks", "--tp, or the search")
    sheet.given("data_parallel", sizes.data_parallel, "groups", "--dp, or the search")
    sheet.derive("gpus", "tensor_parallel * data_parallel", "devices", meaning="of a replica")
    if sizes.expert_parallel:
        sheet.given("expert_ranks", sizes.expert_parallel, "ranks", "--ep, or the search")
    else:
        sheet.derive("expert_ranks", "gpus", "ranks", meaning="that share one copy of the experts")
    sheet.derive("expert_groups", "expert_ranks // tensor_parallel", "groups")
    sheet.given("context_parallel", sizes.context_parallel, "ranks", "--cp, or the search")
    sheet.given("kv_itemsize", sizes.kv_itemsize, "bytes", "--kv-dtype")
    sheet.given("state_itemsize", sizes.state_itemsize, "bytes", "--state-dtype")
    sheet.given("item_bytes", 2, "bytes", "bf16 activations")


def derive_shape(sheet: Worksheet, shape: ModelShape) -> None:
    """Counts and widths of the model, and the bytes of a state and of a token."""
    for name in ("hidden_size", "vocab_size", "recurrent_layers", "attention_layers", "moe_layers"):
        sheet.given(name, getattr(shape, name), "", CONFIG)
    sheet.given("dense_layers", shape.dense_layers, "", CONFIG)
    sheet.given("blocks", shape.blocks, "", CONFIG, "residual blocks")
    if shape.recurrent is not None:
        _recurrent(sheet, shape.recurrent)
    if shape.attention is not None:
        _attention(sheet, shape.attention)
    if shape.experts is not None:
        for name in ("num_experts", "top_k", "width", "intermediate", "matrices"):
            sheet.given(f"experts.{name}", getattr(shape.experts, name), "", CONFIG)
        sheet.given("experts.bytes_per_parameter", shape.experts.bytes_per_parameter, "bytes", CONFIG)
        sheet.derive("experts.parameters", "experts.matrices * experts.width * experts.intermediate", "")
        sheet.derive("experts.bytes", "experts.parameters * experts.bytes_per_parameter", "bytes")
        sheet.given("experts.dispatch_bytes", DISPATCH_BYTES, "bytes", "fp8, an element to an expert")
        sheet.given("experts.combine_bytes", COMBINE_BYTES, "bytes", "bf16, an element back")
        sheet.given("experts.exchange_rounds", EXCHANGE_ROUNDS, "", "counts, tokens, arrival")


def _recurrent(sheet: Worksheet, layer: RecurrentShape) -> None:
    for name in ("heads", "rows", "row_dim", "key_heads", "conv_window"):
        sheet.given(f"recurrent.{name}", getattr(layer, name), "", CONFIG)
    sheet.given("recurrent.chunk", CHUNK, "tokens", "kernels of flash-linear-attention and FlashKDA")
    heads, k, v = "recurrent.heads", "recurrent.row_dim", "recurrent.rows"
    if layer.kind is RecurrentKind.MAMBA2:
        flops = (
            f"{heads} * (4 * {k} * {v} + 2 * recurrent.chunk * {v})"
            f" + recurrent.key_heads * 2 * recurrent.chunk * {k}"
        )
    else:
        flops = f"{heads} * (6 * {k} * {v} + recurrent.chunk * (6 * {k} + 4 * {v}))"
    sheet.derive("recurrent.token_flops", flops, "FLOPs", meaning="of a token, a layer", source=ROOFLINE)
    decay = f"{heads} * {k}" if layer.kind is RecurrentKind.KDA else heads
    sheet.derive(
        "recurrent.token_elements",
        f"2 * recurrent.key_heads * {k} + 2 * {heads} * {v} + {decay}",
        "",
        meaning="query, key, value, decay and output of a token, a layer",
    )
    sheet.derive(
        "recurrent.conv_channels",
        "recurrent.heads // tensor_parallel * recurrent.rows"
        " + 2 * max(1, recurrent.key_heads // tensor_parallel) * recurrent.row_dim",
        "",
    )
    sheet.derive(
        "state_bytes",
        "recurrent_layers * (recurrent.heads * recurrent.rows * recurrent.row_dim / tensor_parallel"
        " * state_itemsize + recurrent.conv_channels * recurrent.conv_window * item_bytes)",
        "bytes",
        meaning="one sequence's state on one rank",
    )


def _attention(sheet: Worksheet, layer: AttentionShape) -> None:
    for name in ("heads", "kv_heads", "row_dim", "qk_head_dim", "v_head_dim", "latent_dim"):
        sheet.given(f"attention.{name}", getattr(layer, name), "", CONFIG)
    if layer.kind is AttentionKind.MLA:
        sheet.given("attention.kv_up_parameters", layer.kv_up, "", CONFIG, "of keys and values, a layer")
    sheet.derive(
        "kv_bytes_per_token",
        "attention_layers * (attention.row_dim // attention.kv_heads"
        " * max(1, attention.kv_heads // (tensor_parallel // context_parallel))) * kv_itemsize",
        "bytes",
        meaning="of a token on the rank that keeps it",
    )


def derive_rates(sheet: Worksheet, hardware: Hardware, shape: ModelShape) -> None:
    """What hardware reaches: its data sheet's peaks, each by its efficiency."""
    sheet_of = f"hardware {hardware.name}"
    share = hardware.efficiency
    sheet.given("hardware.bf16_flops", hardware.peak_flops.bf16, "FLOP/s", sheet_of)
    sheet.given("hardware.memory_rate", hardware.memory_bytes_per_second, "bytes/s", sheet_of)
    for name in Efficiency.__struct_fields__:
        sheet.given(f"efficiency.{name}", getattr(share, name), "", f"{sheet_of}, see {ROOFLINE}")
    sheet.derive("rate.compute", "hardware.bf16_flops * efficiency.compute", "FLOP/s")
    sheet.derive("rate.attention", "hardware.bf16_flops * efficiency.attention", "FLOP/s")
    sheet.derive("rate.recurrence", "hardware.bf16_flops * efficiency.recurrence", "FLOP/s")
    sheet.derive("rate.memory", "hardware.memory_rate * efficiency.memory", "bytes/s")
    sheet.derive("rate.cache", "hardware.memory_rate * efficiency.cache", "bytes/s")
    if shape.experts is not None:
        dtype, peak = hardware.peak_flops.of_experts(shape.experts.bytes_per_parameter)
        sheet.given("hardware.expert_flops", peak, "FLOP/s", f"{sheet_of}, products of experts in {dtype}")
        sheet.derive("rate.experts", "hardware.expert_flops * efficiency.experts", "FLOP/s")
    for name in (
        "interconnect_bytes_per_second",
        "interconnect_latency_seconds",
        "scale_out_bytes_per_second",
        "scale_out_latency_seconds",
        "domain_devices",
        "kernel_seconds",
        "step_seconds",
    ):
        unit = "bytes/s" if "bytes" in name else "seconds" if "seconds" in name else "devices"
        sheet.given(f"hardware.{name}", getattr(hardware, name), unit, sheet_of)
    for name, ranks in (
        ("heads", "tensor_parallel"),
        ("experts", "expert_ranks"),
        ("context", "context_parallel"),
    ):
        beyond = f"{ranks} > hardware.domain_devices"
        near, far = "hardware.interconnect", "hardware.scale_out"
        sheet.derive(
            f"link.{name}.rate",
            f"efficiency.network * (min({near}_bytes_per_second, {far}_bytes_per_second) if {beyond}"
            f" else {near}_bytes_per_second)",
            "bytes/s",
            meaning=f"of the links among {ranks}",
        )
        sheet.derive(
            f"link.{name}.latency",
            f"max({near}_latency_seconds, {far}_latency_seconds) if {beyond} else {near}_latency_seconds",
            "seconds",
        )


def layers_of(shape: ModelShape) -> dict[str, str]:
    """Parts that are products with weights alone, and the number of their layers, by its name."""
    counts = {
        recurrent_projections(shape): "recurrent_layers",
        attention_projections(shape): "attention_layers",
        "dense feed-forward": "dense_layers",
        "shared experts": "moe_layers",
        "router and latent projections": "moe_layers",
    }
    known = weights_of(shape)
    return {part: layers for part, layers in counts.items() if part in known and part != EXPERTS}
