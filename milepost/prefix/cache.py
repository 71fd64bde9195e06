"""The prefix cache as the scheduler uses it: look up, begin a life, order, publish, end.

    open       a request is accepted                                  -> Trail
    look_up    what would it hit now?                                 -> Match, nothing changes
    guard      what it would hit stays while it is weighed whether it can run; `unguard` if it can't
    begin      it runs, from its hit on                               -> whole blocks to share, page to copy
    copied     its private copies have been made
    due        which snapshots shall the coming chunk leave?
    publish    a step has written units and snapshots: now, and only now, they are cached
    end        it runs no more: its path may be evicted

Nothing is cached that a completed step has not written. Aborts, failures and preemptions between a
step and its result publish nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import msgspec

from milepost.memory.layout import Layout
from milepost.memory.pool import PagePool
from milepost.prefix.config import CacheConfig
from milepost.prefix.eviction import EvictionPolicy, parse_eviction
from milepost.prefix.evictor import Evictor
from milepost.prefix.explain import explain, losses
from milepost.prefix.ghosts import Ghosts
from milepost.prefix.index import PrefixIndex
from milepost.prefix.keys import Hasher, KeyHasher
from milepost.prefix.moves import TierSpace
from milepost.prefix.nodes import Node, Snapshot
from milepost.prefix.plan import PlannedSnapshot, PromptView, Reason, SnapshotPlan, SnapshotPolicy
from milepost.prefix.policies import parse_policy
from milepost.prefix.reports import CacheCounts, CacheStats, Explanation, Loss
from milepost.prefix.salts import SaltMemory
from milepost.prefix.tiers import LEAST_GAIN, Tiers, open_space
from milepost.prefix.trail import Trail
from milepost.prefix.tree import Found
from milepost.types import Request, Tier

__all__ = ["Match", "PrefixCache"]

_LASTING = frozenset(Reason) - {Reason.SPARE, Reason.PREEMPTED, Reason.JUNCTION}  # worth to survive us
_PROMPTS_IN_BUDGET = 8  # a policy with a budget a prompt gets this part of the pool for one


class Match(msgspec.Struct, frozen=True):
    """What a request would hit now.

    Attributes:
        snapshot: what it would resume from; None to begin from nothing.
        found: the look-up itself.
    """

    snapshot: Snapshot | None
    found: Found

    @property
    def hit(self) -> int:
        """Tokens that need no computing, at most all but the last."""
        return 0 if self.snapshot is None else self.snapshot.position

    @property
    def matched(self) -> int:
        """Tokens whose KV is cached."""
        return self.found.matched.position


class PrefixCache:
    """Snapshots and KV of finished and running requests, found by prefix.

    Not thread-safe: it belongs to the scheduler. It is the only one that shares pages in the pool.

    Args:
        config: the settings.
        layout: how sequences lie in pages.
        pool: whose pages are cached.
        clock: seconds, for recency.
        hasher: makes the keys, of sequences without salts; None for those of token ids, with the
            secret of `config`.
        policy: where snapshots stand; None for the one that `config` names.
        eviction: what goes first; None for the one that `config` names.

    Raises:
        ConfigError: a policy that does not exist, or a match unit or a secret out of range.
    """

    def __init__(
        self,
        config: CacheConfig,
        layout: Layout,
        pool: PagePool,
        *,
        clock: Callable[[], float] = time.monotonic,
        hasher: Hasher | None = None,
        policy: SnapshotPolicy | None = None,
        eviction: EvictionPolicy | None = None,
    ) -> None:
        self.config = config
        self._layout = layout
        self._pool = pool
        self._clock = clock
        self._pages_per_state = layout.pages_per_state
        own = KeyHasher(config.match_unit, config.secret)
        self._hasher: Hasher = hasher or own
        state_bytes = layout.pages_per_state * layout.page_bytes
        share = pool.num_usable * layout.page_bytes // _PROMPTS_IN_BUDGET
        self._policy = policy or parse_policy(
            config.snapshot_policy, state_bytes=state_bytes, budget_bytes=max(share, state_bytes)
        )
        self._eviction = eviction or parse_eviction(config.eviction)
        self.index = PrefixIndex(pool, layout.block_size, config.match_unit)
        self._ghosts = Ghosts.of_pages(config.match_unit, pool.num_pages)
        self._salts = SaltMemory(own) if hasher is None else None
        self.evictor = Evictor(self.index, pool, self._eviction, clock, self._ghosts)
        self.tiers: Tiers | None = None
        self._counts = CacheCounts()

    def add_tiers(self, host_pages: int, disk_pages: int = 0, *, least_gain: int = LEAST_GAIN) -> Tiers:
        """Keep what the arena gives up in host memory, and on disk if `disk_pages` fit there."""
        layout, config = self._layout, self.config
        arena = TierSpace(
            Tier.ARENA,
            self._pool,
            self.index,
            self.evictor,
            block_size=layout.block_size,
            match_unit=config.match_unit,
            pages_per_state=layout.pages_per_state,
        )
        host = open_space(Tier.HOST, host_pages, parse_eviction(config.eviction), self._clock, arena)
        disk = None
        if disk_pages:
            disk = open_space(Tier.DISK, disk_pages, parse_eviction(config.eviction), self._clock, arena)
        self.tiers = Tiers(arena, host, disk, self._clock, least_gain=least_gain)
        self.evictor.before_drop = self.tiers.demote
        return self.tiers

    # -- a request's life -----------------------------------------------------------------------

    def open(self, request: Request) -> Trail:
        """Begin to keep track of a request."""
        return Trail(request, self._hasher.chain(request.cache_salt), self.index.root, self.config.match_unit)

    def look_up(self, trail: Trail, tokens: Sequence[int]) -> Match:
        """What a request with these tokens, prompt and drawn ones, would hit now."""
        trail.chain.extend(tokens)
        found = self.index.find(trail.chain, tokens)
        usable = None if trail.private else found.usable
        return Match(None if usable is None else usable.snapshot, found)

    def guard(self, match: Match) -> None:
        """Keep what `match` found from eviction; `begin` or `unguard` follows."""
        if match.snapshot is not None:
            self.index.guard(match.snapshot)

    def unguard(self, match: Match) -> None:
        """Take a `guard` back: the request does not run after all."""
        if match.snapshot is not None:
            self.index.unguard(match.snapshot)

    def begin(
        self, trail: Trail, match: Match, tokens: Sequence[int], *, in_flight: int = 0
    ) -> tuple[list[int], int | None]:
        """A life begins at `match`, which is guarded: consume its snapshot, plan the snapshots to come.

        The guard becomes the life's: `copied` takes its pin back, `end` its hold.

        Args:
            trail: of the request.
            match: where it resumes.
            tokens: all its tokens so far.
            in_flight: tokens that it shares with what a running request is computing.

        Returns:
            The pages of the whole blocks below the hit, to be shared, and the page of the partly filled
            block behind them, to be copied, or None.
        """
        first_look = trail.first_look
        left = self._note_first_look(trail, match, tokens, in_flight) if first_look else 0
        view = self._view(trail, match, tokens, left)
        if first_look:
            self._policy.observe(view)
        trail.fetched = False
        trail.follow(SnapshotPlan() if trail.private else self._policy.plan(view), match.hit)
        if match.snapshot is None:
            return [], None
        node = match.snapshot.node
        self.index.hold(node)  # a second time: `base` and `end` are let go of one by one
        trail.base = trail.end = node
        trail.unit_node = self.index.unit_of(node)
        # Others may have left some in between since.
        match.snapshot.before = self.index.snapshot_before(node, trail.chain, tokens)
        self._consume(trail, match.snapshot)
        table = self.index.block_table(node)
        whole = node.position // self._layout.block_size
        return table[:whole], table[whole] if whole < len(table) else None

    def go_private(self, trail: Trail) -> None:
        """Let the request neither use nor feed the cache from now on."""
        trail.private = True
        trail.follow(SnapshotPlan(), 0)
        self._let_go(trail)

    def fetch(self, trail: Trail, tokens: Sequence[int], match: Match) -> int | None:
        """Begin to load what saves more than `match`, from a tier that has it; once a life at most.

        Returns:
            The transfer to wait for, or None.
        """
        if self.tiers is None or trail.fetched or trail.private:
            return None
        transfer_id = self.tiers.fetch(trail.chain, tokens, match.hit)
        trail.fetched = transfer_id is not None
        return transfer_id

    def first_step_done(self, trail: Trail, tokens: Sequence[int], block_table: Sequence[int]) -> None:
        """The copies of a life's beginning have run, if they were for this step."""
        source, size = trail.source, self._layout.block_size
        self.copied(trail)
        if source is not None and source.position % size:
            block = source.position // size
            path = self.index.nodes_in_block(source.node, trail.chain, tokens)
            self.index.rename_block(path, block, block_table[block], copied=True)

    def copied(self, trail: Trail) -> None:
        """The copies of a life's beginning have run."""
        if trail.source is not None:
            self.index.unpin(trail.source)
            trail.source = None

    def due(self, trail: Trail, begin: int, end: int, tokens: Sequence[int]) -> list[PlannedSnapshot]:
        """The snapshots that computing the tokens from `begin` to `end` shall leave."""
        due = trail.due(begin, end)
        if due:
            trail.chain.extend(tokens)
        return due

    def make_room(self, count: int) -> bool:
        """Evict until `count` pages are free; False, and nothing has changed, when that can't be."""
        return self.evictor.make_room(count)

    def room_for_snapshot(self, trail: Trail, tokens: Sequence[int], planned: PlannedSnapshot) -> bool:
        """Make room for one more snapshot, if it is worth that; none for one that stands there already.

        Spare ones only use what is free anyway, or take the place of older ones of no coarser grid.
        """
        count, spare = self._pages_per_state, planned.reason is Reason.SPARE
        room = not spare or self.evictor.may_thin(planned.position, count)  # a full pool refuses very many
        if room and self._stands(trail, tokens, planned.position):
            return False
        if room:
            room = self.evictor.thin(planned.position, count) if spare else self.make_room(count)
        self._counts.snapshots_skipped += not room
        return room

    def publish(self, trail: Trail, tokens: Sequence[int], computed: int, block_table: Sequence[int]) -> None:
        """A completed step has brought a request to `computed` tokens: its whole units are cached now."""
        unit = self.config.match_unit
        node = trail.unit_node
        if trail.private or computed - node.position < unit:
            return
        trail.chain.extend(tokens)
        keys = trail.chain.full[node.position // unit : computed // unit]
        first = node.position // self._layout.block_size
        table = [0] * first + list(block_table[first:])  # read at once: a table is slow to be read in parts
        self._advance(trail, self.index.add_units(keys, node, table))

    def publish_snapshot(
        self,
        trail: Trail,
        tokens: Sequence[int],
        planned: PlannedSnapshot,
        pages: Sequence[int],
        block_table: Sequence[int],
    ) -> bool:
        """Cache a snapshot that a completed step has written; `publish` has seen its tokens.

        Returns:
            False when there is one already at this place: the pages stay the caller's.
        """
        position, unit = planned.position, self.config.match_unit
        key = trail.chain.key_at(tokens, position)
        node = self.index.get(key)
        if node is None:
            parent = self._unit_at(trail, position // unit)
            node = self.index.add(key, parent, position, block_table)
        before = self.index.snapshot_before(node, trail.chain, tokens)
        snapshot = self.index.add_snapshot(node, pages, planned.reason, self._clock(), before)
        added = snapshot is not None
        if snapshot is not None:
            self._counts.snapshots_written += 1
        else:
            self._counts.snapshots_withdrawn += 1
            snapshot = node.snapshot
            if snapshot is None or snapshot.reason is not Reason.SPARE or planned.reason is Reason.SPARE:
                return False
            # It stands there by chance, and has a better reason now.
            self.index.give_reason(snapshot, planned.reason)
        snapshot.visit = trail.visit
        snapshot.inside = position // unit < trail.prompt_end // unit
        self._eviction.written(snapshot, self._clock())
        self.evictor.note(snapshot)
        if self.tiers is not None and self.tiers.writes_through and planned.reason in _LASTING:
            self.tiers.demote(snapshot)
        return added

    def distrust(self, trail: Trail) -> None:
        """A life has failed in its first step: should the snapshot that it resumed from be to blame, it goes.

        Every state is checked before it is published, so this is for what a check can't see. Whoever
        sends the same prompt again must not meet the same fault.
        """
        source = trail.source
        self.copied(trail)
        if source is not None and source.stands and not source.pins:
            self.evictor.drop(source)

    def end(self, trail: Trail) -> None:
        """A life is over; what it published stays until it is evicted."""
        self.copied(trail)
        self._let_go(trail)

    def withdrawn(self, count: int) -> None:
        """Count ordered snapshots that came to nothing: not finite, aborted or failed."""
        self._counts.snapshots_withdrawn += count

    def waited(self) -> None:
        """Count a request that waits for another one's snapshot."""
        self._counts.waits += 1

    # -- looking in -----------------------------------------------------------------------------

    def explain(self, tokens: Sequence[int], salt: str = "") -> Explanation:
        """Why a prompt of these tokens would hit what it would hit now; changes nothing."""
        chain = self._hasher.chain(salt)
        chain.extend(tokens)
        found = self.index.find(chain, tokens)
        return explain(
            self.index,
            self._ghosts,
            chain,
            tokens,
            found,
            tiers=self.tiers,
            other_salt=self._seen_elsewhere(salt, tokens, note=False),
        )

    def reset(self) -> int:
        """Forget all that no running request uses; returns how many snapshots were dropped."""
        self._ghosts.clear()
        if self._salts is not None:
            self._salts.clear()
        self._counts.resets += 1
        return self.evictor.clear()

    def stats(self) -> CacheStats:
        """Everything that is counted; costs the same however much is cached."""
        index, counts = self.index, msgspec.structs.asdict(self._counts)
        counts["losses"] = dict(self._counts.losses)  # ours go on counting
        return CacheStats(
            state_pages=index.num_state_pages,
            kv_pages=index.num_kv_pages,
            snapshots=index.num_snapshots,
            snapshots_by_reason={reason.value: count for reason, count in index.num_by_reason.items()},
            evicted_snapshots=self.evictor.num_snapshots,
            evicted_kv_pages=self.evictor.num_kv_pages,
            page_bytes=self._layout.page_bytes,
            tiers=() if self.tiers is None else self.tiers.stats(),
            **counts,
        )

    def check(self) -> None:
        """Prove that the index and the pool agree; for tests."""
        self.index.check()
        if self.tiers is not None:
            self.tiers.check()

    # -- inside ---------------------------------------------------------------------------------

    def _view(self, trail: Trail, match: Match, tokens: Sequence[int], left: int) -> PromptView:
        request = trail.request
        return PromptView(
            num_tokens=len(tokens),
            num_prompt=len(request.prompt_token_ids),
            hit=match.hit,
            matched=match.matched,
            message_ends=request.message_ends,
            match_unit=self.config.match_unit,
            output_reusable=request.output_reusable,
            request_id=request.request_id,
            left=left,
        )

    def _note_first_look(self, trail: Trail, match: Match, tokens: Sequence[int], in_flight: int) -> int:
        """Count it; returns where the prompt leaves what was cached and is evicted, as `PromptView.left`."""
        trail.first_look = False
        trail.hit = match.hit
        lost = losses(
            self._ghosts,
            trail.chain,
            tokens,
            match.found,
            hit=match.hit,
            in_flight=in_flight,
            in_tiers=0 if self.tiers is None else self.tiers.reach(trail.chain, tokens, match.hit)[1],
            other_salt=self._seen_elsewhere(trail.request.cache_salt, tokens),
        )
        self._counts.add_look_up(len(tokens), match.hit, lost)
        if not trail.private:
            trail.visit = self._eviction.looked_up(trail.chain.full, len(tokens), self._clock())
        if Loss.EVICTED_KV.value not in lost:
            return 0
        left = self._ghosts.deepest_kv(trail.chain.full)
        # Where it goes on from an earlier prompt's end, it has not parted from that one.
        return left if len(tokens) - trail.visit.added < left else 0

    def _seen_elsewhere(self, salt: str, tokens: Sequence[int], *, note: bool = True) -> bool:
        return self._salts is not None and self._salts.seen_elsewhere(salt, tokens, note=note)

    def _consume(self, trail: Trail, snapshot: Snapshot) -> None:
        now = self._clock()
        self._eviction.consumed(snapshot, now)
        snapshot.hits += 1
        snapshot.used_at = now
        self.evictor.note(snapshot)
        trail.source = snapshot
        partial = snapshot.position % self._layout.block_size > 0
        self._counts.copied_pages += len(snapshot.pages) + partial

    def _let_go(self, trail: Trail) -> None:
        self.index.unhold(trail.base)
        self.index.unhold(trail.end)
        trail.base = trail.end = trail.unit_node = self.index.root

    def _advance(self, trail: Trail, node: Node) -> None:
        self.index.hold(node)
        self.index.unhold(trail.end)
        trail.end = trail.unit_node = node

    def _unit_at(self, trail: Trail, units: int) -> Node:
        node = self.index.get(trail.chain.full[units - 1]) if units else self.index.root
        assert node is not None  # on the held path: published, and held since
        return node

    def _stands(self, trail: Trail, tokens: Sequence[int], position: int) -> bool:
        node = self.index.get(trail.chain.key_at(tokens, position))
        return node is not None and node.snapshot is not None
