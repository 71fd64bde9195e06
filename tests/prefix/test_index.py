"""The index by itself: look-ups, tables, holds and what is dropped."""

from __future__ import annotations

import random

import pytest

from milepost.errors import InvariantError
from milepost.prefix.plan import Reason
from tests.prefix.shelf import Shelf

SIZES = [(4, 4), (8, 4), (4, 8), (6, 4), (3, 5), (5, 3), (1, 4), (4, 1), (7, 16)]  # (block size, match unit)


def tokens_of(length: int, seed: int = 0) -> tuple[int, ...]:
    return tuple(random.Random(seed).choices(range(1000), k=length))


def common(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    return next((i for i, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), len(other))


def test_an_empty_index_finds_its_root() -> None:
    shelf = Shelf()
    found = shelf.find(tokens_of(9))
    assert found.matched is shelf.index.root
    assert (found.usable, found.deepest) == (None, None)
    assert len(shelf.index) == shelf.index.num_snapshots == 0
    assert shelf.index.get(b"unknown") is None
    assert shelf.index.block_table(shelf.index.root) == []


@pytest.mark.parametrize(("block_size", "unit"), SIZES)
def test_a_look_up_finds_what_a_comparison_with_everything_finds(block_size: int, unit: int) -> None:
    """The binary search over units and the walk to snapshots, against brute force."""
    draws = random.Random(unit)
    shelf = Shelf(block_size=block_size, match_unit=unit, num_pages=3000)
    texts = [tuple(draws.choices((0, 1), k=draws.randrange(1, 40))) for _ in range(12)]
    standing: dict[tuple[int, ...], None] = {}
    known: list[tuple[int, ...]] = []
    for text in texts:
        positions = sorted(draws.sample(range(1, len(text) + 1), min(len(text), 3)))
        shelf.put(text, *positions)
        standing.update(dict.fromkeys(text[:position] for position in positions))
        known += [text[:end] for end in (*range(unit, len(text) + 1, unit), *positions)]
    for prompt in (*texts, *((*text[:-1], 1, 0, 1) for text in texts), tokens_of(20)):
        found = shelf.find(prompt)
        prefixes = [one for one in standing if prompt[: len(one)] == one]
        assert found.matched.position == max((len(k) for k in known if prompt[: len(k)] == k), default=0)
        deepest = max(map(len, prefixes), default=0)
        usable = max((len(one) for one in prefixes if len(one) < len(prompt)), default=0)
        assert (found.deepest.position if found.deepest else 0) == deepest
        assert (found.usable.position if found.usable else 0) == usable
        path = shelf.index.path_snapshots(found.matched, shelf.chain(prompt), prompt)
        assert [one.position for one in path] == sorted(map(len, prefixes))


@pytest.mark.parametrize(("block_size", "unit"), SIZES)
def test_a_table_takes_each_block_from_the_deepest_node_that_names_it(block_size: int, unit: int) -> None:
    """A second request went on from a unit end inside a block in pages of its own."""
    shelf = Shelf(block_size=block_size, match_unit=unit)
    text = tokens_of(3 * max(block_size, unit) + 2)
    short = text[: len(text) // 2 // unit * unit or unit]
    first, second = shelf.put(short), shelf.put(text, len(text))
    node = shelf.node(text)
    assert node is not None
    table = shelf.index.block_table(node)
    # The units of `short` are the first one's pages; behind them, from the block on in which they end,
    # everything lies in the second one's.
    own = len(short) // block_size
    assert table == [*first[:own], *second[own:]]
    assert len(table) == -(-len(text) // block_size)
    for first_block in range(len(table) + 1):
        assert shelf.index.block_table(node, first_block) == table[first_block:]
    assert shelf.index.block_table(shelf.node(short) or node) == first


def test_several_tails_stand_in_one_unit_and_below_the_first() -> None:
    shelf = Shelf(match_unit=8, block_size=4)
    text = tokens_of(21)
    shelf.put(text, 1, 3, 8, 9, 12, 15, 21)
    other = (*text[:10], 7, 7, 7)
    shelf.put(other, 11, 12)
    assert [shelf.hit(text[:n]) for n in (1, 2, 4, 9, 10, 13, 16, 21)] == [0, 1, 3, 8, 9, 12, 15, 15]
    assert shelf.hit(other) == 12
    assert shelf.hit((*other[:11], 5)) == 11
    assert shelf.hit((*text[:2], 5)) == 1
    assert shelf.hit((5, 5)) == 0


def test_a_snapshot_at_the_very_end_is_known_and_not_usable() -> None:
    """R60, R61, R63: at least one token is computed, also at a unit's and a block's end."""
    shelf = Shelf()
    text = tokens_of(8)
    shelf.put(text, 4, 8)
    found = shelf.find(text)
    assert found.deepest is found.matched is shelf.node(text)
    assert found.usable is shelf.node(text[:4])
    assert shelf.hit((*text, 1)) == 8


def test_r40_publishing_again_changes_nothing() -> None:
    """R40: a key that is there already is neither registered nor shared a second time."""
    shelf = Shelf(block_size=6, match_unit=2)
    text = tokens_of(12)
    shelf.put(text[:9], 8, 9)
    kept = shelf.index.block_table(shelf.snapshot(text[:9]).node)
    counts, state = shelf.pool.counts(), shelf.snapshot(text[:9]).pages
    shelf.put(text[:9], 8, 9)
    assert shelf.pool.counts() == counts
    assert (len(shelf.index), shelf.index.num_snapshots) == (5, 2)
    shelf.put(text, 12)
    assert shelf.index.block_table(shelf.snapshot(text[:9]).node) == kept
    assert shelf.snapshot(text[:9]).pages == state
    assert shelf.index.num_snapshots == 3


def test_a_second_snapshot_at_a_node_is_refused() -> None:
    shelf = Shelf()
    text = tokens_of(4)
    table = shelf.put(text, 4)
    before = shelf.snapshot(text)
    assert shelf.put_snapshot(text, 4, table, before.pages, reason=Reason.LAST) is None
    assert shelf.snapshot(text) is before
    assert before.reason is Reason.TURN


def test_pages_are_counted_once_however_many_nodes_name_them() -> None:
    shelf = Shelf(block_size=16, match_unit=4, pages_per_state=3)
    shelf.put(tokens_of(16), 16, 7)
    assert (shelf.index.num_kv_pages, shelf.index.num_state_pages) == (1, 6)
    assert shelf.pool.counts().cached == 7


def test_holds_nest_and_are_given_back() -> None:
    shelf = Shelf()
    text = tokens_of(12)
    table = shelf.put(text, 12)
    deep, middle = shelf.node(text), shelf.node(text[:8])
    assert deep is not None
    assert middle is not None
    index, pool = shelf.index, shelf.pool
    for node in (deep, middle, deep):
        index.hold(node)
        shelf.check()
    assert pool.num_evictable == 2  # the state, which is not held with its path
    index.unhold(deep)
    index.unhold(middle)
    assert all(pool.holds(page) == 1 for page in table)
    index.drop_snapshot(shelf.snapshot(text))
    assert index.drop_bare() is None, "a held path has no bare leaf"
    index.unhold(deep)
    assert pool.num_evictable == 3
    assert index.drop_bare() is deep
    assert [node.position for node in (index.drop_bare(), index.drop_bare()) if node] == [8, 4]
    assert pool.num_free == pool.num_usable
    shelf.check()


def test_holding_the_root_holds_nothing() -> None:
    shelf = Shelf()
    shelf.put(tokens_of(4), 4)
    shelf.index.hold(shelf.index.root)
    shelf.index.unhold(shelf.index.root)
    assert shelf.pool.num_evictable == 3
    shelf.check()


def test_a_pinned_snapshot_cannot_be_dropped_and_survives_a_clearing() -> None:
    shelf = Shelf()
    text = tokens_of(8)
    shelf.put(text, 4, 8)
    pinned = shelf.snapshot(text)
    shelf.index.pin(pinned)
    assert all(shelf.pool.holds(page) == 1 for page in pinned.pages)
    with pytest.raises(InvariantError, match="while it is pinned"):
        shelf.index.drop_snapshot(pinned)
    assert shelf.index.clear() == 1
    assert shelf.standing == [8]
    shelf.index.unpin(pinned)
    assert shelf.index.clear() == 1
    assert len(shelf.index) == 0
    assert shelf.pool.num_free == shelf.pool.num_usable
    shelf.check()
    with pytest.raises(InvariantError, match="dropped twice"):
        shelf.index.drop_snapshot(pinned)


def test_a_clearing_leaves_held_paths() -> None:
    shelf = Shelf()
    text, other = tokens_of(8), tokens_of(8, 1)
    shelf.put(text, 8)
    shelf.put(other, 8)
    node = shelf.node(text)
    assert node is not None
    shelf.index.hold(node)
    assert shelf.index.clear() == 2
    assert (shelf.node(text), shelf.node(other)) == (node, None)
    assert shelf.hit((*text, 1)) == 0
    shelf.index.unhold(node)
    shelf.check()


def test_a_dropped_tail_leaves_its_unit_and_other_tails() -> None:
    shelf = Shelf(match_unit=8)
    text = tokens_of(14)
    shelf.put(text, 10, 13)
    shelf.index.drop_snapshot(shelf.snapshot(text[:13]))
    assert shelf.index.drop_bare() is not None
    assert shelf.index.drop_bare() is None, "the unit carries the other tail"
    assert shelf.hit(text) == 10
    shelf.check()


def test_a_gap_reaches_to_the_snapshot_before_and_frees_what_only_this_one_needs() -> None:
    shelf = Shelf(block_size=4, match_unit=4, pages_per_state=2)
    text = tokens_of(32)
    shelf.put(text, 8, 32)
    deep = shelf.snapshot(text)
    assert (deep.gap, deep.freed_pages) == (24, 2 + 6)
    shelf.put((*text[:20], 1, 2, 3, 4), 24)
    shelf.index.measure(deep)
    assert (deep.gap, deep.freed_pages) == (24, 2 + 3), "the KV up to the fork has another user now"
    shelf.put(text, 28)
    shelf.index.measure(deep)
    assert (deep.gap, deep.freed_pages) == (4, 2 + 1)
    shelf.index.hold(deep.node)
    shelf.index.measure(deep)
    assert deep.freed_pages == 2, "a running request keeps the KV"
    shelf.index.unhold(deep.node)


def test_a_gap_reaches_to_a_tail_on_the_path_and_to_no_other() -> None:
    shelf = Shelf(match_unit=8)
    text = tokens_of(40)
    shelf.put(text, 5, 13, 22, 40)
    gaps = {one.position: one.gap for one in shelf.index.snapshots}
    assert gaps == {5: 5, 13: 8, 22: 9, 40: 18}
    fork = (*text[:20], 1, 2, 3, 4)
    shelf.put(fork, 24)
    assert shelf.snapshot(fork).gap == 24 - 13
    shelf.evictor.drop(shelf.snapshot(text[:22]))
    shelf.evictor.drop(shelf.snapshot(text[:13]))
    for tokens, gap in ((text, 35), (fork, 19)):
        shelf.index.measure(shelf.snapshot(tokens))
        assert shelf.snapshot(tokens).gap == gap
    shelf.put(text, 32)
    shelf.index.measure(shelf.snapshot(text))
    assert shelf.snapshot(text).gap == 8
    assert shelf.snapshot(text[:32]).gap == 27


def test_a_check_finds_a_page_that_the_index_does_not_name() -> None:
    shelf = Shelf()
    table = shelf.put(tokens_of(4), 4)
    shelf.pool.share(table)
    with pytest.raises(InvariantError, match="the index counts"):
        shelf.index.check()
