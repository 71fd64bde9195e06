"""The waiting queue: priority first, then arrival."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from milepost.scheduler.sequence import Sequence

__all__ = ["WaitingQueue"]


class WaitingQueue:
    """Sequences that hold no pages, taken in their order.

    `push`, `pop` and `remove` cost logarithmic time at most. A removed entry leaves its order on
    the heap, three numbers, until its turn comes.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[bool, int, int]] = []
        self._waiting: dict[tuple[bool, int, int], Sequence] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Sequence]:
        """Every waiting sequence, in no particular order."""
        return iter(self._waiting.values())

    def __contains__(self, sequence: Sequence) -> bool:
        return self._waiting.get(sequence.order) is sequence

    def push(self, sequence: Sequence) -> None:
        """Queue `sequence`; one that was here before takes its old place again."""
        self._waiting[sequence.order] = sequence
        heapq.heappush(self._heap, sequence.order)

    def peek(self) -> Sequence | None:
        """The sequence whose turn it is, or None when nobody waits."""
        while self._heap:
            sequence = self._waiting.get(self._heap[0])
            if sequence is not None:
                return sequence
            heapq.heappop(self._heap)
        return None

    def pop(self) -> Sequence:
        """Take the sequence that `peek` shows; KeyError when nobody waits."""
        sequence = self.peek()
        if sequence is None:
            raise KeyError("nobody waits")
        heapq.heappop(self._heap)
        del self._waiting[sequence.order]
        return sequence

    def remove(self, sequence: Sequence) -> None:
        """Take `sequence` out of turn; KeyError when it does not wait."""
        del self._waiting[sequence.order]
