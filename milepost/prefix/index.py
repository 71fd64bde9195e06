"""The one index: the tree of match units with the snapshots that stand at some of its nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from milepost.errors import InvariantError
from milepost.memory.pool import PagePool
from milepost.prefix.nodes import Node, Snapshot
from milepost.prefix.plan import Reason
from milepost.prefix.stretches import first_of, is_plain, part, top_of
from milepost.prefix.tree import UnitTree

__all__ = ["PrefixIndex"]


class PrefixIndex(UnitTree):
    """What is cached in the pages of one pool: KV by prefix, and states at any token of it.

    Args:
        pool: whose pages the nodes and snapshots name.
        block_size: tokens of a block, one page each.
        match_unit: tokens of a unit.

    Attributes:
        num_state_pages: pages of cached snapshots.
        num_pinned: cached snapshots that are pinned.
        num_by_reason: cached snapshots by why they were left.
    """

    def __init__(self, pool: PagePool, block_size: int, match_unit: int) -> None:
        super().__init__(pool, block_size, match_unit)
        self._snapshots: dict[Node, Snapshot] = {}
        self.num_state_pages = 0
        self.num_pinned = 0
        # Counted here, because the engine reports it after every step and there may be very many.
        self.num_by_reason = dict.fromkeys(Reason, 0)

    @property
    def num_snapshots(self) -> int:
        """Cached snapshots."""
        return len(self._snapshots)

    @property
    def snapshots(self) -> Iterator[Snapshot]:
        """Every cached snapshot, oldest first."""
        return iter(self._snapshots.values())

    def add_snapshot(
        self,
        node: Node,
        pages: Sequence[int],
        reason: Reason,
        now: float,
        before: Snapshot | None = None,
    ) -> Snapshot | None:
        """Let a snapshot stand at `node`, sharing its pages; None when there is one already.

        Args:
            node: where.
            pages: as in a state table.
            reason: why.
            now: seconds.
            before: as `snapshot_before` told; None if that is not known.
        """
        if node.snapshot is not None:
            return None
        snapshot = Snapshot(node, tuple(pages), reason, now)
        snapshot.before = before
        self._pool.share(snapshot.pages)
        self.num_state_pages += len(snapshot.pages)
        self.num_by_reason[reason] += 1
        if is_plain(node):
            part(node)
        node.snapshot = self._snapshots[node] = snapshot
        self._bare.pop(node, None)
        self.measure(snapshot)
        return snapshot

    def give_reason(self, snapshot: Snapshot, reason: Reason) -> None:
        """Let a cached snapshot stand for another reason."""
        self.num_by_reason[snapshot.reason] -= 1
        self.num_by_reason[reason] += 1
        snapshot.reason = reason

    def measure(self, snapshot: Snapshot) -> None:
        """Bring `gap` and `freed_pages` up to date: as of the snapshot before and what parts in between."""
        # Written for speed: an evictor measures all there are again and again.
        before = snapshot.before
        while before is not None and before.node.snapshot is not before:
            before = before.before
        snapshot.before = before
        start = 0 if before is None else before.node.position
        step = node = snapshot.node
        alone = not (node.num_units or node.tails or node.holds)
        position = alone_from = node.position  # the KV behind this position is only there for the snapshot
        while step.parent is not None:
            top = top_of(step)
            if alone and first_of(step).holds:
                alone = False
                alone_from = _held_above(step).position
            elif alone:
                alone_from = top.position
                alone = not top.holds and top.num_units + (len(top.tails) if top.tails else 0) == 1
            step = top
            if step.snapshot is not None or step.position <= start:
                break  # what `before` needs is not this one's alone
        snapshot.gap = position - max(start, step.position)
        snapshot.freed_pages = len(snapshot.pages) + (position - alone_from) // self._block_size

    def pin(self, snapshot: Snapshot) -> None:
        """Keep a snapshot until its copy has run. Pins add up."""
        self.num_pinned += not snapshot.pins
        snapshot.pins += 1
        self._pool.hold(snapshot.pages)

    def unpin(self, snapshot: Snapshot) -> None:
        """Take a `pin` back."""
        snapshot.pins -= 1
        self.num_pinned -= not snapshot.pins
        self._pool.unhold(snapshot.pages)

    def guard(self, snapshot: Snapshot) -> None:
        """Keep a snapshot and the KV of its path, so that both can be copied."""
        self.hold(snapshot.node)
        self.pin(snapshot)

    def unguard(self, snapshot: Snapshot) -> None:
        """Take a `guard` back."""
        self.unpin(snapshot)
        self.unhold(snapshot.node)

    def drop_snapshot(self, snapshot: Snapshot) -> None:
        """Forget a snapshot and let its pages go; its node stays as long as something needs it."""
        node = snapshot.node
        if node.snapshot is not snapshot or snapshot.pins:
            raise InvariantError(f"{snapshot!r} is dropped twice, or while it is pinned")
        node.snapshot = None
        del self._snapshots[node]
        self.num_state_pages -= len(snapshot.pages)
        self.num_by_reason[snapshot.reason] -= 1
        self._pool.drop(snapshot.pages)
        self._note_bare(node)

    def clear(self) -> int:
        """Forget all that nobody holds or pins; returns how many snapshots went."""
        unpinned = [snapshot for snapshot in self._snapshots.values() if not snapshot.pins]
        for snapshot in unpinned:
            self.drop_snapshot(snapshot)
        while self.drop_bare() is not None:
            pass
        return len(unpinned)

    def check(self) -> None:
        """Prove that nodes, snapshots, counts and the pool's references agree; for tests.

        Raises:
            InvariantError: what does not hold.
        """
        super().check()
        for node, snapshot in self._snapshots.items():
            if snapshot.node is not node or node.snapshot is not snapshot:
                raise InvariantError(f"{snapshot!r} and {node!r} don't name each other")
        self._check_pages()

    def _check_pages(self) -> None:
        references: Counter[int] = Counter()
        holds: Counter[int] = Counter()
        for node in self._nodes.values():
            references.update(node.pages)
            holds.update(node.pages if node.holds else ())
        if self.num_kv_pages != len(references):
            raise InvariantError(f"{len(references)} KV pages are cached, the count says {self.num_kv_pages}")
        for snapshot in self._snapshots.values():
            references.update(snapshot.pages)
            holds.update(dict.fromkeys(snapshot.pages, snapshot.pins))
        if self.num_state_pages != sum(len(snapshot.pages) for snapshot in self._snapshots.values()):
            raise InvariantError("the number of state pages is wrong")
        if self.num_pinned != sum(snapshot.pins > 0 for snapshot in self._snapshots.values()):
            raise InvariantError("the number of pinned snapshots is wrong")
        by_reason = Counter(snapshot.reason for snapshot in self._snapshots.values())
        if by_reason != Counter(self.num_by_reason):
            raise InvariantError(f"snapshots are {by_reason}, the counts say {self.num_by_reason}")
        for page in range(self._pool.num_pages):
            counted = (references[page], holds[page])
            if counted != (self._pool.references(page), self._pool.holds(page)):
                known = (self._pool.references(page), self._pool.holds(page))
                raise InvariantError(
                    f"page {page}: the index counts {counted} names and holds, the pool {known}"
                )


def _held_above(node: Node) -> Node:
    """The deepest held node above `node`, which is not held; there is one."""
    step = node
    while not step.holds and step.parent is not None:
        step = step.parent
    return step
