"""Where snapshots stood and which were used: an eviction policy that another one is asked through."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from milepost.prefix.eviction import Candidate, EvictionPolicy

__all__ = ["DepthCounts", "WatchedEviction", "depth_edges"]


def depth_edges(longest: int) -> tuple[int, ...]:
    """Upper ends of bins for positions up to `longest` tokens: powers of two from 256, and those between."""
    edges = [256]
    while edges[-1] < longest:
        power = 1 << (edges[-1].bit_length() - 1)
        edges.append(power * 3 // 2 if edges[-1] == power else power * 2)
    return tuple(edges)


class DepthCounts:
    """Counts by position.

    Attributes:
        counts: one for each edge.
    """

    def __init__(self, edges: Sequence[int]) -> None:
        self._edges = edges
        self.counts = [0] * len(edges)

    def add(self, position: int) -> None:
        """Count one at `position`; what lies behind the last edge counts to it."""
        self.counts[min(bisect_left(self._edges, position), len(self.counts) - 1)] += 1

    def clear(self) -> None:
        """Begin anew."""
        self.counts = [0] * len(self._edges)


class WatchedEviction:
    """Asks `policy` and counts on the way.

    Attributes:
        written_at: snapshots written.
        used_at: snapshots resumed from for the first time.
    """

    def __init__(self, policy: EvictionPolicy, edges: Sequence[int]) -> None:
        self._policy = policy
        self.worth = policy.worth  # the hot one: not a call more than needed
        self.steady = policy.steady
        self.looked_up = policy.looked_up
        self.dropped = policy.dropped
        self.written_at = DepthCounts(edges)
        self.used_at = DepthCounts(edges)

    @property
    def name(self) -> str:
        """The policy's own."""
        return self._policy.name

    def written(self, candidate: Candidate, now: float) -> None:
        """Count it, and tell the policy."""
        self.written_at.add(candidate.position)
        self._policy.written(candidate, now)

    def consumed(self, candidate: Candidate, now: float) -> None:
        """Count it if it is its first time, and tell the policy."""
        if not candidate.hits:
            self.used_at.add(candidate.position)
        self._policy.consumed(candidate, now)
