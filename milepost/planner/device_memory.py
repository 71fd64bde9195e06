"""What a device has left for states and KV: a share of its memory, less weights, less the room of one step.

    usable      floor(memory * memory_share): the rest is the driver's, the graphs' and the allocator's
    weights     of the rank: sharded / t + replicated + routed / e parameters, each with its bytes
    workspace   activations of one step: T (residual rows + the widest layer's inputs and outputs) and logits
    free        usable - weights - workspace; below 0 where they don't fit

Every plan asks here, so that "what fits" means the same in all of them. The workspace is an assumption about
an engine that keeps one layer's activations at a time; everything else is arithmetic on a config.json and a
data sheet.
"""

from __future__ import annotations

import math

import msgspec

from milepost.errors import ConfigError
from milepost.planner.worksheet import Worksheet
from milepost.shapes.shape import ModelShape
from milepost.sim.cost.hardware import Hardware
from milepost.sim.cost.part_weights import (
    DENSE,
    EMBEDDING,
    EXPERTS,
    HEAD,
    NORMS,
    ROUTER,
    SHARED,
    attention_projections,
    rank_weight_bytes,
    recurrent_projections,
    weights_of,
)
from milepost.sim.cost.part_work import RankSizes

__all__ = ["FreeMemory", "derive_free_memory", "free_memory", "part_key"]

CONFIG = "config.json"
ACTIVATION_BYTES = 2  # bf16
LOGIT_BYTES = 4  # float32
LOGIT_ROWS = 256
"""Rows of a step whose logits exist at once, where nobody says how many sample."""
_EXPERT_NUMBERS = ("num_experts", "matrices", "width", "intermediate")


class FreeMemory(msgspec.Struct, frozen=True, kw_only=True):
    """Memory of one device.

    Attributes:
        device_bytes: all of it.
        usable_bytes: the share that may be taken.
        weight_bytes: of the rank's weights.
        workspace_bytes: of one step's activations and logits.
        free_bytes: for states and KV; below 0 where weights and workspace don't fit.
    """

    device_bytes: int
    usable_bytes: int
    weight_bytes: int
    workspace_bytes: int
    free_bytes: int


def free_memory(
    shape: ModelShape,
    hardware: Hardware,
    sizes: RankSizes,
    *,
    memory_share: float,
    tokens_per_step: int,
    logit_rows: int = LOGIT_ROWS,
    workspace_bytes: int | None = None,
) -> FreeMemory:
    """What one rank has left for states and KV.

    Args:
        shape: the model.
        hardware: the device.
        sizes: how the model is divided.
        memory_share: of the device's memory, what may be taken: above 0, at most 1.
        tokens_per_step: most tokens that one tensor-parallel group computes in a step.
        logit_rows: of them, most that sample in one step.
        workspace_bytes: of one step where it was measured, in place of the estimate.

    Raises:
        ConfigError: a share outside (0, 1], or fewer than one token or row.
    """
    if not 0.0 < memory_share <= 1.0:  # also refuses NaN
        raise ConfigError(f"memory_share must be above 0 and at most 1. Given: {memory_share}.")
    for name, value in (("tokens_per_step", tokens_per_step), ("logit_rows", logit_rows)):
        if value < 1:
            raise ConfigError(f"{name} must be at least 1. Given: {value}.")
    weights = math.ceil(
        rank_weight_bytes(shape, sizes.tensor_parallel, sizes.ranks, expert_parallel=sizes.expert_parallel)
    )
    usable = math.floor(hardware.memory_bytes * memory_share)
    workspace = workspace_bytes
    if workspace is None:
        workspace = math.ceil(
            tokens_per_step * _token_bytes(shape, sizes)
            + min(tokens_per_step, logit_rows) * LOGIT_BYTES * shape.vocab_size / sizes.tensor_parallel
        )
    return FreeMemory(
        device_bytes=hardware.memory_bytes,
        usable_bytes=usable,
        weight_bytes=weights,
        workspace_bytes=workspace,
        free_bytes=usable - weights - workspace,
    )


def part_key(part: str) -> str:
    """A part's name as the name of a number: "routed experts" is routed_experts."""
    return part.lower().replace("-", "_").replace(" ", "_")


def derive_free_memory(
    sheet: Worksheet,
    shape: ModelShape,
    hardware: Hardware,
    sizes: RankSizes,
    *,
    memory_share: float,
    tokens_per_step: int,
    logit_rows: int = LOGIT_ROWS,
    workspace_bytes: int | None = None,
) -> FreeMemory:
    """The same, with every number of it in a worksheet.

    Adds ``free_bytes`` and what it is made of: ``device_bytes``, ``usable_bytes``, ``weight_bytes`` with a
    ``weights.PART.bytes`` a part, ``workspace_bytes``, and ``tensor_parallel`` and ``expert_ranks``, which
    are left as they are where the sheet has them already.
    """
    free = free_memory(
        shape,
        hardware,
        sizes,
        memory_share=memory_share,
        tokens_per_step=tokens_per_step,
        logit_rows=logit_rows,
        workspace_bytes=workspace_bytes,
    )
    for name, value, source in (
        ("tensor_parallel", sizes.tensor_parallel, "--tp"),
        ("expert_ranks", sizes.expert_ranks, "--ep"),
        ("hidden_size", shape.hidden_size, "config.json"),
        ("vocab_size", shape.vocab_size, "config.json"),
        ("tokens_per_step", tokens_per_step, "token budget of a step"),
    ):
        if name not in sheet:
            sheet.given(name, value, "", source)
    sheet.given("device_bytes", hardware.memory_bytes, "bytes", f"hardware {hardware.name}")
    sheet.given("memory_share", memory_share, "", "--memory-share")
    sheet.derive("usable_bytes", "floor(device_bytes * memory_share)", "bytes")
    _derive_weights(sheet, shape)
    if workspace_bytes is None:
        _derive_workspace(sheet, shape, min(tokens_per_step, logit_rows))
    else:
        sheet.given("workspace_bytes", workspace_bytes, "bytes", "--reserve", "measured, of one step")
    sheet.derive(
        "free_bytes",
        "usable_bytes - weight_bytes - workspace_bytes",
        "bytes",
        meaning="of a device, for states and KV",
    )
    sheet.check("weight_bytes", free.weight_bytes)
    sheet.check("workspace_bytes", free.workspace_bytes)
    sheet.check("free_bytes", free.free_bytes)
    return free


def _derive_weights(sheet: Worksheet, shape: ModelShape) -> None:
    names = []
    counts = _counts(shape)
    for part, weights in weights_of(shape).items():
        key = f"weights.{part_key(part)}"
        terms = []
        numbers, formulas = counts[part]
        for name, value in numbers.items():
            sheet.given(f"{key}.{name}", value, "", CONFIG)
        for kind, divisor in (
            ("sharded", " / tensor_parallel"),
            ("replicated", ""),
            ("routed", " / expert_ranks"),
        ):
            if count := getattr(weights, kind):
                sheet.derive(f"{key}.{kind}_parameters", formulas[kind].replace("@", f"{key}."), "")
                sheet.check(f"{key}.{kind}_parameters", count)
                terms.append(f"{key}.{kind}_parameters{divisor}")
        if not terms:  # a tied head has no weights of its own
            continue
        sheet.given(f"{key}.bytes_per_parameter", weights.bytes_per_parameter, "bytes", CONFIG)
        total = " + ".join(terms)
        sheet.derive(
            f"{key}.bytes", f"({total}) * {key}.bytes_per_parameter", "bytes", meaning=f"{part} on one rank"
        )
        names.append(f"{key}.bytes")
    sheet.derive("weight_bytes", f"ceil({' + '.join(names)})", "bytes", meaning="weights of one rank")


def _counts(shape: ModelShape) -> dict[str, tuple[dict[str, int], dict[str, str]]]:
    """Of each part the numbers of its config.json, and the formulas of its parameters.

    "@" stands for the part's own prefix.
    """
    table = {"sharded": "vocab_size * hidden_size"}
    each = {
        "sharded": "@layers * @layer_sharded_parameters",
        "replicated": "@layers * @layer_replicated_parameters",
    }
    counts: dict[str, tuple[dict[str, int], dict[str, str]]] = {
        EMBEDDING: ({}, table),
        HEAD: ({}, table),
        NORMS: ({"whole_parameters": shape.norm_parameters}, {"replicated": "@whole_parameters"}),
        DENSE: _of_layers(shape.dense_layers, shape.dense_parameters, 0, each),
    }
    if layer := shape.recurrent:
        part = recurrent_projections(shape)
        counts[part] = _of_layers(shape.recurrent_layers, layer.sharded, layer.replicated, each)
    if kept := shape.attention:
        part = attention_projections(shape)
        counts[part] = _of_layers(shape.attention_layers, kept.sharded, kept.replicated, each)
    if experts := shape.experts:
        whole = experts.latent_down + experts.router
        counts[SHARED] = _of_layers(shape.moe_layers, experts.shared_parameters, 0, each)
        counts[ROUTER] = _of_layers(shape.moe_layers, experts.latent_up, whole, each)
        numbers = {name: getattr(experts, name) for name in _EXPERT_NUMBERS}
        formula = " * ".join(f"@{name}" for name in ("layers", *_EXPERT_NUMBERS))
        counts[EXPERTS] = ({"layers": shape.moe_layers, **numbers}, {"routed": formula})
    return counts


def _of_layers(
    layers: int, sharded: int, replicated: int, formulas: dict[str, str]
) -> tuple[dict[str, int], dict[str, str]]:
    found = {"layers": layers, "layer_sharded_parameters": sharded, "layer_replicated_parameters": replicated}
    return {name: value for name, value in found.items() if value}, formulas


def _derive_workspace(sheet: Worksheet, shape: ModelShape, logit_rows: int) -> None:
    sheet.given("activation_bytes", ACTIVATION_BYTES, "bytes", "bf16")
    sheet.given("residual_rows", _residual_rows(shape), "", "config.json", "rows that live through a step")
    names = []
    for name, (whole, sharded) in _widths(shape).items():
        sheet.given(f"width.{name}.whole", whole, "elements a token", "config.json")
        sheet.given(f"width.{name}.sharded", sharded, "elements a token", "config.json")
        sheet.derive(
            f"width.{name}", f"width.{name}.whole + width.{name}.sharded / tensor_parallel", "elements"
        )
        names.append(f"width.{name}")
    widest = f"max({', '.join(names)})" if len(names) > 1 else names[0]
    sheet.derive("width.widest", widest, "elements", meaning="activations of the widest layer, a token")
    sheet.derive(
        "workspace.token_bytes", "activation_bytes * (residual_rows * hidden_size + width.widest)", "bytes"
    )
    sheet.given("logit_rows", logit_rows, "", "the batch", "rows that sample in one step")
    sheet.given("logit_bytes", LOGIT_BYTES, "bytes", "float32")
    sheet.derive(
        "workspace_bytes",
        "ceil(tokens_per_step * workspace.token_bytes"
        " + logit_rows * logit_bytes * vocab_size / tensor_parallel)",
        "bytes",
        meaning="activations and logits of one step (assumed: one layer's at a time)",
    )


def _token_bytes(shape: ModelShape, sizes: RankSizes) -> float:
    """Activations of one token on one rank while the widest layer runs."""
    widest = max(whole + sharded / sizes.tensor_parallel for whole, sharded in _widths(shape).values())
    return ACTIVATION_BYTES * (_residual_rows(shape) * shape.hidden_size + widest)


def _residual_rows(shape: ModelShape) -> int:
    """Rows of the hidden size that live through a step: running sum, a layer's input, and what is banked."""
    banks = math.ceil(shape.blocks / shape.attn_res_block) if shape.attn_res_block else 0
    return 2 + banks


def _widths(shape: ModelShape) -> dict[str, tuple[int, int]]:
    """Elements of a token inside each kind of layer: (whole on each rank, divided among ranks)."""
    found = {"output": (shape.hidden_size, 0)}
    if layer := shape.recurrent:
        # Queries, keys and a decay; value, output gate and output.
        found["recurrent"] = (
            shape.hidden_size,
            2 * layer.key_heads * layer.row_dim + layer.heads * (layer.row_dim + 3 * layer.rows),
        )
    if kept := shape.attention:
        # Query, gate and output of each head; the new row.
        found["attention"] = (
            shape.hidden_size + kept.row_dim,
            kept.heads * (kept.qk_head_dim + 2 * kept.v_head_dim),
        )
    if experts := shape.experts:
        # A rank computes its share of all groups' (token, expert) pairs, top_k / t for each own token.
        inside = 2 * experts.width + (experts.matrices - 1) * experts.intermediate
        shared = experts.shared_parameters // shape.hidden_size
        found["experts"] = (shape.hidden_size + experts.width, experts.top_k * inside + shared)
    if shape.dense_layers:
        found["dense"] = (shape.hidden_size, shape.dense_parameters // shape.hidden_size)
    return found
