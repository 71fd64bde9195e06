"""What goes first when pages are needed."""

from __future__ import annotations

import itertools

import pytest

from milepost.errors import InvariantError
from milepost.prefix.eviction import Candidate, Lru
from milepost.prefix.nodes import Snapshot
from milepost.prefix.plan import Reason
from tests.prefix.shelf import Shelf
from tests.prefix.test_index import tokens_of


class ByGap(Lru):
    """The shortest gap goes first: worth that changes with what is evicted around."""

    def worth(self, candidate: Candidate, now: float) -> float:
        return candidate.gap


def fill(shelf: Shelf, leave: int = 0) -> None:
    """Somebody takes all free pages but `leave`."""
    assert shelf.pool.reserve(shelf.pool.open("somebody"), shelf.pool.num_free - leave) is not None


def test_nothing_goes_while_pages_are_free() -> None:
    shelf = Shelf()
    shelf.put(tokens_of(8), 8)
    assert shelf.evictor.make_room(shelf.pool.num_free)
    assert shelf.standing == [8]


def test_what_can_not_be_had_changes_nothing() -> None:
    shelf = Shelf()
    text = tokens_of(8)
    shelf.put(text, 4, 8)
    fill(shelf)
    node = shelf.node(text)
    assert node is not None
    shelf.index.hold(node)
    assert not shelf.evictor.make_room(5)
    assert shelf.standing == [4, 8]
    assert shelf.evictor.num_snapshots == 0
    assert shelf.evictor.make_room(4), "the states are held by nobody"
    assert shelf.standing == []
    assert shelf.node(text) is node
    shelf.check()


def test_first_bare_kv_then_spares_then_by_the_policy() -> None:
    shelf = Shelf()
    bare, spare, old, young = (tokens_of(8, seed) for seed in range(4))
    shelf.put(old, 8)
    shelf.now = 1.0
    shelf.put(young, 8)
    shelf.put(spare, 8, reason=Reason.SPARE)
    shelf.put(bare)
    fill(shelf)
    assert shelf.evictor.make_room(2)
    assert (shelf.node(bare), shelf.hit((*spare, 1))) == (None, 8)
    assert (shelf.evictor.num_kv_pages, shelf.evictor.num_snapshots) == (2, 0)
    assert shelf.evictor.make_room(3)
    assert (shelf.hit((*spare, 1)), shelf.hit((*old, 1)), shelf.hit((*young, 1))) == (0, 8, 8)
    assert shelf.evictor.make_room(8)
    assert (shelf.hit((*old, 1)), shelf.hit((*young, 1))) == (0, 8)
    assert shelf.evictor.num_snapshots == 2
    shelf.check()


def test_bare_kv_goes_from_its_end() -> None:
    shelf = Shelf()
    text = tokens_of(16)
    shelf.put(text)
    fill(shelf)
    for left in (12, 8, 4):
        shelf.evictor.make_room(shelf.pool.num_free + 1)
        assert shelf.find(text).matched.position == left


@pytest.mark.parametrize("count", range(1, 16))
def test_r20_spares_thin_out_from_fine_to_coarse(count: int) -> None:
    """R20: what is left of a long chain stays spread over all of it."""
    shelf = Shelf(block_size=1, match_unit=1, pages_per_state=1)
    text = tokens_of(64)
    shelf.put(text, *range(4, 65, 4), reason=Reason.SPARE)
    fill(shelf)
    for _ in range(count):
        shelf.evictor.make_room(shelf.pool.num_free + 1)
    left = [0, *shelf.standing]
    gaps = [after - before for before, after in itertools.pairwise(left)]
    assert len(left) == 17 - count
    assert max(gaps) <= 4 * min(gaps), "never dense here and bare there"


def test_a_used_spare_is_no_spare_any_more() -> None:
    shelf = Shelf()
    used, fresh = tokens_of(8, 0), tokens_of(8, 1)
    for text in (used, fresh):
        shelf.put(text, 8, reason=Reason.SPARE)
    shelf.snapshot(used).hits = 1
    shelf.evictor.note(shelf.snapshot(used))
    fill(shelf)
    shelf.evictor.make_room(1)
    assert (shelf.hit((*used, 1)), shelf.hit((*fresh, 1))) == (8, 0)
    assert not shelf.evictor.thin(8, 5), "there is no spare left"
    assert shelf.hit((*used, 1)) == 8
    assert shelf.evictor.make_room(5)


def test_spares_make_room_for_spares_alone() -> None:
    shelf = Shelf()
    wanted, spare, bare = tokens_of(8, 0), tokens_of(8, 1), tokens_of(4, 2)
    shelf.put(wanted, 8)
    shelf.put(spare, 8, reason=Reason.SPARE)
    shelf.put(bare)
    fill(shelf)
    assert shelf.evictor.thin(8, 1)
    assert shelf.node(bare) is not None
    assert shelf.hit((*spare, 1)) == 0
    assert not shelf.evictor.thin(8, 6), "bare KV shows where prompts part"
    assert shelf.node(bare) is not None
    assert shelf.hit((*wanted, 1)) == 8


def test_pinned_snapshots_are_passed_over_and_listed_again() -> None:
    shelf = Shelf()
    pinned, other = tokens_of(8, 0), tokens_of(8, 1)
    shelf.put(pinned, 4, reason=Reason.SPARE)
    shelf.put(pinned, 8)
    shelf.now = 1.0
    shelf.put(other, 8)
    snapshots = [shelf.snapshot(pinned[:4]), shelf.snapshot(pinned)]
    for snapshot in snapshots:
        shelf.index.pin(snapshot)
    fill(shelf)
    assert shelf.evictor.make_room(2)
    assert shelf.standing == [4, 8]
    assert shelf.hit((*other, 1)) == 0
    for snapshot in snapshots:
        shelf.index.unpin(snapshot)
    assert shelf.evictor.make_room(shelf.pool.num_free + shelf.pool.num_evictable)
    assert shelf.standing == []
    shelf.check()


def test_gaps_are_measured_again_before_one_goes() -> None:
    """The snapshot that covers for an evicted one is worth more than it was."""
    shelf = Shelf(policy=ByGap(), pages_per_state=1)
    text = tokens_of(40)
    shelf.put(text, 12, 16, 28, 40)  # gaps of 12, 4, 12, 12
    fill(shelf)
    gone = []
    while shelf.standing:
        before = set(shelf.standing)
        shelf.evictor.make_room(shelf.pool.num_free + 1)
        gone += sorted(before - set(shelf.standing))
    assert gone[0] == 16
    # Now 28 covers 16 tokens and the ends 12 each; after one of those its neighbour covers more.
    assert gone[1] in (12, 40)
    assert 28 in gone[2:]


def test_who_is_told_before_a_snapshot_goes_sees_it_with_its_kv() -> None:
    shelf = Shelf()
    spare, wanted = tokens_of(8, 0), tokens_of(8, 1)
    shelf.put(spare, 8, reason=Reason.SPARE)
    shelf.put(wanted, 8)
    seen: list[tuple[Snapshot, list[int]]] = []
    shelf.evictor.before_drop = lambda one: seen.append((one, shelf.index.block_table(one.node)))
    snapshot = shelf.snapshot(wanted)
    table = shelf.index.block_table(snapshot.node)
    fill(shelf)
    assert shelf.evictor.make_room(8)
    assert seen == [(snapshot, table)], "spares and bare KV are not worth telling"


def test_what_goes_is_remembered() -> None:
    shelf = Shelf()
    text = tokens_of(10)
    shelf.put(text, 10)
    keys = shelf.chain(text).full
    fill(shelf)
    shelf.evictor.make_room(1)
    assert (shelf.ghosts.deepest_state(keys), shelf.ghosts.deepest_kv(keys)) == (10, 0)
    shelf.evictor.make_room(5)
    assert shelf.ghosts.deepest_kv(keys) == 8
    assert (shelf.evictor.num_snapshots, shelf.evictor.num_kv_pages) == (1, 3)


@pytest.mark.parametrize("reason", [Reason.SPARE, Reason.TURN])
def test_lists_stay_in_proportion_to_what_stands(reason: Reason) -> None:
    """Used a million times and reset a thousand, and nobody is evicted meanwhile."""
    shelf = Shelf()
    text = tokens_of(8)
    for _ in range(1500):
        shelf.put(text, 8, reason=reason)
        shelf.snapshot(text).hits += 1
        shelf.evictor.note(shelf.snapshot(text))
        shelf.index.clear()
    assert len(shelf.evictor._heap) + len(shelf.evictor._spares) < 1100


def test_a_pool_that_lies_is_found() -> None:
    shelf = Shelf()
    table = shelf.put(tokens_of(8), 8)
    shelf.pool.share(table)
    fill(shelf)
    with pytest.raises(InvariantError, match="can't be had although"):
        shelf.evictor.make_room(4)


def test_what_is_cleared_is_not_remembered() -> None:
    """Each dropped snapshot would keep its whole path in memory."""
    shelf = Shelf()
    shelf.put(tokens_of(40), 8, 16)
    shelf.put(tokens_of(40, 1), 8, reason=Reason.SPARE)
    node = shelf.node(tokens_of(40)[:16])
    assert node is not None
    assert node.snapshot is not None
    shelf.index.hold(node)
    shelf.index.pin(node.snapshot)
    assert shelf.evictor.clear() == 2
    assert shelf.standing == [16]
    assert [entry[2] for entry in (*shelf.evictor._heap, *shelf.evictor._spares)] == [node.snapshot]
    shelf.check()
