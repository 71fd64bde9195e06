"""One snapshot's way to another tier, and the records by which a disk finds it again."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from milepost.memory.page_states import PageState
from milepost.prefix.disk_records import encode_record, recover_entries
from milepost.prefix.moves import Move, plan_move
from milepost.prefix.plan import Reason
from milepost.types import Tier
from tests.prefix.shelf import Shelf
from tests.prefix.test_index import SIZES, tokens_of

TEXT = tokens_of(14)


class Entry(msgspec.Struct):
    record: bytes
    pages: list[int]


def pair(**options: Any) -> tuple[Shelf, Shelf]:
    return Shelf(**options), Shelf(**options)


def plan(source: Shelf, target: Shelf, tokens: tuple[int, ...]) -> Move | None:
    return plan_move(source.space(Tier.HOST), target.space(Tier.DISK), source.snapshot(tokens))


def stored(source: Shelf, target: Shelf, tokens: tuple[int, ...]) -> Entry:
    """Move a snapshot to the target's disk; what will be found there."""
    move = plan(source, target, tokens)
    assert move is not None
    entry = Entry(encode_record(move), list(move.pages))
    move.finish(0.0)
    target.check()
    return entry


def recovered(*entries: Entry, **options: Any) -> Shelf:
    shelf = Shelf(**options)
    assert recover_entries(shelf.space(Tier.DISK), entries, 5.0) == shelf.index.num_snapshots
    shelf.check()
    return shelf


def empty(shelf: Shelf) -> bool:
    return len(shelf.index) == 0 and shelf.pool.num_free == shelf.pool.num_usable


@pytest.mark.parametrize(("block_size", "unit"), SIZES)
def test_what_was_moved_is_found_there_with_its_path(block_size: int, unit: int) -> None:
    source, target = pair(block_size=block_size, match_unit=unit)
    text = tokens_of(2 * max(block_size, unit) + 3)
    source.put(text, len(text) // 2, len(text))
    entries = [stored(source, target, text[: len(text) // 2]), stored(source, target, text)]
    assert target.snapshot(text).gap == len(text) - len(text) // 2
    after = recovered(*entries, block_size=block_size, match_unit=unit)
    for shelf in (target, after):
        assert shelf.standing == [len(text) // 2, len(text)]
        assert shelf.hit((*text, 1)) == len(text)
    for tokens in (text[: len(text) // 2], text):
        one, other = target.snapshot(tokens), after.snapshot(tokens)
        assert one.pages == other.pages
        assert target.index.block_table(one.node) == after.index.block_table(other.node)
    assert after.snapshot(text).used_at == 5.0
    assert after.pool.num_free == target.pool.num_free


def test_pages_are_received_and_published_when_the_copy_has_run() -> None:
    source, target = pair()
    source.put(TEXT, 14)
    move = plan(source, target, TEXT)
    assert move is not None
    assert {target.pool.state_of(page) for page in move.pages} == {PageState.RECEIVING}
    assert (move.first_block, len(move.kv_pages), len(move.state_pages)) == (0, 4, 2)
    assert [position for _, position in move.steps] == [4, 8, 12, 14]
    assert target.hit((*TEXT, 1)) == 0
    snapshot = move.finish(3.0)
    assert snapshot is not None
    assert (snapshot.reason, snapshot.used_at) == (Reason.TURN, 3.0)
    assert target.pool.counts().cached == 6
    target.check()


def test_a_move_ends_in_failure_or_is_given_up() -> None:
    source, target = pair()
    source.put(TEXT, 8, 14)
    stored(source, target, TEXT[:8])
    before = target.pool.num_evictable
    for give_up in (False, True):
        move = plan(source, target, TEXT)
        assert move is not None
        assert target.pool.num_evictable == 2, "the path that the move goes on from stays; its state may go"
        if give_up:
            move.quarantine()
            target.check()
            target.pool.end_quarantine(move.pages)
        else:
            move.fail()
        target.check()
        assert target.pool.num_evictable == before
        assert len(target.pool.take_tainted()) == len(move.pages) == 4
    assert target.hit((*TEXT, 1)) == 8


def test_two_moves_of_the_same_leave_one_copy() -> None:
    source, target = pair()
    source.put(TEXT, 14)
    one, other = plan(source, target, TEXT), plan(source, target, TEXT)
    assert one is not None
    assert other is not None
    assert one.finish(0.0) is not None
    assert other.finish(0.0) is None
    target.check()
    assert target.pool.counts().cached == 6
    assert plan(source, target, TEXT) is None


def test_room_in_the_target_is_made_by_eviction_or_nothing_moves() -> None:
    source, target = Shelf(), Shelf(num_pages=8)
    other = tokens_of(8, 1)
    source.put(TEXT, 14)
    source.put(other, 8)
    stored(source, target, other)
    stored(source, target, TEXT)
    assert target.standing == [14]
    lease = target.pool.open("somebody")
    target.index.clear()
    target.pool.reserve(lease, 2)
    assert plan(source, target, TEXT) is None
    target.check()


def test_an_entry_whose_predecessor_is_missing_or_comes_later_is_left_out() -> None:
    source, target = pair()
    source.put(TEXT, 8, 14)
    first, second = stored(source, target, TEXT[:8]), stored(source, target, TEXT)
    assert empty(recovered(second))
    late = recovered(second, first)
    assert late.standing == [8]
    assert late.hit((*TEXT, 1)) == 8


def test_an_entry_that_comes_twice_counts_once() -> None:
    source, target = pair()
    source.put(TEXT, 14)
    entry = stored(source, target, TEXT)
    elsewhere = Entry(entry.record, [page + 50 for page in entry.pages])
    assert recovered(entry, entry, elsewhere).pool.counts().cached == 6


def test_a_state_above_kv_that_is_there_already() -> None:
    source, target = pair()
    source.put(TEXT, 14)
    entries = [stored(source, target, TEXT)]
    source.put(TEXT, 8)
    entries.append(stored(source, target, TEXT[:8]))
    assert len(entries[1].pages) == 2
    after = recovered(*entries)
    assert after.standing == [8, 14]
    twice = recovered(*entries, Entry(entries[1].record, [90, 91]))
    assert twice.pool.num_free == after.pool.num_free


def test_pages_that_overlap_or_do_not_exist_are_refused() -> None:
    source, target = pair()
    other = tokens_of(14, 1)
    source.put(TEXT, 14)
    source.put(other, 14)
    one, two = stored(source, target, TEXT), stored(source, target, other)
    assert recovered(one, Entry(two.record, [*two.pages[:-1], one.pages[0]])).hit((*other, 1)) == 0
    for pages in ([1, 1, 2, 3, 4, 5], [0, 1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 200], [-1, 1, 2, 3, 4, 5]):
        assert empty(recovered(Entry(one.record, pages)))
    refused = recovered(one, Entry(two.record, [*two.pages[:-1], one.pages[0]]))
    assert refused.pool.num_free == refused.pool.num_usable - 6, "the pages of what is refused are free"


def test_torn_and_foreign_records_are_no_entries() -> None:
    source, target = pair()
    source.put(TEXT, 14)
    entry = stored(source, target, TEXT)
    for record in (b"", b"\xc1", b"not a record", entry.record[:-1], entry.record[1:]):
        assert empty(recovered(Entry(record, entry.pages)))
    base, steps, first_block, _ = msgspec.msgpack.decode(entry.record)
    assert empty(recovered(Entry(msgspec.msgpack.encode([base, steps, first_block, "why"]), entry.pages)))


def test_records_that_do_not_fit_together_are_no_entries() -> None:
    source, target = pair()
    source.put(TEXT, 14)
    entry = stored(source, target, TEXT)
    base, steps, first_block, reason = msgspec.msgpack.decode(entry.record)
    key, position = steps[-1]
    wrong = {
        "a block too late": [base, steps, 1, reason],
        "a unit too long": [base, [steps[0], *steps[2:]], first_block, reason],
        "no progress": [base, [*steps[:-1], (key, 12)], first_block, reason],
        "backwards": [base, steps[::-1], first_block, reason],
        "behind a tail": [base, [*steps, (b"another key", position + 1)], first_block, reason],
        "more pages than it needs": [base, steps[:-2], first_block, reason],
        "a key twice": [base, [*steps[:-1], (steps[0][0], position)], first_block, reason],
        "another unit": [base, [(key, 3)], first_block, reason],
    }
    for why, record in wrong.items():
        assert empty(recovered(Entry(msgspec.msgpack.encode(record), entry.pages))), why
    good = Entry(msgspec.msgpack.encode([base, steps, first_block, reason]), entry.pages)
    assert recovered(good).standing == [14]


def test_no_record_puts_a_state_before_the_first_token() -> None:
    record = msgspec.msgpack.encode([b"", [], 0, "turn"])
    shelf = recovered(Entry(record, [1, 2]))
    assert empty(shelf)
    assert shelf.index.num_snapshots == 0
