"""How long a step takes: what is asked of a model of time, and the work of a step in numbers."""

from __future__ import annotations

from typing import Protocol

import msgspec

from milepost.types import Batch

__all__ = ["CostModel", "StepWork", "work_of"]


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


class CostModel(Protocol):
    """Tells how long a step takes."""

    @property
    def name(self) -> str:
        """Of the hardware, or of where it was measured."""
        ...

    def seconds(self, work: StepWork) -> float:
        """Of one step of the whole model; above 0."""
        ...


def work_of(batch: Batch) -> StepWork:
    """The work of a batch."""
    tokens = sampled = context = pairs = snapshots = 0
    for row in batch.rows:
        count = len(row.token_ids)
        end = row.start + count
        tokens += count
        sampled += row.samples
        context += end
        pairs += count * row.start + count * (count + 1) // 2
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
