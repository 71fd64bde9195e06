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

from collections.abc import Sequence
from typing import NamedTuple

from milepost.errors import InvariantError
from milepost.memory.pool import PagePool
from milepost.prefix.keys import Key, Keys
from milepost.prefix.nodes import Node, Snapshot, Stretch
from milepost.prefix.stretches import is_plain, join, part, top_of

__all__ = ["Found", "UnitTree"]


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


class UnitTree:
    """Nodes over the pages of one pool; `milepost.prefix.index.PrefixIndex` lets snapshots stand on them.

    Nobody else shares pages in the pool. Keys are those of `Keys`s with this match unit.

    Args:
        pool: whose pages the nodes name.
        block_size: tokens of a block, one page each.
        match_unit: tokens of a unit.

    Attributes:
        root: the node of no tokens.
        num_kv_pages: pages of cached KV.
    """

    def __init__(self, pool: PagePool, block_size: int, match_unit: int) -> None:
        self._pool = pool
        self._block_size = block_size
        self._match_unit = match_unit
        self.root = Node(b"", None, 0, ())
        self._nodes: dict[Key, Node] = {}
        # Leaves without a snapshot that nobody holds ("bare"): nothing can resume there, so they go first.
        self._bare: dict[Node, None] = {}
        self._tables: dict[Node, list[int]] = {}
        self.num_kv_pages = 0

    # -- looking up -------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Nodes, the root not counted."""
        return len(self._nodes)

    def get(self, key: Key) -> Node | None:
        """The node of `key`."""
        return self._nodes.get(key)

    def unit_of(self, node: Node) -> Node:
        """The deepest unit node, or the root, on the path to `node`: itself unless it is a tail."""
        return node if node.parent is None or node.position % self._match_unit == 0 else node.parent

    def find(self, chain: Keys, tokens: Sequence[int]) -> Found:
        """Look a prompt up; `chain` has been extended by `tokens`, all of the prompt."""
        unit_node = self._deepest_unit(chain.full)
        matched = unit_node
        usable: Node | None = None
        deepest: Node | None = None
        node: Node | None = unit_node
        while node is not None and usable is None:
            if node.tails is None and node.snapshot is None:
                node = None if node.parent is None else top_of(node)
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
            node = None if node.parent is None else top_of(node)
        return Found(matched, usable, deepest)

    def _deepest_unit(self, keys: Sequence[Key]) -> Node:
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
    def _matching_tails(node: Node, chain: Keys, tokens: Sequence[int]) -> list[Node]:
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
        if not self._match_unit % block_size and not first_block:
            return self._table_by_units(node)
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

    def _table_by_units(self, node: Node) -> list[int]:
        """As `block_table` where units are whole blocks: no two nodes name the same one, and units no other.

        A conversation asks for its whole path turn after turn, so the table wanders down it.
        """
        parts: list[tuple[int, ...]] = []
        step = node
        while step.parent is not None and step not in self._tables:
            parts.append(step.pages)
            step = step.parent
        known = self._tables.get(step, [])
        table = [*known, *(page for pages in reversed(parts) for page in pages)]
        if parts and self.unit_of(node) is node:
            self._tables.pop(step, None)
            self._tables[node] = table
        return table[:]

    def path_snapshots(self, node: Node, chain: Keys, tokens: Sequence[int]) -> list[Snapshot]:
        """Every snapshot on the path to `node`, ascending."""
        found: list[Snapshot] = []
        step: Node | None = self.unit_of(node)
        while step is not None:
            candidates = (*self._matching_tails(step, chain, tokens), step)
            found.extend(candidate.snapshot for candidate in candidates if candidate.snapshot is not None)
            step = step.parent
        return found[::-1]

    def snapshot_before(self, node: Node, chain: Keys, tokens: Sequence[int]) -> Snapshot | None:
        """The deepest snapshot on the path to `node`, whose tokens begin `tokens`, that stands above it."""
        step = node
        while step.parent is not None:
            step = top_of(step)
            if step.tails is None and step.snapshot is None:
                continue
            for candidate in (*self._matching_tails(step, chain, tokens), step):
                if candidate.snapshot is not None and candidate.position < node.position:
                    return candidate.snapshot
        return None

    def nodes_in_block(self, end: Node, chain: Keys, tokens: Sequence[int]) -> list[Node]:
        """The nodes of the path to `end`, passed tails too, that overlap the block in which it ends."""
        start = end.position - end.position % self._block_size
        found: list[Node] = []
        step: Node | None = self.unit_of(end)
        while step is not None:
            tails = self._matching_tails(step, chain, tokens)
            found.extend(tail for tail in tails if start < tail.position <= end.position)
            if step.position <= start:
                break
            found.append(step)
            step = step.parent
        return found

    # -- growing ----------------------------------------------------------------------------------

    def add(self, key: Key, parent: Node, position: int, block_table: Sequence[int]) -> Node:
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
        self.num_kv_pages += self._pool.share(node.pages)
        self._nodes[key] = node
        self._bare.pop(parent, None)
        self._bare[node] = None
        if parent.num_units and is_plain(parent):
            part(parent)
        if position - parent.position == self._match_unit:
            node.stretch = join(node, parent)
            parent.num_units += 1
        else:
            node.stretch = Stretch(parent, node)
            if parent.tails is None:
                parent.tails = {}
            parent.tails[key] = node
        return node

    def add_units(self, keys: Sequence[Key], parent: Node, block_table: Sequence[int]) -> Node:
        """The last node of whole units with these `keys`, one below the other and all below `parent`.

        What `add` would do for each, quicker.
        """
        nodes, unit, size = self._nodes, self._match_unit, self._block_size
        known = 0
        while known < len(keys) and keys[known] in nodes:
            parent = nodes[keys[known]]
            known += 1
        if known == len(keys):
            return parent
        node = self.add(keys[known], parent, parent.position + unit, block_table)
        pages: list[int] = []
        self._bare.pop(node)
        for key in keys[known + 1 :]:  # below what is new all is new, and nothing parts or stands there
            parent, position = node, node.position + unit
            first, end = parent.position // size, -(-position // size)
            node = Node(key, parent, position, tuple(block_table[first:end]))
            node.stretch = parent.stretch
            parent.num_units = 1
            nodes[key] = node
            pages += node.pages
        self._bare[node] = None
        self.num_kv_pages += self._pool.share(pages)
        return node

    def rename_block(self, path: Sequence[Node], block: int, page: int, *, copied: bool) -> None:
        """Let nodes name `page` for `block`, because it holds the same tokens and more; old pages come free.

        Without this, every turn of a conversation would leave one more page for the block in which the
        turn before ended. A page stays where somebody else may read it.

        Args:
            path: nodes of one path that overlap the block; their tokens are in `page`.
            block: which of the path's blocks.
            page: written up to the path's end at least.
            copied: whether those who hold nodes of `path` have copied what they need of this block. If
                not, what they hold stays.
        """
        named: dict[int, list[Node]] = {}
        for node in path:
            old = node.pages[_place(node, block, self._block_size)]
            if old != page:
                named.setdefault(old, []).append(node)
        for old, nodes in named.items():
            ours = sum(node.holds > 0 for node in nodes) if copied else 0
            if self._pool.holds(old) == ours:
                for node in nodes:
                    self._rename(node, _place(node, block, self._block_size), page)

    def _rename(self, node: Node, place: int, page: int) -> None:
        old, new = (node.pages[place],), (page,)
        self.num_kv_pages += self._pool.share(new)
        if node.holds:
            self._pool.hold(new)
            self._pool.unhold(old)
        self.num_kv_pages -= self._pool.drop(old)
        node.pages = (*node.pages[:place], page, *node.pages[place + 1 :])

    # -- holding ----------------------------------------------------------------------------------

    def hold(self, node: Node) -> None:
        """Keep a path from eviction: `node` and all above it. Holds add up."""
        self._bare.pop(node, None)  # those above are no leaves
        pages: list[int] = []
        step, above = node, node.parent
        while above is not None:
            held = step.holds
            step.holds = held + 1
            if held:
                break
            pages += step.pages
            step, above = above, above.parent
        self._pool.hold(pages)

    def unhold(self, node: Node) -> None:
        """Take a `hold` back."""
        pages: list[int] = []
        step, above = node, node.parent
        while above is not None:
            held = step.holds = step.holds - 1
            if held:
                break
            pages += step.pages
            step, above = above, above.parent
        self._pool.unhold(pages)
        self._note_bare(node)

    # -- shrinking --------------------------------------------------------------------------------

    def drop_bare(self) -> Node | None:
        """Forget one leaf on which nothing stands and let its pages go; None when there is none."""
        if not self._bare:
            return None
        node, _ = self._bare.popitem()
        self._remove(node)
        return node

    def _remove(self, node: Node) -> None:
        parent = node.parent
        if parent is None or node.holds or node.snapshot is not None or not node.is_leaf:
            raise InvariantError(f"{node!r} is needed and can't be removed")
        del self._nodes[node.key]
        self._tables.pop(node, None)
        self.num_kv_pages -= self._pool.drop(node.pages)
        if parent.tails is not None and parent.tails.pop(node.key, None) is not None:
            parent.tails = parent.tails or None
        else:
            parent.num_units -= 1
        node.stretch = None  # a stretch and its first node would keep each other in memory
        self._note_bare(parent)

    def _note_bare(self, node: Node) -> None:
        if node.parent is not None and node.is_leaf and node.snapshot is None and not node.holds:
            self._bare[node] = None

    # -- proving ----------------------------------------------------------------------------------

    def check(self) -> None:
        """Prove that nodes, counts and the pool's references agree; for tests.

        Raises:
            InvariantError: what does not hold.
        """
        below: dict[Node, list[Node]] = {}
        for key, node in self._nodes.items():
            self._check_node(key, node)
            below.setdefault(node.parent or self.root, []).append(node)
        for node in (self.root, *self._nodes.values()):
            self._check_below(node, below.get(node, []))
        for node, table in self._tables.items():
            named = [page for step in reversed([*node.up()]) for page in step.pages]
            if node.key not in self._nodes or table != named:
                raise InvariantError(f"the table of {node!r} is not that of its path")

    def _check_node(self, key: Key, node: Node) -> None:
        parent = node.parent
        if node.key != key or parent is None or (parent is not self.root and parent.key not in self._nodes):
            raise InvariantError(f"{node!r} is not reachable by its key and its parent's")
        length = node.position - parent.position
        blocks = -(-node.position // self._block_size) - parent.position // self._block_size
        if not 0 < length <= self._match_unit or parent.position % self._match_unit:
            raise InvariantError(f"{node!r} can't stand below {parent!r}")
        if len(node.pages) != blocks:
            raise InvariantError(f"{node!r} names {len(node.pages)} pages for {blocks} blocks")
        self._check_stretch(node, parent)
        bare = node.is_leaf and node.snapshot is None and not node.holds
        if bare != (node in self._bare):
            raise InvariantError(f"{node!r} is wrongly listed as needed or as bare")

    @staticmethod
    def _check_stretch(node: Node, parent: Node) -> None:
        stretch = node.stretch
        if stretch is None or (stretch.top is not parent) != (parent.stretch is stretch and is_plain(parent)):
            raise InvariantError(f"{node!r} takes a short cut over what is not plain")
        first = stretch.first
        if first is not None and (first.parent is not stretch.top or first.stretch is not stretch):
            raise InvariantError(f"{first!r} is not the first of the stretch of {node!r}")

    def _check_below(self, node: Node, below: Sequence[Node]) -> None:
        tails = {child.key: child for child in below if child.position % self._match_unit}
        if (node.tails or {}) != tails or node.num_units != len(below) - len(tails):
            raise InvariantError(f"{node!r} does not count what hangs below it")
        held = sum(child.holds > 0 for child in below)
        if node is not self.root and node.holds < held:
            raise InvariantError(f"{node!r} has fewer holds than held nodes below it")


def _place(node: Node, block: int, block_size: int) -> int:
    """Which of a node's pages is that of `block`."""
    return block - (0 if node.parent is None else node.parent.position // block_size)
