"""The one index: which prefixes are cached, in which pages, and where snapshots stand.

    root ── unit ── unit ── unit ── unit          a node per match unit, key -> node in one dict
                     │       └ tail               a snapshot between units hangs below its last unit
                     └ unit ── unit               a branch

A node stands at a position and names the pages of the blocks that its own unit overlaps; with the
units above it, it names the KV of its whole path. A snapshot belongs to a node. So a look-up is a
binary search in the dict (a node's parent is always there too) and a walk up to the deepest snapshot.

Where two nodes of one path name different pages for the same block, the deeper one's page holds all
of the block's tokens up to there: whoever writes in a block has first written or copied what comes
before. So a path's block table takes each block from the deepest node that names it.

Nodes that a running request or a move between tiers needs are *held*, with all nodes above them, and
snapshots that are being copied are *pinned*; only the others can go. To *guard* a snapshot is both.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from milepost.errors import InvariantError
from milepost.memory.pool import PagePool
from milepost.prefix.keys import KeyChain
from milepost.prefix.nodes import Node, Snapshot
from milepost.prefix.plan import Reason

__all__ = ["Found", "PrefixIndex"]


class Found(NamedTuple):
    """What a look-up found.

    Attributes:
        matched: the deepest node on the prompt's path, a tail or a unit; the root when there is none.
        usable: the deepest node with a snapshot that leaves at least one token to compute, or None.
        deepest: the same without that condition.
    """

    matched: Node
    usable: Node | None
    deepest: Node | None


class PrefixIndex:
    """Nodes and snapshots over the pages of one pool.

    Nobody else shares pages in the pool. Keys are those of `KeyChain`s with this match unit.

    Args:
        pool: whose pages the nodes name.
        block_size: tokens of a block, one page each.
        match_unit: tokens of a unit.

    Attributes:
        root: the node of no tokens.
        num_state_pages: pages of cached snapshots.
        num_kv_pages: pages of cached KV.
        num_by_reason: cached snapshots by why they were left.
    """

    def __init__(self, pool: PagePool, block_size: int, match_unit: int) -> None:
        self._pool = pool
        self._block_size = block_size
        self._match_unit = match_unit
        self.root = Node(b"", None, 0, ())
        self._nodes: dict[bytes, Node] = {}
        self._snapshots: dict[Node, Snapshot] = {}
        # Leaves without a snapshot that nobody holds ("bare"): nothing can resume there, so they go first.
        self._bare: dict[Node, None] = {}
        self.num_state_pages = 0
        self.num_kv_pages = 0
        # Counted here, because the engine reports it after every step and there may be very many.
        self.num_by_reason = dict.fromkeys(Reason, 0)

    def __len__(self) -> int:
        """Nodes, the root not counted."""
        return len(self._nodes)

    @property
    def num_snapshots(self) -> int:
        """Cached snapshots."""
        return len(self._snapshots)

    @property
    def snapshots(self) -> Iterator[Snapshot]:
        """Every cached snapshot, oldest first."""
        return iter(self._snapshots.values())

    def get(self, key: bytes) -> Node | None:
        """The node of `key`."""
        return self._nodes.get(key)

    # -- looking up -----------------------------------------------------------------------------

    def find(self, chain: KeyChain, tokens: Sequence[int]) -> Found:
        """Look a prompt up; `chain` has been extended by `tokens`, all of the prompt."""
        unit_node = self._deepest_unit(chain.full)
        matched = unit_node
        usable: Node | None = None
        deepest: Node | None = None
        node: Node | None = unit_node
        while node is not None and usable is None:
            if node.tails is None and node.snapshot is None:  # most are such: a long prompt has many
                node = node.parent
                continue
            for candidate in (*self._matching_tails(node, chain, tokens), node):
                if candidate.position > matched.position:
                    matched = candidate
                if candidate.snapshot is None:
                    continue
                deepest = deepest or candidate
                if candidate.position < len(tokens):
                    usable = candidate
                    break
            node = node.parent
        return Found(matched, usable, deepest)

    def _deepest_unit(self, keys: Sequence[bytes]) -> Node:
        nodes = self._nodes
        low, high = 0, len(keys)  # keys[:low] are cached, keys[high:] are not
        while low < high:
            middle = (low + high + 1) // 2
            if keys[middle - 1] in nodes:
                low = middle
            else:
                high = middle - 1
        return nodes[keys[low - 1]] if low else self.root

    @staticmethod
    def _matching_tails(node: Node, chain: KeyChain, tokens: Sequence[int]) -> list[Node]:
        """The tails of `node` that `tokens` go through, deepest first."""
        tails = node.tails
        if not tails:
            return []
        positions = sorted({tail.position for tail in tails.values()}, reverse=True)
        keys = [chain.key_at(tokens, position) for position in positions if position <= len(tokens)]
        return [tails[key] for key in keys if key in tails]

    def block_table(self, node: Node, first_block: int = 0) -> list[int]:
        """The page of each block of the path to `node` from `first_block` on, the partly filled one included.

        Costs time for these blocks alone.
        """
        block_size = self._block_size
        table = [0] * -(-node.position // block_size)
        missing = len(table)  # the blocks from here on are known
        start = missing * block_size
        step, above = node, node.parent
        while above is not None and missing > first_block:  # written for speed: a long prompt has many units
            if above.position < start:
                first = above.position // block_size
                table[first:missing] = step.pages[: missing - first]
                missing, start = first, first * block_size
            step, above = above, above.parent
        return table[first_block:]

    def path_snapshots(self, node: Node, chain: KeyChain, tokens: Sequence[int]) -> list[Snapshot]:
        """Every snapshot on the path to `node`, ascending."""
        found: list[Snapshot] = []
        step: Node | None = node if node.position % self._match_unit == 0 else node.parent
        while step is not None:
            candidates = (*self._matching_tails(step, chain, tokens), step)
            found.extend(candidate.snapshot for candidate in candidates if candidate.snapshot is not None)
            step = step.parent
        return found[::-1]

    def snapshot_before(self, node: Node, chain: KeyChain, tokens: Sequence[int]) -> Snapshot | None:
        """The deepest snapshot on the path to `node`, whose tokens begin `tokens`, that stands above it."""
        step = node.parent
        while step is not None:
            if step.tails is not None or step.snapshot is not None:
                for candidate in (*self._matching_tails(step, chain, tokens), step):
                    if candidate.snapshot is not None and candidate.position < node.position:
                        return candidate.snapshot
            step = step.parent
        return None

    # -- growing --------------------------------------------------------------------------------

    def add(self, key: bytes, parent: Node, position: int, block_table: Sequence[int]) -> Node:
        """The node of `key`; made, and its pages shared, when it is not there.

        Args:
            key: names the node.
            parent: the node one unit above, or the last unit before a tail.
            position: tokens up to here.
            block_table: of a sequence that has written all of them.
        """
        node = self._nodes.get(key)
        if node is not None:
            return node
        first, end = parent.position // self._block_size, -(-position // self._block_size)
        node = Node(key, parent, position, tuple(block_table[first:end]))
        self._pool.share(node.pages)
        self.num_kv_pages += sum(self._pool.references(page) == 1 for page in node.pages)
        self._nodes[key] = node
        self._bare.pop(parent, None)
        self._bare[node] = None
        if position - parent.position == self._match_unit:
            parent.num_units += 1
        else:
            if parent.tails is None:
                parent.tails = {}
            parent.tails[key] = node
        return node

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
        node.snapshot = self._snapshots[node] = snapshot
        self._bare.pop(node, None)
        self.measure(snapshot)
        return snapshot

    def measure(self, snapshot: Snapshot) -> None:
        """Bring `gap` and `freed_pages` up to date: a walk up to the snapshot before."""
        before = snapshot.before
        while before is not None and before.node.snapshot is not before:
            before = before.before
        snapshot.before = before
        start = 0 if before is None else before.position
        step = node = snapshot.node
        alone = node.is_leaf and not node.holds
        alone_from = node.position  # the KV behind this position is only there for the snapshot
        while step.parent is not None:
            step = step.parent
            if alone:
                alone_from = step.position
                alone = not step.holds and step.num_units + len(step.tails or ()) == 1
            if step.snapshot is not None or step.position <= start:
                break  # what `before` needs is not this one's alone
        snapshot.gap = node.position - max(start, step.position)
        snapshot.freed_pages = len(snapshot.pages) + (node.position - alone_from) // self._block_size

    # -- holding --------------------------------------------------------------------------------

    def hold(self, node: Node) -> None:
        """Keep a path from eviction: `node` and all above it. Holds add up."""
        self._bare.pop(node, None)  # those above are no leaves
        pages: list[int] = []
        for step in node.up():
            step.holds += 1
            if step.holds > 1:
                break
            pages += step.pages
        self._pool.hold(pages)

    def unhold(self, node: Node) -> None:
        """Take a `hold` back."""
        pages: list[int] = []
        for step in node.up():
            step.holds -= 1
            if step.holds:
                break
            pages += step.pages
        self._pool.unhold(pages)
        self._note_bare(node)

    def pin(self, snapshot: Snapshot) -> None:
        """Keep a snapshot until its copy has run. Pins add up."""
        snapshot.pins += 1
        self._pool.hold(snapshot.pages)

    def unpin(self, snapshot: Snapshot) -> None:
        """Take a `pin` back."""
        snapshot.pins -= 1
        self._pool.unhold(snapshot.pages)

    def guard(self, snapshot: Snapshot) -> None:
        """Keep a snapshot and the KV of its path, so that both can be copied."""
        self.hold(snapshot.node)
        self.pin(snapshot)

    def unguard(self, snapshot: Snapshot) -> None:
        """Take a `guard` back."""
        self.unpin(snapshot)
        self.unhold(snapshot.node)

    # -- shrinking ------------------------------------------------------------------------------

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

    def drop_bare(self) -> Node | None:
        """Forget one leaf on which nothing stands and let its pages go; None when there is none."""
        if not self._bare:
            return None
        node, _ = self._bare.popitem()
        self._remove(node)
        return node

    def clear(self) -> int:
        """Forget all that nobody holds or pins; returns how many snapshots went."""
        unpinned = [snapshot for snapshot in self._snapshots.values() if not snapshot.pins]
        for snapshot in unpinned:
            self.drop_snapshot(snapshot)
        while self.drop_bare() is not None:
            pass
        return len(unpinned)

    def _remove(self, node: Node) -> None:
        parent = node.parent
        if parent is None or node.holds or node.snapshot is not None or not node.is_leaf:
            raise InvariantError(f"{node!r} is needed and can't be removed")
        del self._nodes[node.key]
        self._pool.drop(node.pages)
        self.num_kv_pages -= sum(self._pool.references(page) == 0 for page in node.pages)
        if parent.tails is not None and parent.tails.pop(node.key, None) is not None:
            parent.tails = parent.tails or None
        else:
            parent.num_units -= 1
        self._note_bare(parent)

    def _note_bare(self, node: Node) -> None:
        if node.parent is not None and node.is_leaf and node.snapshot is None and not node.holds:
            self._bare[node] = None

    # -- proving --------------------------------------------------------------------------------

    def check(self) -> None:
        """Prove that nodes, counts, snapshots and the pool's references agree; for tests.

        Raises:
            InvariantError: what does not hold.
        """
        below: dict[Node, list[Node]] = {}
        for key, node in self._nodes.items():
            self._check_node(key, node)
            below.setdefault(node.parent or self.root, []).append(node)
        for node in (self.root, *self._nodes.values()):
            self._check_below(node, below.get(node, []))
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

    def _check_node(self, key: bytes, node: Node) -> None:
        parent = node.parent
        if node.key != key or parent is None or (parent is not self.root and parent.key not in self._nodes):
            raise InvariantError(f"{node!r} is not reachable by its key and its parent's")
        length = node.position - parent.position
        blocks = -(-node.position // self._block_size) - parent.position // self._block_size
        if not 0 < length <= self._match_unit or parent.position % self._match_unit:
            raise InvariantError(f"{node!r} can't stand below {parent!r}")
        if len(node.pages) != blocks:
            raise InvariantError(f"{node!r} names {len(node.pages)} pages for {blocks} blocks")
        bare = node.is_leaf and node.snapshot is None and not node.holds
        if bare != (node in self._bare):
            raise InvariantError(f"{node!r} is wrongly listed as needed or as bare")

    def _check_below(self, node: Node, below: Sequence[Node]) -> None:
        tails = {child.key: child for child in below if child.position % self._match_unit}
        if (node.tails or {}) != tails or node.num_units != len(below) - len(tails):
            raise InvariantError(f"{node!r} does not count what hangs below it")
        held = sum(child.holds > 0 for child in below)
        if node is not self.root and node.holds < held:
            raise InvariantError(f"{node!r} has fewer holds than held nodes below it")
