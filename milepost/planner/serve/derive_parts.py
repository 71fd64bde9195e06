"""The parts of one step in a worksheet: FLOPs, bytes and seconds of each, held against the roofline.

Each formula is that of `milepost.sim.cost.part_work`, over numbers that lead back to the config.json and to
the data sheet. For a step of the name "decode" and the part "routed experts" the numbers are
``decode.routed_experts.flops``, ``.bytes`` and ``.seconds``.
"""

from __future__ import annotations

from milepost.planner.device_memory import part_key
from milepost.planner.serve.derive_rates import CONFIG, layers_of
from milepost.planner.worksheet import Worksheet
from milepost.shapes.shape import AttentionKind, ModelShape
from milepost.sim.cost.part_weights import (
    EXPERTS,
    HEAD,
    NORMS,
    attention_projections,
    weights_of,
)
from milepost.sim.cost.part_work import (
    COLLECTIVES,
    KERNELS_ATTENTION,
    KERNELS_DENSE,
    KERNELS_EXPERTS,
    KERNELS_HEAD,
    KERNELS_NORMS,
    KERNELS_RECURRENT,
    LAUNCHES,
    RankSizes,
    StepParts,
    bank_reads,
)
from milepost.sim.cost.roofline import PartCost

__all__ = ["derive_fixed", "derive_step"]


def derive_fixed(sheet: Worksheet, shape: ModelShape) -> None:
    """What parts need once, whatever the step: weights a rank holds, rows that norms move, kernels."""
    for part, layers in layers_of(shape).items():
        key, weights = part_key(part), weights_of(shape)[part]
        terms = [f"weights.{key}.sharded_parameters / tensor_parallel"] if weights.sharded else []
        terms += [f"weights.{key}.replicated_parameters"] if weights.replicated else []
        sheet.derive(f"{key}.held_parameters", " + ".join(terms), "", meaning="on one rank")
        sheet.derive(
            f"{key}.token_bytes",
            f"2 * item_bytes * {layers} * sqrt({key}.held_parameters / {layers})",
            "bytes",
            meaning="inputs and outputs of a token, products taken as square",
        )
    sites = "recurrent_layers + attention_layers + dense_layers + moe_layers + 1"
    sheet.derive("residual.sites", sites, "", meaning="norms that read the residual")
    sheet.given("residual.reads", bank_reads(shape), "", CONFIG, "banks that Attention Residuals read")
    sheet.derive(
        "residual.token_bytes",
        "item_bytes * hidden_size * (residual.reads + 4 * residual.sites + 2)",
        "bytes",
        meaning="read and written for a token by all norms and sums",
    )
    _kernels(sheet, shape)


def _kernels(sheet: Worksheet, shape: ModelShape) -> None:
    assumed = "assumed of a fused engine"
    counts = {"moe_layers": KERNELS_EXPERTS, "dense_layers": KERNELS_DENSE, "blocks": KERNELS_NORMS}
    if shape.recurrent is not None:
        counts["recurrent_layers"] = KERNELS_RECURRENT[shape.recurrent.kind]
    if shape.attention is not None:
        counts["attention_layers"] = KERNELS_ATTENTION[shape.attention.kind]
    for layers, count in counts.items():
        sheet.given(f"kernels.{layers}", count, "", f"{assumed}, one of them")
    sheet.given("kernels.head", KERNELS_HEAD, "", assumed)
    total = " + ".join(f"{layers} * kernels.{layers}" for layers in counts)
    sheet.derive("kernels.step", f"{total} + kernels.head", "", meaning="kernels of a step")


def derive_step(
    sheet: Worksheet,
    step: str,
    shape: ModelShape,
    sizes: RankSizes,
    costs: tuple[PartCost, ...],
) -> None:
    """All parts of a step, of which ``STEP.tokens rows sampled context pairs`` are known.

    Args:
        sheet: holds what the step does, and what `derive_fixed` adds.
        step: the name that its numbers begin with.
        shape: the model.
        sizes: how it is divided.
        costs: the roofline's parts of the step, which the formulas are held against.
    """
    known = {cost.name: cost for cost in costs}
    parts = StepParts(shape, sizes)
    for part in layers_of(shape):
        _linear(sheet, step, part, shape)
    if shape.experts is not None:
        _experts(sheet, step)
    _norms(sheet, step)
    if parts.recurrence_name:
        _recurrence(sheet, step, part_key(parts.recurrence_name))
    if parts.attention_name:
        _attention(sheet, step, part_key(parts.attention_name), shape)
    if HEAD in known:
        _head(sheet, step)
    _collectives(sheet, step, shape, sizes)
    key = f"{step}.{part_key(LAUNCHES)}"
    sheet.derive(
        f"{key}.seconds", "hardware.step_seconds + kernels.step * hardware.kernel_seconds", "seconds"
    )
    names = []
    for name, cost in known.items():
        key = f"{step}.{part_key(name)}"
        if not cost.seconds and f"{key}.seconds" not in sheet:
            continue  # snapshots and copies that the step does not make
        sheet.check(f"{key}.seconds", cost.seconds)
        if cost.flops:
            sheet.check(f"{key}.flops", cost.flops)
        if cost.bytes:
            sheet.check(f"{key}.bytes", cost.bytes)
        names.append(f"{key}.seconds")
    sheet.derive(f"{step}.model_seconds", " + ".join(names), "seconds", meaning="parts one after the other")


def _roof(sheet: Worksheet, key: str, rate: str, flops: str, moved: str) -> None:
    memory = "rate.cache" if rate == "rate.attention" else "rate.memory"
    sheet.derive(f"{key}.flops", flops, "FLOPs")
    sheet.derive(f"{key}.bytes", moved, "bytes")
    sheet.derive(
        f"{key}.seconds",
        f"max({key}.flops / {rate}, {key}.bytes / {memory})",
        "seconds",
        meaning="roofline",
    )


def _linear(sheet: Worksheet, step: str, part: str, shape: ModelShape) -> None:
    key = part_key(part)
    multiplied = f"{key}.held_parameters"
    if part == attention_projections(shape) and shape.attention and shape.attention.kind is AttentionKind.MLA:
        # What makes keys and values out of the latent is counted with attention.
        multiplied = f"({multiplied} - attention_layers * attention.kv_up_parameters / tensor_parallel)"
    _roof(
        sheet,
        f"{step}.{key}",
        "rate.compute",
        f"2 * {multiplied} * {step}.tokens",
        f"{key}.held_parameters * weights.{key}.bytes_per_parameter + {key}.token_bytes * {step}.tokens",
    )


def _experts(sheet: Worksheet, step: str) -> None:
    key = f"{step}.{part_key(EXPERTS)}"
    sheet.derive(
        f"{key}.tokens", f"{step}.tokens * expert_groups", "tokens", meaning="of all groups that share a copy"
    )
    sheet.derive(
        f"{key}.touched",
        f"experts.num_experts * (1 - (1 - experts.top_k / experts.num_experts) ** {key}.tokens)",
        "experts",
        meaning="touched in a layer, by random routing",
    )
    sheet.derive(f"{key}.pairs", f"{key}.tokens * experts.top_k", "", meaning="of token and expert, a layer")
    _roof(
        sheet,
        key,
        "rate.experts",
        f"2 * {key}.pairs * experts.parameters * moe_layers / expert_ranks",
        f"moe_layers / expert_ranks * ({key}.touched * experts.bytes"
        f" + 2 * item_bytes * {key}.pairs * (experts.width + (experts.matrices - 1) * experts.intermediate))",
    )


def _norms(sheet: Worksheet, step: str) -> None:
    key = part_key(NORMS)
    _roof(
        sheet,
        f"{step}.{key}",
        "rate.compute",
        f"3 * residual.token_bytes * {step}.tokens",
        f"residual.token_bytes * {step}.tokens + weights.{key}.replicated_parameters * item_bytes",
    )


def _recurrence(sheet: Worksheet, step: str, key: str) -> None:
    _roof(
        sheet,
        f"{step}.{key}",
        "rate.recurrence",
        f"recurrent_layers / tensor_parallel * {step}.tokens * recurrent.token_flops",
        f"2 * state_bytes * {step}.rows"
        f" + recurrent_layers / tensor_parallel * {step}.tokens * recurrent.token_elements * item_bytes",
    )


def _attention(sheet: Worksheet, step: str, name: str, shape: ModelShape) -> None:
    key = f"{step}.{name}"
    heads = "attention_layers * attention.heads / tensor_parallel"
    widths = "(attention.qk_head_dim + attention.v_head_dim)"
    sheet.derive(
        f"{key}.cache_bytes",
        f"kv_bytes_per_token * ({step}.context + {step}.tokens) / context_parallel",
        "bytes",
    )
    if shape.attention is None or shape.attention.kind is AttentionKind.GQA:
        _roof(
            sheet,
            key,
            "rate.attention",
            f"2 * {heads} * {widths} * {step}.pairs",
            f"{key}.cache_bytes + item_bytes * {heads} * {widths} * {step}.tokens",
        )
        return
    latent, up = (
        "(attention.row_dim + attention.latent_dim)",
        "2 * attention_layers * attention.kv_up_parameters",
    )
    _roof(
        sheet,
        f"{key}.absorbed",
        "rate.attention",
        f"{up} / tensor_parallel * {step}.tokens + 2 * {heads} * {latent} * {step}.pairs",
        f"{key}.cache_bytes + item_bytes * {heads} * {latent} * {step}.tokens",
    )
    _roof(
        sheet,
        f"{key}.expanded",
        "rate.attention",
        f"{up} / tensor_parallel * {step}.context + 2 * {heads} * {widths} * {step}.pairs",
        f"{key}.cache_bytes + 2 * item_bytes * {heads} * {widths} * {step}.context"
        f" + item_bytes * {heads} * {widths} * {step}.tokens",
    )
    chosen = f"{key}.absorbed.seconds <= {key}.expanded.seconds"
    for what, unit in (("flops", "FLOPs"), ("bytes", "bytes"), ("seconds", "seconds")):
        sheet.derive(
            f"{key}.{what}",
            f"{key}.absorbed.{what} if {chosen} else {key}.expanded.{what}",
            unit,
            meaning="of the form that takes less time",
        )


def _head(sheet: Worksheet, step: str) -> None:
    _roof(
        sheet,
        f"{step}.{part_key(HEAD)}",
        "rate.compute",
        f"2 * vocab_size / tensor_parallel * hidden_size * {step}.sampled",
        f"vocab_size / tensor_parallel * (hidden_size * item_bytes + 8 * {step}.sampled)",
    )


def _collectives(sheet: Worksheet, step: str, shape: ModelShape, sizes: RankSizes) -> None:
    """All-reduces among heads, dispatch and combine among experts, exchange among a context."""
    key = f"{step}.{part_key(COLLECTIVES)}"
    found = []
    if sizes.tensor_parallel > 1:
        found.append(("heads", *_all_reduces(shape, sizes, step)))
    if shape.experts is not None and sizes.expert_groups > 1:
        sent = f"moe_layers * (expert_ranks - 1) / expert_ranks * experts.top_k * {step}.tokens"
        sent += " / tensor_parallel * experts.width * (experts.dispatch_bytes + experts.combine_bytes)"
        found.append(("experts", "2 * experts.exchange_rounds * moe_layers", sent))
    if shape.attention is not None and sizes.context_parallel > 1:
        widths = "attention.row_dim + attention.latent_dim"
        if shape.attention.kind is AttentionKind.GQA:
            widths = "attention.qk_head_dim + attention.v_head_dim"
        sent = "attention_layers * (context_parallel - 1) / context_parallel * attention.heads"
        sent += f" * context_parallel / tensor_parallel * ({widths}) * item_bytes * {step}.tokens"
        found.append(("context", "2 * attention_layers", sent))
    for kind, operations, sent in found:
        sheet.derive(f"{key}.{kind}.operations", operations, "")
        sheet.derive(f"{key}.{kind}.bytes", sent, "bytes", meaning="that a rank sends")
        sheet.derive(
            f"{key}.{kind}.seconds",
            f"{key}.{kind}.operations * link.{kind}.latency + {key}.{kind}.bytes / link.{kind}.rate",
            "seconds",
        )
    for what, unit in (("bytes", "bytes"), ("seconds", "seconds")):
        sheet.derive(f"{key}.{what}", " + ".join(f"{key}.{kind}.{what}" for kind, *_ in found) or "0", unit)


def _all_reduces(shape: ModelShape, sizes: RankSizes, step: str) -> tuple[str, str]:
    """Number of operations, and bytes: after each mixer and feed-forward network; of the latent sum too."""
    sums = "(recurrent_layers + attention_layers + dense_layers + moe_layers)"
    latent = shape.experts is not None and shape.experts.latent and sizes.expert_groups == 1
    elements = f"{sums} * hidden_size" + (" + moe_layers * experts.width" if latent else "")
    operations = f"{sums} + moe_layers" if latent else sums
    ring = "2 * item_bytes * (tensor_parallel - 1) / tensor_parallel"
    return operations, f"{ring} * {step}.tokens * ({elements})"
