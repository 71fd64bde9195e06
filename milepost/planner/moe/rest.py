"""What a layer of experts does besides: router, latent projections, shared experts, sums between ranks."""

from __future__ import annotations

from milepost.planner.moe.tails import note_all_reduce, note_tail_facts, note_tails
from milepost.planner.worksheet import Worksheet
from milepost.shapes.shape import ExpertsShape

__all__ = ["note_rest", "note_rest_facts"]

_ITEM = 2


def note_rest(
    sheet: Worksheet, experts: ExpertsShape, phase: str, tokens: int, option: str, *, multicast: bool
) -> None:
    """Derive ``PHASE.rest.seconds``, and ``PHASE.tail_rest.seconds`` where ranks share heads.

    The former holds where results come back to the rank that sent the token: the up-projection follows, and
    what tensor-parallel ranks have of the shared experts is added up. The latter holds where one group has a
    copy of the experts of its own, whose partial results a tail adds up.
    """
    sheet.given(f"{phase}.tokens", tokens, "tokens", option, "of a group of tensor-parallel ranks, a step")
    _note_product(sheet, phase, "front", "router_parameters + latent_down_parameters")
    _note_product(sheet, phase, "shared", "shared_parameters / tensor_parallel")
    if sheet["tensor_parallel"] == 1:
        _note_product(sheet, phase, "end", "latent_up_parameters")
    else:
        _note_sum(sheet, experts, phase)
        tail = f"{phase}.end.seconds"  # without a latent it is the same sum
        if experts.latent:
            times = note_tails(sheet, "group", f"{phase}.tail", tokens)
            tail = f"{phase}.tail.{times.winner(multicast=multicast)}.seconds"
        _note_whole(sheet, phase, "tail_rest", tail)
    _note_whole(sheet, phase, "rest", f"{phase}.end.seconds")


def _note_whole(sheet: Worksheet, phase: str, name: str, end: str) -> None:
    sheet.derive(
        f"{phase}.{name}.seconds",
        f"{phase}.front.seconds + {phase}.shared.seconds + {end}",
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


def _note_sum(sheet: Worksheet, experts: ExpertsShape, phase: str) -> None:
    """The latents of all tokens gathered, the up-projection by columns, an all-reduce of [tokens, hidden]."""
    end = f"{phase}.sum.seconds"
    sheet.derive(f"{phase}.sum_bytes", f"{_ITEM} * {phase}.tokens * hidden_size", "bytes")
    note_all_reduce(sheet, "group", f"{phase}.sum", f"{phase}.sum_bytes")
    if experts.latent:
        sheet.derive(
            f"{phase}.gather.seconds",
            "group.latency + (group.ranks - 1) / group.ranks"
            f" * {_ITEM} * {phase}.tokens * expert_width / group.link",
            "seconds",
            meaning="each rank has the latents of its own tokens",
        )
        _note_product(sheet, phase, "up", "latent_up_parameters / tensor_parallel")
        end = f"{phase}.gather.seconds + {phase}.up.seconds + {end}"
    sheet.derive(f"{phase}.end.seconds", end, "seconds")
