"""The tiers behind the arena: what an eviction drops goes to host memory, from there to disk, and comes back.

    demote    arena -> host   at once, before the step that takes the pages: when a snapshot is evicted, and
                              with a disk also when it is published, so that it survives the process
    spill     host -> disk    in the background, one after the other
    fetch     host or disk -> arena   in the background; published when it has ended, then looked up again

Every tier has its own pool and its own index of the same kind as the arena's.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence

import msgspec

from milepost.memory.page_states import PageState
from milepost.memory.pool import PagePool
from milepost.prefix.disk_records import DiskEntry, encode_record, recover_entries
from milepost.prefix.eviction import EvictionPolicy
from milepost.prefix.evictor import Evictor
from milepost.prefix.ghosts import Ghosts
from milepost.prefix.index import PrefixIndex
from milepost.prefix.keys import Key, Keys
from milepost.prefix.moves import Move, TierSpace, plan_move
from milepost.prefix.nodes import Snapshot
from milepost.prefix.reports import PathSnapshot, TierStats
from milepost.types import Tier, Transfer, TransferResult

__all__ = ["LEAST_GAIN", "Tiers", "open_space"]

LEAST_GAIN = 64  # tokens that a load must save; less is computed as quickly
_FEW_SPILLS = 16  # a queue of spills that is not worth looking through
_FAILED_SPILLS = 3  # in a row: the disk takes nothing, as a full one, or a broken one after long waits
_SPILL_PAUSE_SECONDS = 30.0  # until it is tried again


class Tiers:
    """Host and disk behind an arena.

    Args:
        arena: the first tier.
        host: the second.
        disk: the third, or None.
        clock: seconds.
        least_gain: tokens that a load must save.
    """

    def __init__(
        self,
        arena: TierSpace,
        host: TierSpace,
        disk: TierSpace | None,
        clock: Callable[[], float],
        *,
        least_gain: int = LEAST_GAIN,
    ) -> None:
        self._least_gain = least_gain
        self._arena = arena
        self._host = host
        self._disk = disk
        self._clock = clock
        self._last_id = 0
        self._outbox: list[Transfer] = []
        self._loads: dict[int, Move] = {}
        self._loading: dict[Key, int] = {}  # key of the snapshot's node -> transfer
        self._given_up: dict[int, Move] = {}
        self._forgets: set[int] = set()  # transfers that empty the disk
        self._to_spill: deque[Snapshot] = deque()
        self._spill: tuple[int, Move] | None = None
        self._failed_spills = 0
        self._spills_from = 0.0
        self._counts: dict[Tier, Counter[str]] = {Tier.HOST: Counter(), Tier.DISK: Counter()}

    @property
    def writes_through(self) -> bool:
        """Whether snapshots are copied down when they are published, not only when they are evicted."""
        return self._disk is not None

    @property
    def has_transfers(self) -> bool:
        """Whether transfers wait to be sent with a batch."""
        return bool(self._outbox)

    @property
    def is_loading(self) -> bool:
        """Whether transfers that hold pages of the arena have not ended."""
        return any(move.target is self._arena for move in (*self._loads.values(), *self._given_up.values()))

    @property
    def is_busy(self) -> bool:
        """Whether any transfer was planned and has not ended."""
        return bool(self._loads or self._given_up or self._spill or self._forgets)

    def recover(self, entries: Iterable[DiskEntry]) -> int:
        """Take over what an earlier process left on disk; returns the number of snapshots."""
        return 0 if self._disk is None else recover_entries(self._disk, entries, self._clock())

    # -- down -----------------------------------------------------------------------------------

    def demote(self, snapshot: Snapshot) -> None:
        """Copy a snapshot of the arena to the host, before the coming step overwrites anything."""
        move = plan_move(self._arena, self._host, snapshot)
        if move is None:
            return
        self._send(move)
        # The copy is the first thing that the coming step does, so the host may be told at once.
        copy = move.finish(self._clock())
        self._counts[Tier.HOST]["stores"] += 1
        if copy is not None and self._disk is not None:
            self._to_spill.append(copy)
            if len(self._to_spill) > max(_FEW_SPILLS, 2 * self._host.index.num_snapshots):
                # On a slow disk what was evicted since would pile up, each with its whole path.
                self._to_spill = deque(snapshot for snapshot in self._to_spill if snapshot.stands)
            self._spill_next()

    def _spill_next(self) -> None:
        """Begin to write the next snapshot to disk, if none is being written and the disk takes any."""
        if self._to_spill and self._clock() < self._spills_from:
            self._to_spill.clear()
        while self._disk is not None and self._spill is None and self._to_spill:
            snapshot = self._to_spill.popleft()
            if not snapshot.stands:
                continue  # evicted before its turn came
            move = self._plan_guarded(self._host, self._disk, snapshot)
            if move is not None:
                self._spill = self._send(move, encode_record(move)), move

    # -- up -------------------------------------------------------------------------------------

    def fetch(self, chain: Keys, tokens: Sequence[int], hit: int) -> int | None:
        """Begin to load a snapshot that saves clearly more than `hit` tokens, if a tier has one.

        Returns:
            The transfer to wait for; None when there is nothing to load, or no room.
        """
        best = self._deepest(chain, tokens)
        if best is None or not self._saves_enough(best[1].position, hit):
            return None
        space, snapshot = best
        running = self._loading.get(snapshot.node.key)
        if running is not None:
            return running
        move = self._plan_guarded(space, self._arena, snapshot)
        if move is None:
            return None
        transfer_id = self._send(move)
        self._loads[transfer_id] = move
        self._loading[snapshot.node.key] = transfer_id
        snapshot.hits += 1
        snapshot.used_at = self._clock()
        space.evictor.note(snapshot)
        self._counts[space.tier]["loads"] += 1
        return transfer_id

    def reach(self, chain: Keys, tokens: Sequence[int], hit: int) -> tuple[int, int]:
        """How deep a prompt would hit after a load, 0 if none saves enough, and how deep the tiers reach."""
        best = self._deepest(chain, tokens)
        position = 0 if best is None else best[1].position
        return position if self._saves_enough(position, hit) else 0, position

    def _saves_enough(self, position: int, hit: int) -> bool:
        return position >= hit + self._least_gain

    def _deepest(self, chain: Keys, tokens: Sequence[int]) -> tuple[TierSpace, Snapshot] | None:
        best: tuple[TierSpace, Snapshot] | None = None
        for space in (self._host, self._disk):
            usable = None if space is None else space.index.find(chain, tokens).usable
            if space is None or usable is None or usable.snapshot is None:
                continue
            if best is None or usable.position > best[1].position:
                best = space, usable.snapshot
        return best

    # -- transfers ------------------------------------------------------------------------------

    def take_transfers(self) -> tuple[Transfer, ...]:
        """The transfers that go with the coming batch.

        A host page may be given up again, and even have its next content on the way, before the batch is
        sent: only what it holds in the end is copied.
        """
        outbox, self._outbox = self._outbox, []
        written: set[int] = set()
        transfers: list[Transfer] = []
        for transfer in reversed(outbox):
            pages = transfer.pages
            if transfer.is_immediate:
                free = PageState.FREE
                pages = tuple(
                    pair
                    for pair in pages
                    if pair[1] not in written and self._host.pool.state_of(pair[1]) is not free
                )
                written.update(page for _, page in pages)
            if pages or not transfer.pages:
                transfers.append(msgspec.structs.replace(transfer, pages=pages))
        return tuple(reversed(transfers))

    def ended(self, results: Iterable[TransferResult]) -> list[int]:
        """Take in which transfers have ended; returns the loads that ended or are given up."""
        results = tuple(results)
        # First, so that nothing that was read from a lost host is published below.
        lost = sum(result.error is not None and not self._awaits(result.transfer_id) for result in results)
        loads = self._lose_host(lost) if lost else []
        for result in results:
            failed = result.error is not None
            if result.transfer_id in self._loads:
                loads.append(result.transfer_id)
                self._end_load(self._loads.pop(result.transfer_id), failed=failed)
            elif result.transfer_id in self._given_up:
                self._end_given_up(self._given_up.pop(result.transfer_id))
            elif result.transfer_id in self._forgets:
                self._forgets.remove(result.transfer_id)
                self._counts[Tier.DISK]["failures"] += failed
            elif self._spill is not None and self._spill[0] == result.transfer_id:
                self._end_spill(self._spill[1], failed=failed)
        return loads

    def _awaits(self, transfer_id: int) -> bool:
        """Whether a transfer counts from its end on; a copy to the host does from when it was planned."""
        spills = self._spill is not None and self._spill[0] == transfer_id
        return spills or any(transfer_id in known for known in (self._loads, self._given_up, self._forgets))

    def _lose_host(self, failures: int) -> list[int]:
        """Nobody knows any more what the host holds, nor what was read from it since."""
        self._counts[Tier.HOST]["failures"] += failures
        return self.reset()

    def _end_load(self, move: Move, *, failed: bool) -> None:
        self._loading.pop(move.snapshot.node.key, None)
        move.source.index.unguard(move.snapshot)
        if not failed:
            move.finish(self._clock())
            self._counts[move.source.tier]["hit_tokens"] += move.snapshot.position
            return
        move.fail()
        self._counts[move.source.tier]["failures"] += 1
        # What could not be read once won't be better the next time.
        if move.snapshot.stands and not move.snapshot.pins:
            move.source.evictor.drop(move.snapshot)

    def _end_spill(self, move: Move, *, failed: bool) -> None:
        self._spill = None
        move.source.index.unguard(move.snapshot)
        if failed:
            move.fail()
            self._counts[Tier.DISK]["failures"] += 1
            self._failed_spills += 1
            if self._failed_spills >= _FAILED_SPILLS:
                self._spills_from = self._clock() + _SPILL_PAUSE_SECONDS
        else:
            move.finish(self._clock())
            self._counts[Tier.DISK]["stores"] += 1
            self._failed_spills = 0
        move.target.pool.take_tainted()  # a slot on disk is written whole before it is read
        self._spill_next()

    def _end_given_up(self, move: Move) -> None:
        move.target.pool.end_quarantine(move.pages)
        if move.target is self._disk:
            move.target.pool.take_tainted()
        move.source.index.unguard(move.snapshot)
        # A reset could not drop it while it was read.
        if move.snapshot.stands and not move.snapshot.pins:
            move.source.index.drop_snapshot(move.snapshot)
        while move.source.index.drop_bare() is not None:
            pass

    def _send(self, move: Move, record: bytes = b"") -> int:
        self._last_id += 1
        self._outbox.append(
            Transfer(
                transfer_id=self._last_id,
                source=move.source.tier,
                target=move.target.tier,
                pages=move.pairs,
                record=record,
            )
        )
        return self._last_id

    @staticmethod
    def _plan_guarded(source: TierSpace, target: TierSpace, snapshot: Snapshot) -> Move | None:
        """Plan a move whose source is guarded until it has ended."""
        # Before: making room in the target may make room in the source as well.
        source.index.guard(snapshot)
        move = plan_move(source, target, snapshot)
        if move is None:
            source.index.unguard(snapshot)
        return move

    # -- the rest -------------------------------------------------------------------------------

    def reset(self) -> list[int]:
        """Forget everything; returns the loads that are given up. Pages in flight stay until they land."""
        given_up = [*self._loads]
        for transfer_id, move in self._loads.items():
            move.quarantine()
            self._given_up[transfer_id] = move
        self._loads.clear()
        self._loading.clear()
        self._to_spill.clear()
        if self._spill is not None:
            transfer_id, move = self._spill
            move.quarantine()
            self._given_up[transfer_id] = move
            self._spill = None
        for space in (self._host, self._disk):
            if space is not None:
                space.evictor.clear()
        if self._disk is not None:  # a restart must not bring back what was reset
            self._last_id += 1
            self._forgets.add(self._last_id)
            self._outbox.append(
                Transfer(transfer_id=self._last_id, source=Tier.DISK, target=Tier.DISK, pages=())
            )
        return given_up

    def path_snapshots(
        self, chain: Keys, tokens: Sequence[int], nearer: Sequence[PathSnapshot]
    ) -> tuple[PathSnapshot, ...]:
        """The snapshots on a prompt's path, each in its nearest tier; `nearer` are the arena's."""
        found = {snapshot.position: snapshot for snapshot in nearer}
        for space in (self._host, self._disk):
            if space is None:
                continue
            end = space.index.find(chain, tokens).matched
            for snapshot in space.index.path_snapshots(end, chain, tokens):
                described = PathSnapshot(
                    position=snapshot.position,
                    reason=snapshot.reason.value,
                    hits=snapshot.hits,
                    tier=space.tier.value,
                )
                found.setdefault(snapshot.position, described)
        return tuple(found[position] for position in sorted(found))

    def stats(self) -> tuple[TierStats, ...]:
        """The tiers, nearest first."""
        spaces = [space for space in (self._host, self._disk) if space is not None]
        return tuple(self._stats_of(space) for space in spaces)

    def _stats_of(self, space: TierSpace) -> TierStats:
        counts, pages = self._counts[space.tier], space.pool.counts()
        return TierStats(
            name=space.tier.value,
            snapshots=space.index.num_snapshots,
            used_pages=space.pool.num_usable - pages.free,
            total_pages=space.pool.num_usable,
            hit_tokens=counts["hit_tokens"],
            stores=counts["stores"],
            loads=counts["loads"],
            failures=counts["failures"],
            evicted_snapshots=space.evictor.num_snapshots,
        )

    def check(self) -> None:
        """Prove that each tier's pool and index agree; for tests."""
        for space in (self._host, self._disk):
            if space is not None:
                space.pool.check()
                space.index.check()


def open_space(
    tier: Tier,
    num_pages: int,
    policy: EvictionPolicy,
    clock: Callable[[], float],
    like: TierSpace,
) -> TierSpace:
    """An empty tier of `num_pages` pages, page 0 unused, for what `like` holds."""
    pool = PagePool(num_pages)
    index = PrefixIndex(pool, like.block_size, like.match_unit)
    return TierSpace(
        tier,
        pool,
        index,
        Evictor(index, pool, policy, clock, Ghosts.of_pages(like.match_unit, num_pages)),
        block_size=like.block_size,
        match_unit=like.match_unit,
        pages_per_state=like.pages_per_state,
    )
