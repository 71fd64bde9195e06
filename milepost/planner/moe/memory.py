"""Ranks and degrees that a deployment may have, and what is left of a rank's memory."""

from __future__ import annotations

from milepost.errors import ConfigError
from milepost.planner.device_memory import FreeMemory, derive_free_memory, free_memory, part_key
from milepost.planner.moe.question import MOST_RANKS, MoeQuestion
from milepost.planner.worksheet import Worksheet
from milepost.shapes.shape import ModelShape
from milepost.sim.cost.by_name import ranks_that_fit
from milepost.sim.cost.hardware import Hardware
from milepost.sim.cost.part_weights import EXPERTS
from milepost.sim.cost.part_work import RankSizes

__all__ = ["degrees_of", "note_memory", "resolve_ranks"]


def resolve_ranks(name: str, shape: ModelShape, hardware: Hardware, question: MoeQuestion) -> int:
    """Ranks of the deployment; where that is left open, the fewest whose memory holds the weights.

    Raises:
        ConfigError: no number of ranks, or not the given one, holds the weights.
    """
    group, groups = question.deployment.tensor_parallel, question.deployment.data_parallel
    ranks = group * groups if groups else _enough_ranks(shape, hardware, question)
    if ranks > MOST_RANKS:
        raise ConfigError(
            f"tensor_parallel x data_parallel must be at most {MOST_RANKS:,}. Given: {ranks:,}."
        )
    free = _free(shape, hardware, question, ranks)
    if free.free_bytes < 0:
        raise ConfigError(
            f"The weights of {name} and one step must fit into {question.deployment.memory_share:.0%} "
            f"of a device. Given: {ranks} x {hardware.name}, each {-free.free_bytes:,} bytes short. "
            f"{_hint(shape, hardware, question, free)}"
        )
    return ranks


def _enough_ranks(shape: ModelShape, hardware: Hardware, question: MoeQuestion) -> int:
    """As many as every cost model takes, doubled where a step's activations want more."""
    ranks = ranks_that_fit(hardware, shape, question.deployment.tensor_parallel)
    enough = ranks
    while _free(shape, hardware, question, enough).free_bytes < 0:
        enough *= 2
        if enough > MOST_RANKS:
            return ranks  # no number is enough, so the fewest are refused
    return enough


def _hint(shape: ModelShape, hardware: Hardware, question: MoeQuestion, free: FreeMemory) -> str:
    """What to change where a rank is too small."""
    group = question.deployment.tensor_parallel
    if free.workspace_bytes > free.usable_bytes - free.weight_bytes > 0:
        return (
            f"A step of {_step_tokens(question):,} tokens takes {free.workspace_bytes:,} bytes of them: use "
            "fewer prefill_tokens."
        )
    ranks = group
    while ranks <= max(group, MOST_RANKS):
        if _free(shape, hardware, question, ranks).free_bytes >= 0:
            return f"The fewest that do: {ranks} (data_parallel {ranks // group})."
        ranks *= 2
    return "More of them don't help: raise tensor_parallel, or choose hardware with more memory."


def _free(shape: ModelShape, hardware: Hardware, question: MoeQuestion, ranks: int) -> FreeMemory:
    """Of a rank where all ranks share one copy of the experts."""
    return free_memory(
        shape,
        hardware,
        _sizes(question, ranks),
        memory_share=question.deployment.memory_share,
        tokens_per_step=_step_tokens(question),
    )


def _sizes(question: MoeQuestion, ranks: int) -> RankSizes:
    group = question.deployment.tensor_parallel
    return RankSizes(tensor_parallel=group, data_parallel=ranks // group)


def _step_tokens(question: MoeQuestion) -> int:
    return max(question.decode_tokens, question.prefill_tokens)


def note_memory(
    sheet: Worksheet, shape: ModelShape, hardware: Hardware, question: MoeQuestion, ranks: int
) -> None:
    """Derive what a rank has for experts: ``rank.other_bytes`` are taken by everything else."""
    derive_free_memory(
        sheet,
        shape,
        hardware,
        _sizes(question, ranks),
        memory_share=question.deployment.memory_share,
        tokens_per_step=_step_tokens(question),
    )
    sheet.derive(
        "rank.other_bytes",
        f"weight_bytes - weights.{part_key(EXPERTS)}.bytes",
        "bytes",
        meaning="weights of a rank but routed experts",
    )


def degrees_of(ranks: int, group: int, num_experts: int) -> tuple[int, ...]:
    """Expert parallel degrees: whole groups of tensor-parallel ranks that divide the ranks.

    Not more than one rank an expert, but for the smallest, one group.
    """
    found = [degree for degree in range(group, ranks + 1, group) if ranks % degree == 0]
    return tuple(degree for degree in found if degree <= num_experts) or (group,)
