"""How long a step takes: what is asked of a model of time, and the work of a step in numbers."""

from __future__ import annotations

from typing import Protocol

import msgspec

from milepost.errors import ConfigError
from milepost.types import Batch

__all__ = ["CostModel", "StepWork", "causal_pairs", "step_seconds", "work_of"]

MOST_SECONDS = 1e9


class StepWork(msgspec.Struct, frozen=True, kw_only=True):
    """What one step computes and moves, over all its rows.

    Attributes:
        tokens: tokens computed.
        rows: requests that take part.
        sampled: rows whose last token's logits are drawn from.
        context: tokens of KV that the rows read, each its own computed ones included.
        pairs: (query token, key token) pairs of causal attention.
        snapshots: states written as snapshots.
        copied_pages: pages copied before the rows run.
    """

    tokens: int
    rows: int
    sampled: int
    context: int
    pairs: int
    snapshots: int = 0
    copied_pages: int = 0

    def beside(self, other: StepWork) -> StepWork:
        """The work of one step that does both."""
        return StepWork(
            **{name: getattr(self, name) + getattr(other, name) for name in self.__struct_fields__}
        )


class CostModel(Protocol):
    """Tells how long a step takes."""

    @property
    def name(self) -> str:
        """Of the hardware, or of where it was measured."""
        ...

    def seconds(self, work: StepWork) -> float:
        """Of one step of the whole model; above 0."""
        ...


def causal_pairs(tokens: int, before: int) -> int:
    """Pairs of query and key of consecutive tokens behind `before` others."""
    return tokens * before + tokens * (tokens + 1) // 2


def work_of(batch: Batch) -> StepWork:
    """The work of a batch."""
    tokens = sampled = context = pairs = snapshots = 0
    for row in batch.rows:
        count = len(row.token_ids)
        end = row.start + count
        tokens += count
        sampled += row.samples
        context += end
        pairs += causal_pairs(count, row.start)
        snapshots += len(row.snapshots)
    return StepWork(
        tokens=tokens,
        rows=len(batch.rows),
        sampled=sampled,
        context=context,
        pairs=pairs,
        snapshots=snapshots,
        copied_pages=len(batch.copies),
    )


def step_seconds(cost: CostModel, work: StepWork) -> float:
    """How long a step takes.

    Raises:
        ConfigError: absurdly long, or no number: sums of such times would be none either.
    """
    seconds = cost.seconds(work)
    if not seconds <= MOST_SECONDS:  # also refuses NaN
        raise ConfigError(
            f"A step of {work.tokens:,} tokens must take {MOST_SECONDS:g} s at most, some 30 years. Given: "
            f"{seconds:g} s on {cost.name}. Mend the figures of the hardware."
        )
    return seconds
