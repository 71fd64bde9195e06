"""What a rank holds, and how many ranks a model takes."""

from __future__ import annotations

from milepost.errors import ConfigError
from milepost.planner.moe.question import MOST_RANKS, MoeQuestion
from milepost.planner.worksheet import Worksheet
from milepost.shapes.shape import ModelShape

__all__ = ["degrees_of", "note_dense", "resolve_ranks"]


def note_dense(sheet: Worksheet, name: str, shape: ModelShape, question: MoeQuestion) -> None:
    """Bytes of everything but routed experts on one rank, and of what it may hold."""
    experts = shape.experts
    source = f"config.json of {name}"
    tables = 1 if shape.tied_embeddings else 2
    sharded = tables * shape.vocab_size * shape.hidden_size + shape.dense_layers * shape.dense_parameters
    replicated = shape.norm_parameters
    for count, layer in (
        (shape.recurrent_layers, shape.recurrent),
        (shape.attention_layers, shape.attention),
    ):
        if layer is not None:
            sharded += count * layer.sharded
            replicated += count * layer.replicated
    if experts is not None:
        sharded += shape.moe_layers * (experts.shared_parameters + experts.latent_up)
        replicated += shape.moe_layers * (experts.latent_down + experts.router)
    sheet.given(
        "sharded_parameters", sharded, "", source, "but routed experts; divided by tensor parallelism"
    )
    sheet.given("replicated_parameters", replicated, "", source, "whole on every rank")
    sheet.given("tensor_parallel", question.deployment.tensor_parallel, "ranks", "--tp")
    sheet.derive(
        "rank.dense_bytes", "2 * (sharded_parameters / tensor_parallel + replicated_parameters)", "bytes"
    )
    sheet.given("memory_share", question.deployment.memory_share, "", "--memory-share")
    sheet.derive("rank.limit_bytes", "memory_share * device.memory_bytes", "bytes")


def resolve_ranks(sheet: Worksheet, name: str, hardware: str, question: MoeQuestion) -> int:
    """Ranks of the deployment; the fewest groups, by powers of two, where that is left open.

    Raises:
        ConfigError: no number of ranks, or not the given one, holds the weights.
    """
    group, groups = question.deployment.tensor_parallel, question.deployment.data_parallel
    fewest = _fewest_ranks(sheet, group)
    if fewest is None:
        raise ConfigError(
            f"The weights of {name} must fit into {sheet['rank.limit_bytes']:,.0f} bytes of a device. Given: "
            f"{hardware} at tensor_parallel {group}, where each holds {sheet['rank.dense_bytes']:,.0f} bytes before "
            "any expert. Raise tensor_parallel, or choose hardware with more memory."
        )
    ranks = group * groups if groups else fewest
    if _rank_bytes(sheet, ranks) > sheet["rank.limit_bytes"]:
        raise ConfigError(
            f"The weights of {name} must fit into {sheet['rank.limit_bytes']:,.0f} bytes of a device. Given: {ranks} "
            f"x {hardware}, where each holds {_rank_bytes(sheet, ranks):,.0f} bytes at best. The fewest that do: "
            f"{fewest} (tensor_parallel {group}, data_parallel {fewest // group})."
        )
    if ranks > MOST_RANKS:
        raise ConfigError(
            f"tensor_parallel x data_parallel must be at most {MOST_RANKS:,}. Given: {ranks:,}."
        )
    return ranks


def _fewest_ranks(sheet: Worksheet, group: int) -> int | None:
    ranks = group
    while _rank_bytes(sheet, ranks) > sheet["rank.limit_bytes"]:
        ranks *= 2
        if ranks > max(group, MOST_RANKS):
            return None
    return ranks


def _rank_bytes(sheet: Worksheet, ranks: int) -> float:
    """Of a rank at the highest degree, with experts dealt out evenly."""
    num_experts = int(sheet["num_experts"])
    held = -(-num_experts // min(ranks, num_experts))
    return sheet["rank.dense_bytes"] + sheet["moe_layers"] * held * sheet["expert_bytes"]


def degrees_of(ranks: int, num_experts: int) -> tuple[int, ...]:
    """Expert parallel degrees: what divides the ranks, up to one expert a rank."""
    return tuple(degree for degree in range(1, min(ranks, num_experts) + 1) if ranks % degree == 0)
