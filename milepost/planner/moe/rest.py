"""What a layer of experts does besides: router, latent projections, shared experts, sums between ranks."""

from __future__ import annotations

from milepost.planner.moe.tails import note_tail_facts, note_tails
from milepost.planner.worksheet import Worksheet
from milepost.shapes.shape import ExpertsShape

__all__ = ["note_rest", "note_rest_facts"]

_ITEM = 2


def note_rest(
    sheet: Worksheet, experts: ExpertsShape, phase: str, tokens: int, option: str, *, shared_tokens: bool
) -> None:
    """Derive ``PHASE.rest.seconds``, which no expert parallel degree changes."""
    sheet.given(f"{phase}.tokens", tokens, "tokens", option, "of a group of tensor-parallel ranks, a step")
    _note_product(sheet, phase, "front", "router_parameters + latent_down_parameters")
    _note_product(sheet, phase, "shared", "shared_parameters / tensor_parallel")
    divided = sheet["tensor_parallel"] > 1
    if not divided:
        _note_product(sheet, phase, "end", "latent_up_parameters")
    elif experts.latent and shared_tokens:
        best = note_tails(sheet, "group", f"{phase}.tail", tokens).best
        sheet.derive(
            f"{phase}.end.seconds", f"{phase}.tail.{best}.seconds", "seconds", meaning="quickest tail"
        )
    else:
        _note_sum(sheet, phase)
    sheet.derive(
        f"{phase}.rest.seconds",
        f"{phase}.front.seconds + {phase}.shared.seconds + {phase}.end.seconds",
        "seconds",
        meaning="of a layer, besides routed experts and their exchange",
    )


def note_rest_facts(sheet: Worksheet, name: str, experts: ExpertsShape, ranks: int) -> None:
    """Parameters of these parts, and the links of `ranks` tensor-parallel ranks."""
    for entry, value in (
        ("router_parameters", experts.router),
        ("latent_down_parameters", experts.latent_down),
        ("latent_up_parameters", experts.latent_up),
        ("shared_parameters", experts.shared_parameters),
    ):
        sheet.given(entry, value, "", f"config.json of {name}")
    note_tail_facts(sheet, "group", ranks)


def _note_product(sheet: Worksheet, phase: str, part: str, parameters: str) -> None:
    """2 FLOPs a weight and token; weights read once a step (bf16)."""
    sheet.derive(
        f"{phase}.{part}.seconds",
        f"max(2 * {phase}.tokens * ({parameters}) / rate.bf16, {_ITEM} * ({parameters}) / rate.memory)",
        "seconds",
    )


def _note_sum(sheet: Worksheet, phase: str) -> None:
    """The up-projection by columns, and one all-reduce of [tokens, hidden] among the group."""
    _note_product(sheet, phase, "up", "latent_up_parameters / tensor_parallel")
    size = f"{_ITEM} * {phase}.tokens * hidden"
    sheet.derive(
        f"{phase}.end.seconds",
        f"{phase}.up.seconds + min(group.latency + (group.ranks - 1) * {size} / group.link, "
        f"2 * group.latency + 2 * (group.ranks - 1) / group.ranks * {size} / group.link)",
        "seconds",
    )
