"""What the prefix cache keeps for one request: its keys, its place in the index, where snapshots are due."""

from __future__ import annotations

from bisect import bisect_right, insort

from milepost.prefix.keys import Keys
from milepost.prefix.nodes import Node, Snapshot
from milepost.prefix.plan import PlannedSnapshot, Reason, SnapshotPlan
from milepost.prefix.stays import NEW
from milepost.types import Request

__all__ = ["Trail"]

_NEVER = 1 << 62


class Trail:
    """One request's way through the cache, over all its lives.

    Attributes:
        request: whose it is.
        chain: the keys of its tokens.
        base: the node that it resumed from, held as long as it runs: it shares the blocks below. The
            same tokens may be cached again in other pages, so holding what it publishes is not enough.
        end: the deepest node of its path, held so that there is a path to publish on.
        unit_node: the deepest unit node of its path.
        source: the snapshot that it resumed from, until the copy has run.
        planned_to: tokens behind which nothing is cached or planned: the prompt, if the output won't
            come back.
        next_due: the next position at which a snapshot is due; far beyond any when there is none.
        keep_last: whether the last computed token gets a snapshot.
        keep_output_ends: whether message ends that the model makes get one.
        match_unit: tokens between full keys.
        private: whether it neither uses nor feeds the cache any more, because there is no memory for both.
        fetched: whether a load was begun for it in this life.
        first_look: whether nobody has looked this request up yet.
        hit: tokens that its first look-up saved.
        visit: what that look-up told the eviction policy.
    """

    __slots__ = (
        "_next_point",
        "_periods",
        "_points",
        "_spare",
        "base",
        "chain",
        "end",
        "fetched",
        "first_look",
        "hit",
        "keep_last",
        "keep_output_ends",
        "match_unit",
        "next_due",
        "planned_to",
        "private",
        "request",
        "source",
        "unit_node",
        "visit",
    )

    def __init__(self, request: Request, chain: Keys, root: Node, match_unit: int) -> None:
        self.request = request
        self.chain = chain
        self.match_unit = match_unit
        self.base = root
        self.end = root
        self.unit_node = root
        self.source: Snapshot | None = None
        self.planned_to = _NEVER if request.output_reusable else len(request.prompt_token_ids)
        self.private = False
        self.fetched = False
        self.first_look = True
        self.hit = 0
        self.visit = NEW
        self.follow(SnapshotPlan(), 0)

    @property
    def prompt_end(self) -> int:
        """Where the next turn looks: the last message end of the prompt, or one token before its end."""
        ends = self.request.message_ends
        return min(ends[-1] if ends else _NEVER, len(self.request.prompt_token_ids) - 1)

    def follow(self, plan: SnapshotPlan, start: int) -> None:
        """Begin a life at `start` computed tokens with this plan."""
        self._points = [point for point in plan.points if point.position <= self.planned_to]
        self._next_point = 0
        self._periods = plan.periods
        self._spare = plan.spare_period
        self.keep_last = plan.last
        self.keep_output_ends = plan.output_ends
        self._aim(start)

    def due(self, begin: int, end: int) -> list[PlannedSnapshot]:
        """The snapshots due at positions above `begin`, at most at `end`, ascending; asked in order."""
        if end < self.next_due:
            return []
        limit = min(end, self.planned_to)
        found: dict[int, Reason] = {}
        # A place that several ask for stands for the best of their reasons.
        for period, reason in self._multiples():
            for position in range((begin // period + 1) * period, limit + 1, period):
                found[position] = reason
        for point in self._points[self._next_point :]:
            if point.position > end:
                break
            if point.position > begin:
                found[point.position] = point.reason
        self._aim(end)
        return [PlannedSnapshot(position, found[position]) for position in sorted(found)]

    def add_point(self, position: int, reason: Reason, computed: int) -> None:
        """Also leave a snapshot at `position`, above the `computed` tokens."""
        if all(point.position != position for point in self._points):
            insort(self._points, PlannedSnapshot(position, reason), key=_position)
        self._aim(computed)

    def points_between(self, low: int, high: int) -> list[int]:
        """Planned positions above `low` and at most `high`, ascending; those of periods only the last."""
        found = {point.position for point in self._points if low < point.position <= high}
        for period, _ in self._multiples():
            last = min(high, self.planned_to) // period * period
            if last > low:
                found.add(last)
        return sorted(found)

    def _multiples(self) -> list[tuple[int, Reason]]:
        """(period, reason), the weakest reason first."""
        spare = [(self._spare, Reason.SPARE)] if self._spare else []
        return spare + [(period, Reason.PERIOD) for period in self._periods]

    def _aim(self, computed: int) -> None:
        self._next_point = bisect_right(self._points, computed, key=_position)
        upcoming = [(computed // period + 1) * period for period, _ in self._multiples()]
        upcoming = [position for position in upcoming if position <= self.planned_to]
        if self._next_point < len(self._points):
            upcoming.append(self._points[self._next_point].position)
        self.next_due = min(upcoming, default=_NEVER)


def _position(point: PlannedSnapshot) -> int:
    return point.position
