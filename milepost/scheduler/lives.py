"""A sequence's lives on pages: begun at a prefix hit, grown step by step, ended with what is kept of them.

Here the page pool, the tables of a sequence and the prefix cache are moved together, so that the
scheduler itself only says when.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable

import msgspec

from milepost.errors import InvariantError
from milepost.memory.capacity import sequence_pages
from milepost.memory.layout import Layout
from milepost.memory.pool import PagePool
from milepost.memory.tables import SequencePages
from milepost.prefix.cache import Match, PrefixCache
from milepost.prefix.plan import PlannedSnapshot, Reason
from milepost.scheduler.sequence import Sequence
from milepost.types import RowResult

__all__ = ["Lives", "pages_of"]


class Lives:
    """Begins and ends lives, and reserves what they need in between.

    Args:
        layout: how sequences lie in pages.
        pool: where pages come from.
        cache: what may be resumed from; None to compute everything.
    """

    def __init__(self, layout: Layout, pool: PagePool, cache: PrefixCache | None) -> None:
        self._layout = layout
        self._pool = pool
        self._cache = cache
        self._copies: list[tuple[int, int]] = []
        self._tail_scrubs: list[tuple[int, int]] = []

    @property
    def num_available(self) -> int:
        """Pages that can be had without preempting anybody: free ones and cached ones that nobody uses."""
        return self._pool.num_free + self._pool.num_evictable

    def look_up(self, sequence: Sequence) -> Match | None:
        """What `sequence` would hit now."""
        if self._cache is None or sequence.trail is None:
            return None
        return self._cache.look_up(sequence.trail, sequence.tokens)

    def need(self, match: Match | None, num_tokens: int) -> int:
        """Pages that a life begun at `match` needs before it holds `num_tokens` computed tokens."""
        shared = 0 if match is None else match.hit // self._layout.block_size
        return sequence_pages(self._layout, num_tokens) - shared * self._layout.pages_per_block

    def guard(self, match: Match | None) -> None:
        """Keep what `match` found from eviction while it is weighed."""
        if self._cache is not None and match is not None:
            self._cache.guard(match)

    def unguard(self, match: Match | None) -> None:
        """Take a `guard` back."""
        if self._cache is not None and match is not None:
            self._cache.unguard(match)

    def fitting(self, match: Match | None, num_tokens: int) -> Match | None:
        """`match`, still guarded, if its life can hold `num_tokens`; else to begin from nothing, unguarded.

        While its copies run, a hit needs the snapshot and the live state at the same time.
        """
        if match is None or self.need(match, num_tokens) <= self.num_available:
            return match
        self.unguard(match)
        return msgspec.structs.replace(match, snapshot=None)

    def begin(self, sequence: Sequence, match: Match | None, *, in_flight: int = 0) -> None:
        """Begin a life at `match`, which is guarded. Its first pages come with the first `reserve`."""
        pages = SequencePages(sequence.request_id, self._layout, self._pool)
        sequence.pages = pages
        sequence.num_computed = 0
        if self._cache is None or sequence.trail is None or match is None:
            return
        shared, partial = self._cache.begin(sequence.trail, match, sequence.tokens, in_flight=in_flight)
        pages.adopt(shared)
        sequence.num_computed = match.hit
        sequence.partial_source = partial

    def reserve(self, sequence: Sequence, num_tokens: int) -> bool:
        """Reserve what holding `num_tokens` computed tokens lacks, evicting if need be; all or nothing."""
        pages = pages_of(sequence)
        if pages.holds(num_tokens):
            return True
        lacking = pages.lacking(num_tokens)
        if not self._make_room(lacking):
            return False
        fresh = not pages.num_pages  # a state may take none, where a simulation ignores it
        if not pages.grow(num_tokens):
            raise InvariantError(f"{sequence.request_id!r} lacks {lacking} pages that were just made free")
        if fresh and sequence.num_computed:
            self._copy_source(sequence, pages)
        return True

    def reserve_chunk(self, sequence: Sequence, budget: int) -> int:
        """Reserve pages for the longest chunk that budget and memory allow; its tokens, maybe 0."""
        count = min(sequence.num_wanted, budget)
        if not self.reserve(sequence, sequence.num_computed + count):
            reach = pages_of(sequence).tokens_within_reach(self.num_available)
            count = min(count, reach - sequence.num_computed)
            if count <= 0 or not self.reserve(sequence, sequence.num_computed + count):
                return 0
        return count

    def order_snapshots(self, chunks: Iterable[tuple[Sequence, int]]) -> int:
        """Reserve pages for the snapshots that a step shall leave, as memory allows.

        Args:
            chunks: the step's sequences and the tokens that it computes of each, which have their pages.

        Returns:
            how many it shall leave, spare ones not counted.
        """
        cache = self._cache
        if cache is None:
            return 0
        num_lasting = 0
        due: list[tuple[PlannedSnapshot, Sequence]] = []
        for sequence, count in chunks:
            end, trail = sequence.num_computed + count, sequence.trail
            if trail is not None and end >= trail.next_due:
                planned = cache.due(trail, sequence.num_computed, end, sequence.tokens)
                due += [(snapshot, sequence) for snapshot in planned]
        # Spare ones take what the others leave: once ordered, they can't be evicted for them.
        due.sort(key=_is_spare)
        for snapshot, sequence in due:
            assert sequence.trail is not None
            if not cache.room_for_snapshot(sequence.trail, sequence.tokens, snapshot):
                continue
            pages = pages_of(sequence).order_snapshot()
            if pages is not None:
                insort(sequence.ordered, (snapshot, pages), key=_position)
                num_lasting += snapshot.reason is not Reason.SPARE
        return num_lasting

    def take_copies(self) -> tuple[tuple[int, int], ...]:
        """The copies that the coming step must run before its rows."""
        copies = tuple(self._copies)
        self._copies.clear()
        return copies

    def take_tail_scrubs(self) -> tuple[tuple[int, int], ...]:
        """What the coming step must scrub behind the cached part of pages."""
        tail_scrubs = tuple(self._tail_scrubs)
        self._tail_scrubs.clear()
        return tail_scrubs

    def step_done(self, sequence: Sequence, outcome: RowResult) -> None:
        """A step has brought `sequence`, still alive, to `num_computed` tokens: publish what it wrote."""
        cache, trail, pages = self._cache, sequence.trail, pages_of(sequence)
        if cache is None or trail is None:
            return
        if trail.source is not None:
            cache.first_step_done(trail, sequence.tokens, pages.block_table)
        cache.publish(trail, sequence.tokens, min(sequence.num_computed, trail.planned_to), pages.block_table)
        if sequence.ordered:
            self._settle_orders(cache, sequence, outcome)

    def go_private(self, sequence: Sequence) -> bool:
        """Let the one request that runs do without the cache, because it does not fit beside it.

        Returns:
            False when it shares cached blocks: its life must end, and the next one be private.
        """
        if self._cache is None or sequence.trail is None:
            raise InvariantError(f"{sequence.request_id!r} does not fit alone: {self._pool.counts()}")
        self._cache.go_private(sequence.trail)
        return not pages_of(sequence).num_shared

    def message_ended(self, sequence: Sequence) -> None:
        """The model has ended a message with the last known token, and goes on."""
        if sequence.trail is not None and sequence.trail.keep_output_ends:
            sequence.trail.add_point(len(sequence.tokens), Reason.TURN, sequence.num_computed)

    def end(
        self,
        sequence: Sequence,
        *,
        keep: Reason | None = None,
        tainted: bool = False,
        to_blame: bool = True,
    ) -> None:
        """End a life and let its pages go.

        Args:
            sequence: whose life it is; no step that writes its pages may be running.
            keep: why the live state becomes a snapshot, in its own pages; None to keep nothing more.
            tainted: the owner failed; what it wrote since its last completed step must be scrubbed.
            to_blame: False when its step failed and maybe another one's fault: what it resumed from
                stays cached.
        """
        cache, trail, pages = self._cache, sequence.trail, pages_of(sequence)
        if cache is not None and trail is not None:
            if keep is not None and sequence.num_computed and not trail.private:
                self._keep_state(cache, sequence, keep)
            cache.withdrawn(len(sequence.ordered))
            if tainted:
                if to_blame:
                    cache.distrust(trail)
                self._scrub_tail(sequence, pages)
            cache.end(trail)
        sequence.ordered.clear()
        pages.release(tainted=tainted)
        sequence.pages = None

    def _make_room(self, count: int) -> bool:
        if self._cache is None:
            return count <= self._pool.num_free
        return self._cache.make_room(count)

    def _copy_source(self, sequence: Sequence, pages: SequencePages) -> None:
        """Plan the private copy of the state, and of the block that others have filled in part."""
        trail = sequence.trail
        if trail is None or trail.source is None:
            raise InvariantError(f"{sequence.request_id!r} resumes from nothing")
        self._copies.extend(zip(trail.source.pages, pages.state_table, strict=True))
        if sequence.partial_source is not None:
            block = sequence.num_computed // self._layout.block_size
            self._copies.append((sequence.partial_source, pages.block_table[block]))
            sequence.partial_source = None

    def _scrub_tail(self, sequence: Sequence, pages: SequencePages) -> None:
        """The failed step wrote behind the computed tokens, maybe into a block that is cached up to there."""
        block, kept = divmod(sequence.num_computed, self._layout.block_size)
        if kept and self._pool.references(pages.block_table[block]):
            self._tail_scrubs.append((pages.block_table[block], kept))

    def _settle_orders(self, cache: PrefixCache, sequence: Sequence, outcome: RowResult) -> None:
        assert sequence.trail is not None
        pages = pages_of(sequence)
        written = 0
        for planned, snapshot_pages in sequence.ordered:
            if planned.position in outcome.snapshots:
                written += 1
                cache.publish_snapshot(
                    sequence.trail, sequence.tokens, planned, snapshot_pages, pages.block_table
                )
        lost = len(sequence.ordered) - written
        cache.withdrawn(lost)
        sequence.ordered.clear()
        pages.settle_snapshots(tainted=lost > 0)

    def _keep_state(self, cache: PrefixCache, sequence: Sequence, reason: Reason) -> None:
        """The live state is that after `num_computed` tokens: its pages become the snapshot as they are."""
        assert sequence.trail is not None
        pages = pages_of(sequence)
        cache.publish(sequence.trail, sequence.tokens, sequence.num_computed, pages.block_table)
        planned = PlannedSnapshot(sequence.num_computed, reason)
        cache.publish_snapshot(
            sequence.trail, sequence.tokens, planned, pages.state_table[:], pages.block_table
        )


def _position(order: tuple[PlannedSnapshot, tuple[int, ...]]) -> int:
    return order[0].position


def _is_spare(due: tuple[PlannedSnapshot, Sequence]) -> bool:
    return due[0].reason is Reason.SPARE


def pages_of(sequence: Sequence) -> SequencePages:
    """The pages of a sequence that runs.

    Raises:
        InvariantError: it has none.
    """
    if sequence.pages is None:
        raise InvariantError(f"{sequence.request_id!r} runs without pages")
    return sequence.pages
