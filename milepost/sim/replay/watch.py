"""What a run counts as it goes: policies that others are asked through."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from weakref import WeakSet

from milepost.prefix.eviction import Candidate, EvictionPolicy
from milepost.prefix.plan import PromptView, Reason, SnapshotPolicy

__all__ = ["DepthCounts", "WatchedEviction", "WatchedPolicy", "depth_edges"]


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


class WatchedPolicy:
    """Passes everything on to `policy`, and says when a request has been looked up for the first time.

    Attributes:
        on_first_look: called with the request's id, right after its losses were counted.
    """

    def __init__(self, policy: SnapshotPolicy) -> None:
        self._policy = policy
        self.plan = policy.plan
        self.on_first_look: Callable[[str], None] | None = None

    @property
    def name(self) -> str:
        """The policy's own."""
        return self._policy.name

    def observe(self, view: PromptView) -> None:
        """Let the policy learn, too."""
        if self.on_first_look is not None:
            self.on_first_look(view.request_id)
        self._policy.observe(view)


class WatchedEviction:
    """Asks `policy` and counts on the way: where snapshots stood, and which were used.

    Attributes:
        written_at: snapshots written since `begin`.
        used_at: those of them that were resumed from at least once.
    """

    def __init__(self, policy: EvictionPolicy, edges: Sequence[int]) -> None:
        self._policy = policy
        self.worth = policy.worth  # the hot one: not a call more than needed
        self.steady = policy.steady
        self.looked_up = policy.looked_up
        self.dropped = policy.dropped
        self.written_at = DepthCounts(edges)
        self.used_at = DepthCounts(edges)
        self._older: WeakSet[Candidate] = WeakSet()
        self._spare: WeakSet[Candidate] = WeakSet()  # they may be told of again, with a better reason

    @property
    def name(self) -> str:
        """The policy's own."""
        return self._policy.name

    def begin(self, standing: Iterable[Candidate]) -> None:
        """Count anew, without the snapshots that stand by now."""
        self.written_at.clear()
        self.used_at.clear()
        self._older = WeakSet(standing)

    def written(self, candidate: Candidate, now: float) -> None:
        """Count it, once, and tell the policy."""
        if candidate.reason is Reason.SPARE:
            self._spare.add(candidate)
            self.written_at.add(candidate.position)
        elif candidate not in self._spare:
            self.written_at.add(candidate.position)
        self._policy.written(candidate, now)

    def consumed(self, candidate: Candidate, now: float) -> None:
        """Count it if it is its first time, and tell the policy."""
        if not candidate.hits and candidate not in self._older:
            self.used_at.add(candidate.position)
        self._policy.consumed(candidate, now)
