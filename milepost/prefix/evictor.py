"""Making room: what goes, in which order, when pages are needed.

    1. KV on which no snapshot stands: nothing can resume there
    2. spare snapshots that nobody used, in an order that halves their density again and again, so
       that a long chain keeps a spread
    3. the snapshot that the eviction policy says is worth least; KV that only it needed then is a
       case of 1

A policy's worth changes with time and with what was evicted around a snapshot. A heap orders
snapshots by their worth when it was last computed; the one on top is measured anew before it goes,
and all of them are once a second, unless the policy is `steady`: its worths only change with use.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

from milepost.errors import InvariantError
from milepost.memory.pool import PagePool
from milepost.prefix.eviction import EvictionPolicy
from milepost.prefix.ghosts import Ghosts
from milepost.prefix.index import PrefixIndex
from milepost.prefix.nodes import Snapshot
from milepost.prefix.plan import Reason

__all__ = ["Evictor"]

_REFRESH_SECONDS = 1.0
_COARSEST = 64  # no grid is coarser
_STALE_ENTRIES = 1024  # entries of what was dropped or used since, before they are cleared away


class Evictor:
    """Chooses what an index gives up.

    Args:
        index: what it gives up from.
        pool: the index's pool.
        policy: orders snapshots by worth.
        clock: seconds.
        ghosts: told of what goes.

    Attributes:
        before_drop: called with a snapshot that the policy gives up, while it and its KV are still
            there; None to let it go.
        num_snapshots: snapshots evicted.
        num_kv_pages: KV pages evicted.
    """

    def __init__(
        self,
        index: PrefixIndex,
        pool: PagePool,
        policy: EvictionPolicy,
        clock: Callable[[], float],
        ghosts: Ghosts,
    ) -> None:
        self._index = index
        self._pool = pool
        self._policy = policy
        self._clock = clock
        self._ghosts = ghosts
        self._heap: list[tuple[float, int, Snapshot]] = []
        self._spares: list[tuple[int, int, Snapshot]] = []
        self._serial = 0
        self._refreshed_at = clock()
        self.before_drop: Callable[[Snapshot], None] | None = None
        self.num_snapshots = 0
        self.num_kv_pages = 0

    def note(self, snapshot: Snapshot) -> None:
        """A snapshot is new, or was used."""
        self._serial += 1
        if snapshot.reason is Reason.SPARE and not snapshot.hits:
            heapq.heappush(self._spares, (_density(snapshot.position), self._serial, snapshot))
        else:
            worth = self._policy.worth(snapshot, self._clock())
            heapq.heappush(self._heap, (worth, self._serial, snapshot))
        if len(self._heap) + len(self._spares) > 2 * self._index.num_snapshots + _STALE_ENTRIES:
            self._refresh(self._clock())

    def make_room(self, count: int) -> bool:
        """Evict until `count` pages are free; False, and nothing has changed, when that can't be."""
        pool = self._pool
        if pool.num_free >= count:
            return True
        if pool.num_free + pool.num_evictable < count:
            return False
        pinned: list[Snapshot] = []
        while not self._drop_bare(count):
            if not (self._drop_spare(pinned) or self._drop_least(pinned)):
                raise InvariantError(f"{count} pages can't be had although {pool.counts()}")
        for snapshot in pinned:
            self.note(snapshot)
        return True

    def may_thin(self, position: int, count: int) -> bool:
        """Whether `thin` has anything to begin with."""
        if self._pool.num_free >= count:
            return True
        return bool(self._spares) and self._spares[0][0] <= _density(position)

    def thin(self, position: int, count: int) -> bool:
        """Free `count` pages for a spare snapshot at `position`, at the cost of other spare ones alone.

        Those are unused ones of grids no coarser than this position's, oldest first. So the spare ones of a
        prompt that outgrows memory spread over all of it, densely only behind, and new prompts get theirs in
        place of old ones. Bare KV stays: it shows where the next prompt leaves it.
        """
        pinned: list[Snapshot] = []
        while self._pool.num_free < count:
            if not self._drop_spare(pinned, _density(position)):
                break
        for snapshot in pinned:
            self.note(snapshot)
        return self._pool.num_free >= count

    def clear(self) -> int:
        """Drop all that nobody holds or pins; returns how many snapshots went."""
        dropped = self._index.clear()
        self._refresh(self._clock())  # an entry of what is gone would keep its whole path in memory
        return dropped

    def drop(self, snapshot: Snapshot) -> None:
        """Evict one snapshot."""
        self._ghosts.state_evicted(snapshot.node)
        self.num_snapshots += 1
        before = snapshot.before
        while before is not None and not before.stands:
            before = before.before
        self._policy.dropped(snapshot, before, self._clock())
        self._index.drop_snapshot(snapshot)

    def _drop_bare(self, count: int) -> bool:
        """Drop bare KV as long as fewer than `count` pages are free; whether they are in the end."""
        pool, free = self._pool, self._pool.num_free
        while free < count:
            node = self._index.drop_bare()
            if node is None:
                return False
            self._ghosts.kv_evicted(node)
            self.num_kv_pages += pool.num_free - free
            free = pool.num_free
        return True

    def _drop_spare(self, pinned: list[Snapshot], coarsest: int = _COARSEST) -> bool:
        while self._spares and self._spares[0][0] <= coarsest:
            _, _, snapshot = heapq.heappop(self._spares)
            # One that was used, or has got a better reason, is listed in the heap.
            if not snapshot.stands or snapshot.hits or snapshot.reason is not Reason.SPARE:
                continue
            if snapshot.pins:
                pinned.append(snapshot)
                continue
            self.drop(snapshot)
            return True
        return False

    def _drop_least(self, pinned: list[Snapshot]) -> bool:
        now = self._clock()
        if not self._policy.steady and now - self._refreshed_at >= _REFRESH_SECONDS:
            self._refresh(now)
        while self._heap:
            known, _, snapshot = heapq.heappop(self._heap)
            if not snapshot.stands:
                continue
            if snapshot.pins:
                pinned.append(snapshot)
                continue
            self._index.measure(snapshot)
            worth = self._policy.worth(snapshot, now)
            if self._heap and worth > known and worth > self._heap[0][0]:
                self._serial += 1
                heapq.heappush(self._heap, (worth, self._serial, snapshot))
                continue
            if self.before_drop is not None:
                self.before_drop(snapshot)
            self.drop(snapshot)
            return True
        return False

    def _refresh(self, now: float) -> None:
        self._refreshed_at = now
        standing = {id(entry[2]): entry for entry in self._heap if entry[2].stands}
        measure, worth = self._index.measure, self._policy.worth
        heap: list[tuple[float, int, Snapshot]] = []
        for _, serial, snapshot in standing.values():
            measure(snapshot)
            heap.append((worth(snapshot, now), serial, snapshot))
        self._heap = heap
        heapq.heapify(self._heap)
        self._spares = [entry for entry in self._spares if entry[2].stands and not entry[2].hits]
        heapq.heapify(self._spares)


def _density(position: int) -> int:
    """How coarse the grid of powers of two is on which `position` lies: the finest goes first."""
    return (position & -position).bit_length()
