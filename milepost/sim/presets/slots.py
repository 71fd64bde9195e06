"""A cache whose states live in slots of their own, apart from KV: memory is split once and for all."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from milepost.memory.layout import Layout
from milepost.memory.pool import PagePool
from milepost.prefix.cache import Match, PrefixCache
from milepost.prefix.config import CacheConfig
from milepost.prefix.eviction import EvictionPolicy
from milepost.prefix.keys import Hasher
from milepost.prefix.nodes import Snapshot
from milepost.prefix.plan import PlannedSnapshot, SnapshotPolicy
from milepost.prefix.trail import Trail

__all__ = ["SlotCache"]


class SlotCache(PrefixCache):
    """Keeps at most `slots` states, those that running requests hold included.

    Pages are KV alone, so that the layout's states take none. A snapshot needs a slot: the one that goes
    for it is that of the path that was used longest ago, and of those the one nearest the root.

    Args:
        config: as that of a `PrefixCache`, as is all but the last two.
        layout: of KV alone.
        pool: for KV alone.
        clock: seconds.
        hasher: makes the keys.
        policy: where snapshots stand.
        eviction: what goes first when KV pages are needed.
        slots: of all states; None for no limit.
        held: slots that a running request holds.
    """

    def __init__(  # noqa: PLR0913  # those of a PrefixCache, and two
        self,
        config: CacheConfig,
        layout: Layout,
        pool: PagePool,
        *,
        clock: Callable[[], float],
        hasher: Hasher | None,
        policy: SnapshotPolicy,
        eviction: EvictionPolicy,
        slots: int | None,
        held: int,
    ) -> None:
        super().__init__(config, layout, pool, clock=clock, hasher=hasher, policy=policy, eviction=eviction)
        self._slots = slots
        self._held = held
        self._running: set[int] = set()

    def begin(
        self, trail: Trail, match: Match, tokens: Sequence[int], *, in_flight: int = 0
    ) -> tuple[list[int], int | None]:
        """As `PrefixCache.begin`; the request's slots are taken from cached states, if need be."""
        begun = super().begin(trail, match, tokens, in_flight=in_flight)
        self._running.add(id(trail))
        self._make_slots(0)
        return begun

    def end(self, trail: Trail) -> None:
        """As `PrefixCache.end`; its slots are free."""
        super().end(trail)
        self._running.discard(id(trail))

    def publish_snapshot(
        self,
        trail: Trail,
        tokens: Sequence[int],
        planned: PlannedSnapshot,
        pages: Sequence[int],
        block_table: Sequence[int],
    ) -> bool:
        """As `PrefixCache.publish_snapshot`, if a slot can be had."""
        if not self._stands(trail, tokens, planned.position) and not self._make_slots(1):
            self.withdrawn(1)
            return False
        return super().publish_snapshot(trail, tokens, planned, pages, block_table)

    def _make_slots(self, count: int) -> bool:
        """Drop cached states until `count` slots are free; False when what is left is in use."""
        if self._slots is None:
            return True
        room = self._slots - self._held * len(self._running) - count
        while self.index.num_snapshots > room:
            unused = [snapshot for snapshot in self.index.snapshots if not snapshot.pins]
            if not unused:
                return False
            self.evictor.drop(min(unused, key=_recency))
        return True


def _recency(snapshot: Snapshot) -> tuple[float, int]:
    return snapshot.used_at, snapshot.position
