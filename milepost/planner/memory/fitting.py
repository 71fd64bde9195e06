"""Whether a model fits, with how many devices, and what would if it doesn't."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from milepost.errors import ConfigError
from milepost.planner.device_memory import free_memory
from milepost.planner.figures import bytes_text
from milepost.planner.memory.device import Device, derive_device, rank_division
from milepost.planner.memory.question import MemoryQuestion
from milepost.planner.worksheet import Worksheet
from milepost.shapes.shape import ModelShape
from milepost.sim.cost.by_name import ranks_that_fit
from milepost.sim.cost.hardware import Hardware
from milepost.sim.cost.parallel import divides_heads

__all__ = ["note_of_groups", "resolved_device"]

MOST_DEVICES = 1_024


def resolved_device(
    sheet: Worksheet, model: str, shape: ModelShape, hardware: Hardware, question: MemoryQuestion
) -> tuple[int, Device]:
    """Groups of ranks, and the memory of a device.

    Args:
        sheet: has `rank_bytes`'s numbers; gets the device's.
        model: the model's name.
        shape: the model.
        hardware: the devices.
        question: with `data_parallel` 0 for the fewest groups, a power of two, that hold the weights and one
            state with a token.

    Raises:
        ConfigError: the model doesn't fit, or the experts can't be divided so.
    """
    deployment = question.deployment
    ranks = deployment.tensor_parallel

    needs = _needs(sheet, ranks)
    groups = deployment.data_parallel
    if not groups:
        groups = _fewest_groups(shape, hardware, question, ranks, needs(ranks)) or 1
        if deployment.expert_parallel:
            groups = max(1, deployment.expert_parallel // ranks)
    _check_experts(shape, deployment.expert_parallel, ranks, groups)
    device = derive_device(sheet, shape, hardware, question, groups)
    if device.budget_bytes >= needs(ranks):
        return groups, device
    message = _refusal(device, model, hardware, question, needs(ranks))
    raise ConfigError(message if device.asked else message + _nearest(shape, hardware, question, needs))


def _free_bytes(
    shape: ModelShape, hardware: Hardware, question: MemoryQuestion, tensor_parallel: int, groups: int
) -> int:
    """Of a device, if the model were divided so."""
    deployment = msgspec.structs.replace(question.deployment, tensor_parallel=tensor_parallel)
    return free_memory(
        shape,
        hardware,
        rank_division(msgspec.structs.replace(question, deployment=deployment), groups),
        memory_share=deployment.memory_share,
        tokens_per_step=question.step_tokens,
        workspace_bytes=question.reserve_bytes,
    ).free_bytes


def _fewest_groups(
    shape: ModelShape, hardware: Hardware, question: MemoryQuestion, tensor_parallel: int, need: int
) -> int | None:
    """Groups of `tensor_parallel` ranks that leave `need` bytes free on each; None where no number does."""
    experts = question.deployment.expert_parallel
    if experts:
        if experts % tensor_parallel:
            return None
        groups = experts // tensor_parallel  # more of them divide nothing more
        return groups if _free_bytes(shape, hardware, question, tensor_parallel, groups) >= need else None
    groups = _by_weights(shape, hardware, tensor_parallel)
    most = MOST_DEVICES if shape.experts is None else min(MOST_DEVICES, shape.experts.num_experts)
    while groups * tensor_parallel <= max(most, tensor_parallel):
        if _free_bytes(shape, hardware, question, tensor_parallel, groups) >= need:
            return groups
        groups *= 2
    return None


def _by_weights(shape: ModelShape, hardware: Hardware, tensor_parallel: int) -> int:
    """Groups by weights alone, as every other plan and the simulator choose them."""
    try:
        return ranks_that_fit(hardware, shape, tensor_parallel) // tensor_parallel
    except ConfigError:
        return 1


def _check_experts(shape: ModelShape, expert_parallel: int, tensor_parallel: int, groups: int) -> None:
    """One copy of the experts lies on whole groups, on as many ranks as there are experts at most."""
    devices = tensor_parallel * groups
    most = devices if shape.experts is None else max(tensor_parallel, shape.experts.num_experts)
    sharing = expert_parallel or devices
    if sharing % tensor_parallel == 0 and devices % sharing == 0 and sharing <= most:
        return
    fitting = [tensor_parallel * n for n in range(1, groups + 1) if groups % n == 0]
    near = min((n for n in fitting if n <= most), key=lambda n: abs(n - sharing))
    limit = "" if shape.experts is None else f" and be at most the {shape.experts.num_experts} experts"
    raise ConfigError(
        f"expert_parallel must be whole groups of {tensor_parallel} ranks, divide the {devices:,} devices"
        f"{limit}. Given: {expert_parallel or f'all {devices:,}'}. The nearest that does: {near}."
    )


def _refusal(device: Device, model: str, hardware: Hardware, question: MemoryQuestion, need: int) -> str:
    if device.asked:
        return (
            f"memory must hold one state and one token of {model}, {need:,} bytes on a device. "
            f"Given: {question.memory_bytes:,}."
        )
    share = question.deployment.memory_share
    return (
        f"{model} doesn't fit: of the {bytes_text(device.usable_bytes)} of a {hardware.name} that "
        f"memory_share {share:g} leaves, weights take {bytes_text(device.weight_bytes)} and the workspace "
        f"{bytes_text(device.workspace_bytes)}, and a state with one token {bytes_text(need)}."
    )


def note_of_groups(
    sheet: Worksheet, shape: ModelShape, hardware: Hardware, question: MemoryQuestion, groups: int
) -> str | None:
    """That groups were added because fewer don't hold the model, and how far fewer devices would; else None.

    Args:
        sheet: with `rank_bytes`'s numbers.
        shape: the model.
        hardware: the devices.
        question: as `resolved_device` takes it.
        groups: that were chosen.
    """
    deployment = question.deployment
    ranks = deployment.tensor_parallel
    if deployment.data_parallel or deployment.expert_parallel or groups == 1:
        return None
    needs = _needs(sheet, ranks)
    smaller = _fewest_devices(shape, hardware, question, needs)
    text = (
        f"{groups:,} groups of {ranks:,} {hardware.name}: half as many leave too little beside the weights "
        "(--dp chooses others)."
    )
    if smaller is not None and 2 * smaller[0] <= groups * ranks:
        text += f" --tp {smaller[1]} takes {smaller[0]:,} devices instead of {groups * ranks:,}."
    return text


def _needs(sheet: Worksheet, ranks: int) -> Callable[[int], int]:
    """Bytes of a state and a token on one rank, by tensor-parallel ranks; the sheet has those of `ranks`."""
    # Of the KV of a token every rank may hold all; of a state it has its heads.
    return lambda tensor_parallel: int(sheet["state_bytes"] * ranks / tensor_parallel + sheet["token_bytes"])


def _nearest(
    shape: ModelShape, hardware: Hardware, question: MemoryQuestion, needs: Callable[[int], int]
) -> str:
    """The fewest devices that hold the model, at whatever tensor_parallel."""
    best = _fewest_devices(shape, hardware, question, needs)
    if best is None:
        return f" Not even {MOST_DEVICES:,} {hardware.name} hold it: choose hardware with more memory."
    division = f"tensor_parallel {best[1]} and data_parallel {best[0] // best[1]}"
    return f" The fewest that hold it, in 1, 2, 4, ... groups: {best[0]} devices, {division}."


def _fewest_devices(
    shape: ModelShape, hardware: Hardware, question: MemoryQuestion, needs: Callable[[int], int]
) -> tuple[int, int] | None:
    """Devices, and the tensor-parallel ranks among them."""
    context = question.deployment.context_parallel
    heads = [layer.heads for layer in (shape.recurrent, shape.attention) if layer is not None]
    best: tuple[int, int] | None = None
    for ranks in range(1, min(heads, default=1) + 1):
        if not divides_heads(shape, ranks) or ranks % context:
            continue
        groups = _fewest_groups(shape, hardware, question, ranks, needs(ranks))
        if groups is not None and (best is None or (groups * ranks, -ranks) < (best[0], -best[1])):
            best = groups * ranks, ranks
    return best
