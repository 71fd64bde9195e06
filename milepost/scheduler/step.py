"""A step while it is planned and while it runs."""

from __future__ import annotations

from milepost.scheduler.sequence import Sequence
from milepost.types import Batch

__all__ = ["Step"]


class Step:
    """A step from planning until its result is in: its rows' sequences and the budget left.

    Attributes:
        budget: tokens that it may still take.
        chunks: its sequences and the tokens that it computes of each.
        num_snapshots: snapshots that it leaves, spare ones not counted.
        batch: as it was sent.
        sequences: by request id.
    """

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.chunks: list[tuple[Sequence, int]] = []
        self.num_snapshots = 0
        self.batch: Batch | None = None
        self.sequences: dict[str, Sequence] = {}

    def take(self, sequence: Sequence, count: int) -> None:
        """Let the step compute the next `count` tokens of `sequence`."""
        self.chunks.append((sequence, count))
        self.budget -= count
