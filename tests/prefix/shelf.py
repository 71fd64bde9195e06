"""A small index with its pool and evictor, filled by hand: what a scheduler does, in a few lines."""

from __future__ import annotations

from collections.abc import Sequence

from milepost.memory.pool import PagePool
from milepost.prefix.eviction import EvictionPolicy, parse_eviction
from milepost.prefix.evictor import Evictor
from milepost.prefix.ghosts import Ghosts
from milepost.prefix.index import Found, PrefixIndex
from milepost.prefix.keys import KeyChain, KeyHasher
from milepost.prefix.moves import TierSpace
from milepost.prefix.nodes import Node, Snapshot
from milepost.prefix.plan import Reason
from milepost.types import Tier

SECRET = bytes(range(16))


class Shelf:
    """One tier.

    Attributes:
        now: what the clock says, seconds.
    """

    def __init__(
        self,
        *,
        num_pages: int = 200,
        block_size: int = 4,
        match_unit: int = 4,
        pages_per_state: int = 2,
        policy: EvictionPolicy | None = None,
    ) -> None:
        self.now = 0.0
        self.block_size = block_size
        self.match_unit = match_unit
        self.pages_per_state = pages_per_state
        self.pool = PagePool(num_pages)
        self.index = PrefixIndex(self.pool, block_size, match_unit)
        self.ghosts = Ghosts(match_unit)
        policy = policy or parse_eviction("lru")
        self.evictor = Evictor(self.index, self.pool, policy, lambda: self.now, self.ghosts)
        self.hasher = KeyHasher(match_unit, SECRET)

    def space(self, tier: Tier) -> TierSpace:
        """The same as moves between tiers see it."""
        return TierSpace(
            tier,
            self.pool,
            self.index,
            self.evictor,
            block_size=self.block_size,
            match_unit=self.match_unit,
            pages_per_state=self.pages_per_state,
        )

    def chain(self, tokens: Sequence[int], salt: str = "") -> KeyChain:
        chain = self.hasher.chain(salt)
        chain.extend(tokens)
        return chain

    def node(self, tokens: Sequence[int]) -> Node | None:
        """The node that stands for just these tokens."""
        return self.index.get(self.chain(tokens).key_at(tokens, len(tokens)))

    def find(self, tokens: Sequence[int]) -> Found:
        return self.index.find(self.chain(tokens), tokens)

    def hit(self, tokens: Sequence[int]) -> int:
        """Tokens that a prompt of these would not compute."""
        usable = self.find(tokens).usable
        return 0 if usable is None else usable.position

    def put(
        self, tokens: Sequence[int], *positions: int, reason: Reason = Reason.TURN, salt: str = ""
    ) -> list[int]:
        """A request has computed these tokens, left snapshots at `positions`, and ended; its block table."""
        chain, unit = self.chain(tokens, salt), self.match_unit
        lease = self.pool.open("writer")
        table = self.pool.reserve(lease, -(-len(tokens) // self.block_size))
        states = [self.pool.reserve(lease, self.pages_per_state) for _ in positions]
        assert table is not None
        pages = [*table, *(page for state in states for page in state or ())]
        self.pool.begin_step(lease, pages)
        self.pool.end_step(lease, pages)
        node = self.index.root
        for position in range(unit, len(tokens) + 1, unit):
            node = self.index.add(chain.key_at(tokens, position), node, position, table)
        for position, state in zip(positions, states, strict=True):
            assert state is not None
            self.put_snapshot(tokens, position, table, state, reason=reason, salt=salt)
        self.pool.release(lease, pages)
        self.pool.close(lease)
        self.check()
        return list(table)

    def put_snapshot(
        self,
        tokens: Sequence[int],
        position: int,
        table: Sequence[int],
        state: Sequence[int],
        *,
        reason: Reason,
        salt: str = "",
    ) -> Snapshot | None:
        chain = self.chain(tokens, salt)
        below = position // self.match_unit
        parent = self.index.get(chain.full[below - 1]) if below else self.index.root
        assert parent is not None
        key = chain.key_at(tokens, position)
        node = self.index.get(key) or self.index.add(key, parent, position, table)
        before = self.index.snapshot_before(node, chain, tokens)
        snapshot = self.index.add_snapshot(node, state, reason, self.now, before)
        if snapshot is not None:
            self.evictor.note(snapshot)
        return snapshot

    def snapshot(self, tokens: Sequence[int]) -> Snapshot:
        """The snapshot behind just these tokens."""
        node = self.node(tokens)
        assert node is not None
        assert node.snapshot is not None
        return node.snapshot

    @property
    def standing(self) -> list[int]:
        """Positions of all snapshots, ascending."""
        return sorted(snapshot.position for snapshot in self.index.snapshots)

    def check(self) -> None:
        self.pool.check()
        self.index.check()
