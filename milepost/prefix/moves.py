"""A snapshot's way to another tier: it and all KV of its path that is not there yet.

A tier's index stands on its own: whatever it holds can be resumed from without any other tier. So a
move takes the whole path, less what the target has already.
"""

from __future__ import annotations

from milepost.memory.pool import Lease, PagePool
from milepost.prefix.evictor import Evictor
from milepost.prefix.index import PrefixIndex
from milepost.prefix.keys import Key
from milepost.prefix.nodes import Node, Snapshot
from milepost.types import Tier

__all__ = ["Move", "TierSpace", "plan_move"]


class TierSpace:
    """One tier as the control plane sees it: its pages, what they hold, what goes first.

    Attributes:
        tier: which one.
        pool: its pages.
        index: what they hold.
        evictor: makes room in them.
        block_size: tokens of a block.
        match_unit: tokens between full keys.
        pages_per_state: pages of a snapshot.
    """

    def __init__(
        self,
        tier: Tier,
        pool: PagePool,
        index: PrefixIndex,
        evictor: Evictor,
        *,
        block_size: int,
        match_unit: int,
        pages_per_state: int,
    ) -> None:
        self.tier = tier
        self.pool = pool
        self.index = index
        self.evictor = evictor
        self.block_size = block_size
        self.match_unit = match_unit
        self.pages_per_state = pages_per_state


class Move:
    """One snapshot on its way; made by `plan_move`, ended by `finish` or `fail`.

    Attributes:
        source: the tier it comes from.
        target: the tier it goes to.
        snapshot: the source's; the caller keeps it and its path from being evicted until the copy has run.
        base: the target's deepest node of the path, held; the path goes on from there.
        new_nodes: (key, position) of the nodes that the target lacks, ascending.
        first_block: the block at which `kv_pages` begin.
        kv_pages: the target's pages of the blocks that `new_nodes` overlap.
        state_pages: the target's pages of the state.
        pairs: (source page, target page) of everything to be copied.
    """

    def __init__(self, source: TierSpace, target: TierSpace, snapshot: Snapshot, base: Node) -> None:
        self.source = source
        self.target = target
        self.snapshot = snapshot
        self.reason = snapshot.reason
        self.base = base
        self.new_nodes: list[tuple[Key, int]] = []
        self.first_block = 0
        self.kv_pages: tuple[int, ...] = ()
        self.state_pages: tuple[int, ...] = ()
        self.pairs: tuple[tuple[int, int], ...] = ()
        self._lease: Lease | None = None

    @property
    def pages(self) -> tuple[int, ...]:
        """All the target's pages of this move, KV first."""
        return self.kv_pages + self.state_pages

    def reserve(self, source_pages: list[int], num_blocks: int) -> bool:
        """Take the target's pages; False, and nothing is taken, when there is no room."""
        pool = self.target.pool
        if not self.target.evictor.make_room(len(source_pages)):
            return False
        self._lease = pool.open(f"{self.source.tier.value} to {self.target.tier.value}")
        pages = pool.reserve(self._lease, len(source_pages))
        assert pages is not None  # room was just made
        self.kv_pages, self.state_pages = pages[:num_blocks], pages[num_blocks:]
        self.pairs = tuple(zip(source_pages, pages, strict=True))
        pool.begin_receive(self._lease, pages)
        return True

    def finish(self, now: float) -> Snapshot | None:
        """The copy has run: publish it in the target's index. Returns the new snapshot, if it is new."""
        pool, index = self.target.pool, self.target.index
        assert self._lease is not None
        pool.end_receive(self._lease, self.pages)
        table = [0] * self.first_block + list(self.kv_pages)
        node = self.base
        for key, position in self.new_nodes:
            node = index.add(key, node, position, table)
        self._rename_first_block()
        snapshot = index.add_snapshot(node, self.state_pages, self.reason, now, self._before())
        if snapshot is not None:
            self.target.evictor.note(snapshot)
        pool.release(self._lease, self.pages)
        self._close()
        return snapshot

    def fail(self) -> None:
        """The copy came to nothing: its pages are tainted."""
        assert self._lease is not None
        self.target.pool.end_receive(self._lease, self.pages, failed=True)
        self._close()

    def quarantine(self) -> None:
        """Give the move up while its copy may still run; `end_quarantine` follows when that has ended."""
        assert self._lease is not None
        self.target.pool.quarantine(self._lease, self.pages)
        self._close()

    def _rename_first_block(self) -> None:
        """The block in which the path went on has one page too many now."""
        size = self.target.block_size
        start = self.first_block * size
        # What a disk's earlier records name must stay, or a restart would not find them.
        if self.new_nodes and self.base.position > start and self.target.tier is not Tier.DISK:
            path = [node for node in self.base.up() if node.position > start]
            in_arena = self.target.tier is Tier.ARENA  # there, who resumes inside a block copies it
            self.target.index.rename_block(path, self.first_block, self.kv_pages[0], copied=in_arena)

    def _before(self) -> Snapshot | None:
        """The target's snapshot that stands before this one, as far as the source knows."""
        before = self.snapshot.before
        while before is not None:
            node = self.target.index.get(before.node.key)
            if node is not None and node.snapshot is not None:
                return node.snapshot
            before = before.before
        return None

    def _close(self) -> None:
        assert self._lease is not None
        self.target.pool.close(self._lease)
        self.target.index.unhold(self.base)


def plan_move(source: TierSpace, target: TierSpace, snapshot: Snapshot) -> Move | None:
    """Plan to copy `snapshot` and what its path lacks in `target`; its pages there are reserved.

    Returns:
        None when it is there already, or when there is no room.
    """
    new_nodes: list[tuple[Key, int]] = []
    base = target.index.root
    for node in snapshot.node.up():
        known = target.index.get(node.key)
        if known is not None:
            base = known
            break
        new_nodes.append((node.key, node.position))
    if not new_nodes and base.snapshot is not None:
        return None
    move = Move(source, target, snapshot, base)
    move.new_nodes = new_nodes[::-1]
    target.index.hold(base)
    blocks: list[int] = []
    if new_nodes:
        move.first_block = base.position // source.block_size
        blocks = source.index.block_table(snapshot.node, move.first_block)
    if move.reserve([*blocks, *snapshot.pages], len(blocks)):
        return move
    target.index.unhold(base)
    return None
