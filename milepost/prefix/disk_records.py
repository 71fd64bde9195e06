"""What makes an entry of the disk tier findable after a restart: its part of the index, as bytes.

A record goes with the pages of one `Move` to disk: first the KV blocks, then the state. It names the
node that the path goes on from, so entries are recovered oldest first, and one whose predecessor is
gone is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

import msgspec

from milepost.memory.pool import Lease
from milepost.prefix.keys import Key
from milepost.prefix.moves import Move, TierSpace
from milepost.prefix.nodes import Node
from milepost.prefix.plan import Reason

__all__ = ["DiskEntry", "encode_record", "recover_entries"]


class DiskEntry(Protocol):
    """An entry that was found on disk."""

    @property
    def record(self) -> bytes:
        """As `encode_record` made it."""
        ...

    @property
    def pages(self) -> Sequence[int]:
        """Its pages, in the order in which they were written."""
        ...


class _Record(msgspec.Struct, frozen=True, array_like=True):
    base: Key
    new_nodes: tuple[tuple[Key, int], ...]
    first_block: int
    reason: str


def encode_record(move: Move) -> bytes:
    """The record of a move to disk."""
    record = _Record(move.base.key, tuple(move.new_nodes), move.first_block, move.reason.value)
    return msgspec.msgpack.encode(record)


def recover_entries(space: TierSpace, entries: Iterable[DiskEntry], now: float) -> int:
    """Fill an empty index of the disk tier with what was found there, oldest first.

    Entries that are no records of ours, that don't fit together or whose predecessor is missing are
    left out; their pages are free.

    Returns:
        How many snapshots can be hit again.
    """
    pool = space.pool
    lease = pool.open("recovery")
    unclaimed = set(pool.reserve(lease, pool.num_free) or ())
    found = sum(_recover(space, entry, lease, unclaimed, now) for entry in entries)
    pool.release(lease, sorted(unclaimed, reverse=True))
    pool.close(lease)
    return found


def _recover(space: TierSpace, entry: DiskEntry, lease: Lease, unclaimed: set[int], now: float) -> bool:
    try:
        record = msgspec.msgpack.decode(entry.record, type=_Record)
        reason = Reason(record.reason)
    except (msgspec.DecodeError, ValueError):
        return False
    base = space.index.get(record.base) if record.base else space.index.root
    if base is None or not _fits(space, record, base, len(entry.pages)):
        return False
    pages = set(entry.pages)
    if len(pages) != len(entry.pages) or not pages <= unclaimed:
        return False
    unclaimed -= pages
    space.pool.begin_receive(lease, entry.pages)
    space.pool.end_receive(lease, entry.pages)
    num_blocks = _num_blocks(space, record, base)
    table = [0] * record.first_block + list(entry.pages[:num_blocks])
    node = base
    for key, position in record.new_nodes:
        node = space.index.add(key, node, position, table)
    snapshot = space.index.add_snapshot(node, entry.pages[num_blocks:], reason, now)
    if snapshot is not None:
        space.evictor.note(snapshot)
    space.pool.release(lease, entry.pages)
    return snapshot is not None


def _num_blocks(space: TierSpace, record: _Record, base: Node) -> int:
    if not record.new_nodes:
        return 0
    return -(-record.new_nodes[-1][1] // space.block_size) - base.position // space.block_size


def _fits(space: TierSpace, record: _Record, base: Node, num_pages: int) -> bool:
    """Whether the new nodes follow from `base` one by one, and the pages are as many as they need."""
    if record.new_nodes and record.first_block != base.position // space.block_size:
        return False
    if not record.new_nodes and (base is space.index.root or base.snapshot is not None):
        return False
    if len({key for key, _ in record.new_nodes}) < len(record.new_nodes):
        return False
    last = base.position
    for key, position in record.new_nodes:
        known = space.index.get(key)
        if not 0 < position - last <= space.match_unit or last % space.match_unit or known is not None:
            return False
        last = position
    return num_pages == _num_blocks(space, record, base) + space.pages_per_state
