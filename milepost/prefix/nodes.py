"""What the index is made of: nodes, one a unit or a tail, and the snapshots that stand at some of them."""

from __future__ import annotations

from collections.abc import Iterator

from milepost.prefix.keys import Key
from milepost.prefix.plan import Reason
from milepost.prefix.stays import NEW, Stay

__all__ = ["Node", "Snapshot", "Stretch"]


class Node:
    """The end of one unit, or of a tail behind one.

    Attributes:
        key: hash of all tokens up to `position`; names the node.
        parent: the node one unit above, or for a tail the last unit before it; None for the root.
        position: tokens up to here.
        pages: of the blocks that overlap the tokens between `parent` and here, in order.
        num_units: unit nodes right below.
        tails: tail nodes right below, by key.
        holds: requests that use this node as the end of their path, and held nodes right below.
        snapshot: the state after `position` tokens, or None.
        stretch: a short cut up, see `milepost.prefix.stretches`; None for the root.
    """

    __slots__ = (
        "holds",
        "key",
        "num_units",
        "pages",
        "parent",
        "position",
        "snapshot",
        "stretch",
        "tails",
    )

    def __init__(self, key: Key, parent: Node | None, position: int, pages: tuple[int, ...]) -> None:
        self.key = key
        self.parent = parent
        self.position = position
        self.pages = pages
        self.num_units = 0
        self.tails: dict[Key, Node] | None = None
        self.holds = 0
        self.snapshot: Snapshot | None = None
        self.stretch: Stretch | None = None

    def __repr__(self) -> str:
        return f"Node(position {self.position}, {self.num_units} units below)"

    @property
    def is_leaf(self) -> bool:
        """Whether nothing hangs below."""
        return self.num_units == 0 and not self.tails

    def up(self) -> Iterator[Node]:
        """This node and those above it, the root left out."""
        node = self
        while node.parent is not None:
            yield node
            node = node.parent


class Stretch:
    """What nodes of one path have in common that have only plain ones between them.

    Attributes:
        top: the node above them all.
        first: the one right below it; None if that is not known.
    """

    __slots__ = ("first", "top")

    def __init__(self, top: Node, first: Node | None) -> None:
        self.top = top
        self.first = first


class Snapshot:
    """A cached state; see `milepost.prefix.eviction.Candidate` for what policies see of it.

    Attributes:
        node: where it stands.
        pages: its pages, as in a state table.
        reason: why it was left.
        used_at: seconds, when it was last consumed, else when it was written.
        hits: how often it was consumed.
        pins: copies of it that have not run yet; it can't be evicted before.
        before: the snapshot before it on its path, or one before that while it has not been measured
            anew; None when there was none. Only tokens tell which tails lie on a path, and they aren't kept.
        gap: tokens from the snapshot before it on its path, as of the last `PrefixIndex.measure`.
        freed_pages: pages that come free with it, as of then.
        visit: what the first look-up of the request that left it told.
        inside: whether its prompt was known to go on behind it.
        stay: kept by the eviction policy.
        heir: kept by the eviction policy.
    """

    __slots__ = (
        "__weakref__",
        "before",
        "freed_pages",
        "gap",
        "heir",
        "hits",
        "inside",
        "node",
        "pages",
        "pins",
        "reason",
        "stay",
        "used_at",
        "visit",
    )

    def __init__(self, node: Node, pages: tuple[int, ...], reason: Reason, now: float) -> None:
        self.node = node
        self.pages = pages
        self.reason = reason
        self.used_at = now
        self.hits = 0
        self.pins = 0
        self.before: Snapshot | None = None
        self.visit = NEW
        self.inside = False
        self.stay: Stay | None = None
        self.heir: Stay | None = None
        self.gap = node.position
        self.freed_pages = len(pages)

    def __repr__(self) -> str:
        return f"Snapshot({self.reason.value} at {self.node.position}, {self.hits} hits)"

    @property
    def stands(self) -> bool:
        """Whether it is still cached."""
        return self.node.snapshot is self

    @property
    def position(self) -> int:
        """Tokens that the state has seen."""
        return self.node.position

    @property
    def unit_key(self) -> Key:
        """Key of the whole unit at or before it."""
        parent = self.node.parent
        is_tail = parent is not None and parent.tails is not None and self.node.key in parent.tails
        return parent.key if parent is not None and is_tail else self.node.key
