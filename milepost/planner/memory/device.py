"""What takes the memory of a device: weights by part, a step's workspace, and what is left."""

from __future__ import annotations

import msgspec

from milepost.planner.device_memory import derive_free_memory, part_key
from milepost.planner.memory.question import MemoryQuestion
from milepost.planner.worksheet import Worksheet
from milepost.shapes.shape import ModelShape
from milepost.sim.cost.hardware import Hardware
from milepost.sim.cost.part_weights import PartWeights, weights_of
from milepost.sim.cost.part_work import RankSizes

__all__ = ["Device", "PartMemory", "derive_device", "rank_division"]


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
        device_bytes: all of the device.
        usable_bytes: that weights, workspace, states and KV may take; the rest is the driver's, the graphs'.
        weight_bytes: weights on the device.
        workspace_bytes: activations of the largest step.
        budget_bytes: for states and KV: what is left, or what was asked for.
        asked: whether it was asked for, so that the other figures don't decide it.
    """

    parts: tuple[PartMemory, ...]
    parameters: int
    checkpoint_bytes: float
    device_bytes: int
    usable_bytes: int
    weight_bytes: int
    workspace_bytes: int
    budget_bytes: int
    asked: bool


def rank_division(question: MemoryQuestion, data_parallel: int) -> RankSizes:
    """How the ranks divide the model, with `data_parallel` as resolved."""
    deployment = question.deployment
    return RankSizes(
        tensor_parallel=deployment.tensor_parallel,
        data_parallel=data_parallel,
        expert_parallel=deployment.expert_parallel,
        context_parallel=deployment.context_parallel,
    )


def derive_device(
    sheet: Worksheet, shape: ModelShape, hardware: Hardware, question: MemoryQuestion, data_parallel: int
) -> Device:
    """Divide the memory of a device.

    Args:
        sheet: gets the numbers and formulas; "budget_bytes" is what states and KV may take.
        shape: the model.
        hardware: the devices.
        question: how the model is divided, and what is kept free.
        data_parallel: groups of tensor-parallel ranks, as resolved.

    Returns:
        Its `budget_bytes` is below 1 where the weights don't fit.
    """
    free = derive_free_memory(
        sheet,
        shape,
        hardware,
        rank_division(question, data_parallel),
        memory_share=question.deployment.memory_share,
        tokens_per_step=question.step_tokens,
        workspace_bytes=question.reserve_bytes,
    )
    if question.memory_bytes:
        sheet.given("budget_bytes", question.memory_bytes, "bytes", "--memory", "for states and KV")
    else:
        sheet.derive("budget_bytes", "free_bytes", "bytes", meaning="for states and KV")
    weights = weights_of(shape)
    parts = tuple(_part(sheet, name, weights[name]) for name in weights)
    keys = [f"weights.{part_key(name)}" for name, part in weights.items() if part.parameters]
    for total in ("parameters", "checkpoint_bytes"):
        sheet.derive(
            total,
            " + ".join(f"{key}.{total}" for key in keys),
            "" if total == "parameters" else "bytes",
            meaning="of the whole model",
        )
    return Device(
        parts=parts,
        parameters=int(sheet["parameters"]),
        checkpoint_bytes=sheet["checkpoint_bytes"],
        device_bytes=free.device_bytes,
        usable_bytes=free.usable_bytes,
        weight_bytes=free.weight_bytes,
        workspace_bytes=free.workspace_bytes,
        budget_bytes=int(sheet["budget_bytes"]),
        asked=bool(question.memory_bytes),
    )


def _part(sheet: Worksheet, name: str, part: PartWeights) -> PartMemory:
    key = f"weights.{part_key(name)}"
    if not part.parameters:  # a tied head has none of its own
        return PartMemory(name=name, parameters=0, checkpoint_bytes=0, device_bytes=0)
    kinds = [kind for kind in ("sharded", "replicated", "routed") if getattr(part, kind)]
    parameters = sheet.derive(
        f"{key}.parameters", " + ".join(f"{key}.{kind}_parameters" for kind in kinds), "", meaning=name
    )
    stored = sheet.derive(f"{key}.checkpoint_bytes", f"{key}.parameters * {key}.bytes_per_parameter", "bytes")
    return PartMemory(
        name=name,
        parameters=int(parameters),
        checkpoint_bytes=stored,
        device_bytes=sheet[f"{key}.bytes"],
    )
