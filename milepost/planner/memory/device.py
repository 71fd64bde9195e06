"""What takes the memory of a device: weights by part, a step's workspace, and what is left."""

from __future__ import annotations

import msgspec

from milepost.planner.deployment import Deployment
from milepost.planner.memory.question import MemoryQuestion
from milepost.planner.worksheet import Worksheet
from milepost.shapes.shape import ModelShape
from milepost.sim.cost.hardware import Hardware
from milepost.sim.cost.part_weights import PartWeights, weights_of

__all__ = ["Device", "PartMemory", "device_memory", "part_names"]

SAMPLED_ROWS = 256
"""Rows of a step whose logits are held at once, for the estimate of the workspace."""


class PartMemory(msgspec.Struct, frozen=True, kw_only=True):
    """Weights of one part of the model.

    Attributes:
        name: of the part.
        parameters: of the whole model.
        checkpoint_bytes: of the whole model, as stored.
        device_bytes: on one device.
    """

    name: str
    parameters: int
    checkpoint_bytes: float
    device_bytes: float


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """The memory of one device.

    Attributes:
        parts: weights, by part.
        parameters: of the whole model.
        checkpoint_bytes: of the whole model's weights.
        memory_bytes: all of the device.
        outside_bytes: what is left to driver, communication and graphs.
        weight_bytes: weights on the device.
        workspace_bytes: activations of the largest step.
        free_bytes: what is left for states and KV; what was asked for where a question says it.
        asked: whether `free_bytes` was asked for, so that the other figures don't decide it.
    """

    parts: tuple[PartMemory, ...]
    parameters: int
    checkpoint_bytes: float
    memory_bytes: int
    outside_bytes: float
    weight_bytes: float
    workspace_bytes: float
    free_bytes: int
    asked: bool


def part_names(shape: ModelShape) -> dict[str, str]:
    """Names of derivations of the model's parts: "routed experts" is "weights.routed_experts"."""
    return {name: f"weights.{name.replace(' ', '_').replace('-', '_')}" for name in weights_of(shape)}


def device_memory(
    sheet: Worksheet, shape: ModelShape, hardware: Hardware, question: MemoryQuestion, data_parallel: int
) -> Device:
    """Divide the memory of a device.

    Args:
        sheet: gets the numbers and formulas; must have `rank_bytes`'s.
        shape: the model.
        hardware: the devices.
        question: how the model is divided, and what is kept free.
        data_parallel: groups of tensor-parallel ranks, as resolved.

    Returns:
        Its `free_bytes` is below 1 where the weights don't fit.
    """
    deployment = question.deployment
    sheet.given("data_parallel", data_parallel, "groups", "--dp")
    sheet.derive("devices", "tensor_parallel * data_parallel", "devices")
    if deployment.expert_parallel:
        sheet.given("expert_parallel", deployment.expert_parallel, "ranks", "--ep")
    else:
        sheet.derive("expert_parallel", "devices", "ranks", meaning="all ranks share one copy of the experts")
    parts = _weights(sheet, shape)
    memory = sheet.given("device.memory_bytes", hardware.memory_bytes, "bytes", hardware.name)
    sheet.given("memory_share", deployment.memory_share, "", "--memory-share")
    _workspace(sheet, shape, question, deployment)
    outside = sheet.derive(
        "outside_bytes",
        "device.memory_bytes - memory_share * device.memory_bytes",
        "bytes",
        meaning="left to driver, communication, captured graphs",
    )
    if question.memory_bytes:
        free = sheet.given("free_bytes", question.memory_bytes, "bytes", "--memory", "for states and KV")
    else:
        free = sheet.derive(
            "free_bytes",
            "floor(memory_share * device.memory_bytes - weights_bytes - workspace_bytes)",
            "bytes",
            meaning="of a device, for states and KV",
        )
    return Device(
        parts=parts,
        parameters=int(sheet["parameters"]),
        checkpoint_bytes=sheet["checkpoint_bytes"],
        memory_bytes=int(memory),
        outside_bytes=outside,
        weight_bytes=sheet["weights_bytes"],
        workspace_bytes=sheet["workspace_bytes"],
        free_bytes=int(free),
        asked=bool(question.memory_bytes),
    )


def _weights(sheet: Worksheet, shape: ModelShape) -> tuple[PartMemory, ...]:
    weights, names = weights_of(shape), part_names(shape)
    rows = [_part(sheet, part, names[part], weights[part]) for part in weights]
    prefixes = list(names.values())
    for name, field in (
        ("parameters", "parameters"),
        ("checkpoint_bytes", "checkpoint_bytes"),
        ("weights_bytes", "device_bytes"),
    ):
        unit = "" if name == "parameters" else "bytes"
        meaning = "of weights on a device" if name == "weights_bytes" else "of the whole model"
        sheet.derive(name, " + ".join(f"{prefix}.{field}" for prefix in prefixes), unit, meaning=meaning)
    return tuple(rows)


def _part(sheet: Worksheet, title: str, name: str, part: PartWeights) -> PartMemory:
    source = "tensors of config.json, milepost.sim.cost.part_weights"
    size = part.bytes_per_parameter
    sheet.given(f"{name}.sharded", part.sharded, "", source, "divided among tensor-parallel ranks")
    sheet.given(f"{name}.replicated", part.replicated, "", source, "whole on every rank")
    sheet.given(f"{name}.routed", part.routed, "", source, "divided among expert-parallel ranks")
    whole = int(size) if float(size).is_integer() else size
    sheet.given(f"{name}.bytes_per_parameter", whole, "bytes", source)
    parameters = sheet.derive(f"{name}.parameters", f"{name}.sharded + {name}.replicated + {name}.routed", "")
    stored = sheet.derive(
        f"{name}.checkpoint_bytes", f"{name}.parameters * {name}.bytes_per_parameter", "bytes"
    )
    held = sheet.derive(
        f"{name}.device_bytes",
        f"({name}.sharded / tensor_parallel + {name}.replicated + {name}.routed / expert_parallel)"
        f" * {name}.bytes_per_parameter",
        "bytes",
    )
    return PartMemory(name=title, parameters=int(parameters), checkpoint_bytes=stored, device_bytes=held)


def _workspace(sheet: Worksheet, shape: ModelShape, question: MemoryQuestion, deployment: Deployment) -> None:
    if question.reserve_bytes is not None:
        sheet.given("workspace_bytes", question.reserve_bytes, "bytes", "--reserve", "activations of a step")
        return
    widths = _layer_widths(shape, deployment.tensor_parallel)
    banks = 0 if shape.attn_res_block is None else -(-shape.blocks // shape.attn_res_block)
    config = "config.json"
    sheet.given("step_tokens", question.step_tokens, "tokens", "--step-tokens", "of the largest step")
    sheet.given("hidden_size", shape.hidden_size, "", config)
    sheet.given("banks", banks, "", config, "residual sums that Attention Residuals keep")
    for name, width in widths.items():
        sheet.given(f"workspace.{name}_width", width, "", config, _WIDTHS[name])
    sheet.given("sampled_rows", SAMPLED_ROWS, "rows", "an assumption", "whose logits are held at once")
    sheet.given("vocab_size", shape.vocab_size, "", config)
    widest = ", ".join(f"workspace.{name}_width" for name in widths)
    sheet.derive(
        "workspace_bytes",
        f"2 * step_tokens * ((3 + banks) * hidden_size + max({widest}))"
        " + 4 * sampled_rows * vocab_size / tensor_parallel",
        "bytes",
        meaning="estimate of a step's activations: bf16 residuals and the widest layer, float32 logits",
    )


_WIDTHS = {
    "recurrent": "elements a token of a rank: convolution in and out, decay, gate, output",
    "attention": "elements a token of a rank: queries, keys, values, output",
    "feed_forward": "elements a token of a rank: gate and up, their product",
    "experts": "elements a token of a rank: its share of rows to experts, in, inside and out",
}


def _layer_widths(shape: ModelShape, tensor_parallel: int) -> dict[str, float]:
    """Elements that one token takes at once in a layer of each kind, on one rank."""
    widths = {"feed_forward": shape.dense_parameters / shape.hidden_size / tensor_parallel}
    if (layer := shape.recurrent) is not None:
        values = layer.heads // tensor_parallel * layer.rows
        widths["recurrent"] = 2 * layer.conv_channels(tensor_parallel) + 3 * values
    if (attention := shape.attention) is not None:
        heads = attention.heads // tensor_parallel
        widths["attention"] = 2 * heads * (attention.qk_head_dim + attention.v_head_dim)
    if (experts := shape.experts) is not None:
        rows = experts.top_k / tensor_parallel  # of all groups' rows, each rank has this share when balanced
        widths["experts"] = rows * (2 * experts.width + experts.matrices * experts.intermediate)
    return widths
