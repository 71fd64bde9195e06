"""Page tables, a sequence's pages, and how much fits."""

from __future__ import annotations

import numpy as np
import pytest

from milepost.errors import InvariantError
from milepost.memory.capacity import max_sequence_tokens, max_sequences, sequence_pages
from milepost.memory.pool import PagePool
from milepost.memory.tables import PageTable, SequencePages
from tests.scheduler.harness import SmallLayout


def test_a_table_is_a_sequence_of_ints_that_only_grows() -> None:
    table = PageTable([5, 6])
    table.extend([7])
    assert list(table) == [5, 6, 7]
    assert (len(table), table[0], table[-1], table[1:]) == (3, 5, 7, [6, 7])
    assert type(table[0]) is int
    assert 6 in table
    with pytest.raises(IndexError):
        table[3]
    assert not hasattr(table, "pop")
    assert not hasattr(table, "__setitem__")


def test_a_view_taken_by_a_running_step_stays_as_it_was() -> None:
    table = PageTable([1, 2, 3])
    view = np.asarray(table)
    for page in range(4, 40):
        table.extend([page])
    assert view.tolist() == [1, 2, 3]
    assert np.asarray(table).tolist() == list(range(1, 40))
    with pytest.raises(ValueError, match="read-only"):
        view[0] = 9
    copied = np.array(table)
    copied[0] = 9
    assert table[0] == 1


def test_reading_a_table_copies_nothing() -> None:
    table = PageTable(range(1000))
    assert np.shares_memory(np.asarray(table), np.asarray(table))


@pytest.mark.parametrize("block_size", [1, 4, 64])
@pytest.mark.parametrize("tokens", [1, 3, 4, 5, 63, 64, 65])
def test_a_sequence_holds_one_state_and_just_the_blocks_it_needs(block_size: int, tokens: int) -> None:
    layout = SmallLayout(block_size=block_size, pages_per_state=3)
    pool = PagePool(100)
    pages = SequencePages("a", layout, pool)
    assert pages.lacking(tokens) == sequence_pages(layout, tokens)
    assert pages.grow(tokens)
    assert (len(pages.state_table), len(pages.block_table)) == (3, -(-tokens // block_size))
    assert pages.num_pages == sequence_pages(layout, tokens) == 99 - pool.num_free
    assert pages.lacking(tokens) == 0
    pages.check(tokens)
    pages.release()
    assert pool.num_free == 99
    pool.check()


def test_growing_is_all_or_nothing_and_reach_says_how_far_it_would_go() -> None:
    layout = SmallLayout(block_size=4, pages_per_state=2)
    pool = PagePool(6)
    pages = SequencePages("a", layout, pool)
    assert pages.tokens_within_reach(pool.num_free) == 12
    assert not pages.grow(13)
    assert (pages.num_pages, pool.num_free) == (0, 5)
    assert pages.grow(3)
    assert pages.tokens_within_reach(pool.num_free) == 12
    assert pages.grow(12)
    assert pages.tokens_within_reach(pool.num_free) == 12
    assert not pages.grow(13)
    pages.check(12)
    with pytest.raises(InvariantError, match="can't hold the 13 tokens"):
        pages.check(13)


def test_reach_is_nothing_when_not_even_the_state_fits() -> None:
    pages = SequencePages("a", SmallLayout(block_size=4, pages_per_state=5), PagePool(4))
    assert pages.tokens_within_reach(3) == 0


def test_blocks_may_take_several_pages() -> None:
    layout = SmallLayout(block_size=4, pages_per_state=1, pages_per_block=3)
    pool = PagePool(12)
    pages = SequencePages("a", layout, pool)
    assert pages.tokens_within_reach(pool.num_free) == 12
    assert pages.grow(5)
    assert len(pages.block_table) == 6
    assert max_sequence_tokens(layout, pool.num_pages) == 12


@pytest.mark.parametrize("num_pages", [2, 3, 4, 7, 20, 33])
@pytest.mark.parametrize("tokens", [1, 4, 5, 9])
def test_r69_capacity_is_what_filling_the_pool_gives(num_pages: int, tokens: int) -> None:
    """R69: the reported capacity comes from the allocator; filling the pool gives exactly that."""
    layout = SmallLayout(block_size=4, pages_per_state=2)
    pool = PagePool(num_pages)
    filled = 0
    while SequencePages(str(filled), layout, pool).grow(tokens):
        filled += 1
    assert max_sequences(layout, num_pages, tokens) == filled

    alone = PagePool(num_pages)
    longest, pages = 0, SequencePages("a", layout, alone)
    while pages.grow(longest + 1):
        longest += 1
    assert max_sequence_tokens(layout, num_pages) == longest
