"""Pages that the index names, transfers write or others lend: the pool's counts and a sequence's tables."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from milepost.errors import InvariantError
from milepost.memory.page_states import PageState
from milepost.memory.pool import Lease, PagePool
from milepost.memory.tables import SequencePages
from tests.scheduler.harness import SmallLayout

LAYOUT = SmallLayout(block_size=4, pages_per_state=2)


def written(pool: PagePool, count: int) -> tuple[Lease, list[int]]:
    """Pages that an owner has written and still holds."""
    lease = pool.open("owner")
    pages = pool.reserve(lease, count)
    assert pages is not None
    pool.begin_step(lease, pages)
    pool.end_step(lease, pages)
    return lease, list(pages)


def received(pool: PagePool, count: int) -> tuple[Lease, list[int]]:
    """Pages that a transfer writes."""
    lease = pool.open("transfer")
    pages = pool.reserve(lease, count)
    assert pages is not None
    pool.begin_receive(lease, pages)
    return lease, list(pages)


def test_a_page_with_references_outlives_its_owner() -> None:
    pool = PagePool(4)
    lease, (named, unnamed) = written(pool, 2)
    pool.share([named])
    pool.share([named])
    pool.release(lease, [named, unnamed])
    pool.close(lease)
    assert (pool.state_of(named), pool.state_of(unnamed)) == (PageState.CACHED, PageState.FREE)
    assert pool.num_evictable == 1
    pool.drop([named])
    assert (pool.state_of(named), pool.references(named)) == (PageState.CACHED, 1)
    pool.drop([named])
    assert pool.state_of(named) is PageState.FREE
    pool.check()


def test_a_page_whose_entries_go_first_stays_its_owner_s() -> None:
    pool = PagePool(3)
    lease, pages = written(pool, 2)
    pool.share(pages)
    pool.drop(pages)
    assert pool.counts().owned == 2
    pool.release(lease, pages)
    assert pool.num_free == 2
    pool.check()


def test_holds_keep_cached_pages_from_being_evictable_and_add_up() -> None:
    pool = PagePool(4)
    lease, pages = written(pool, 3)
    pool.share(pages)
    pool.hold(pages[:2])
    assert pool.num_evictable == 0, "they still have an owner"
    pool.release(lease, pages)
    assert pool.num_evictable == 1
    pool.hold(pages[:1])
    pool.unhold(pages[:2])
    assert (pool.holds(pages[0]), pool.holds(pages[1]), pool.num_evictable) == (1, 0, 2)
    pool.unhold(pages[:1])
    assert pool.num_evictable == 3
    pool.check()


def test_a_failed_owner_s_pages_are_tainted_unless_somebody_names_them() -> None:
    """What was published before the failure is not in doubt; what was never written needs no scrub."""
    pool = PagePool(5)
    lease, (named, unnamed) = written(pool, 2)
    reserved = pool.reserve(lease, 1)
    assert reserved is not None
    pool.share([named])
    pool.release(lease, [named, unnamed, *reserved], tainted=True)
    states = [pool.state_of(page) for page in (named, unnamed, *reserved)]
    assert states == [PageState.CACHED, PageState.TAINTED, PageState.FREE]
    assert pool.take_tainted() == (unnamed,)
    assert pool.state_of(unnamed) is PageState.FREE
    assert pool.take_tainted() == ()
    pool.check()


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda pool, page: pool.drop([page]), "more often than it was shared"),
        (lambda pool, page: pool.unhold([page]), "more often than it was held"),
        (lambda pool, page: pool.hold([page]), "has no references"),
    ],
)
def test_counts_below_zero_and_holds_on_nothing_are_bugs(
    wrong: Callable[[PagePool, int], None], says: str
) -> None:
    pool = PagePool(3)
    _, (page,) = written(pool, 1)
    with pytest.raises(InvariantError, match=says):
        wrong(pool, page)


def test_a_held_page_can_not_lose_its_last_entry() -> None:
    pool = PagePool(3)
    _, (page,) = written(pool, 1)
    pool.share([page])
    pool.hold([page])
    with pytest.raises(InvariantError, match="dropped while it is held"):
        pool.drop([page])


def test_only_written_pages_can_be_published() -> None:
    """R32, R87: neither what a step is to write nor what a transfer is to bring."""
    pool = PagePool(9)
    lease = pool.open("owner")
    reserved, writing = pool.reserve(lease, 1), pool.reserve(lease, 1)
    _, receiving = received(pool, 1)
    assert reserved is not None
    assert writing is not None
    pool.begin_step(lease, writing)
    free = pool.free_pages()[0]
    for page in (*reserved, *writing, *receiving, free, 0):
        with pytest.raises(InvariantError, match="can't be published"):
            pool.share([page])
    pool.end_step(lease, writing)
    pool.share(writing)


def test_a_transfer_that_ends_gives_its_pages_to_the_lease() -> None:
    pool = PagePool(4)
    lease, pages = received(pool, 2)
    assert (pool.counts().receiving, pool.counts().leased) == (2, 2)
    pool.end_receive(lease, pages)
    assert pool.counts().owned == lease.num_pages == 2
    pool.release(lease, pages)
    pool.close(lease)
    pool.check()


def test_a_transfer_that_fails_leaves_pages_to_be_scrubbed() -> None:
    pool = PagePool(4)
    lease, pages = received(pool, 2)
    pool.end_receive(lease, pages, failed=True)
    assert (lease.num_pages, pool.counts().tainted) == (0, 2)
    pool.close(lease)
    assert set(pool.take_tainted()) == set(pages)
    pool.check()


def test_a_given_up_transfer_keeps_its_pages_from_everybody_until_it_ends() -> None:
    """R51, R85: nobody gets a page that a late write may still hit."""
    pool = PagePool(4)
    lease, pages = received(pool, 2)
    pool.quarantine(lease, pages)
    pool.close(lease)
    assert pool.counts().quarantined == 2
    assert pool.take_tainted() == ()
    assert pool.reserve(pool.open("next"), 2) is None
    pool.check()
    pool.end_quarantine(pages)
    with pytest.raises(InvariantError, match="not QUARANTINED"):
        pool.end_quarantine(pages)
    assert pool.reserve(pool.open("next"), 2) is None, "scrubbed first"
    assert set(pool.take_tainted()) == set(pages)
    assert pool.reserve(pool.open("next"), 2) is not None


def test_a_page_can_not_be_released_while_a_transfer_writes_it() -> None:
    pool = PagePool(4)
    lease, pages = received(pool, 1)
    with pytest.raises(InvariantError, match="RECEIVING"):
        pool.release(lease, pages)
    with pytest.raises(InvariantError, match="closed while it holds pages"):
        pool.close(lease)


# -- a sequence's tables ------------------------------------------------------------------------


def in_step(pages: SequencePages) -> None:
    pages.begin_step()
    pages.end_step()


def shared_blocks(pool: PagePool, count: int) -> list[int]:
    lease, pages = written(pool, count)
    pool.share(pages)
    pool.release(lease, pages)
    pool.close(lease)
    return pages


def test_shared_blocks_count_for_the_tokens_and_not_for_the_pages() -> None:
    pool = PagePool(20)
    shared = shared_blocks(pool, 2)
    pages = SequencePages("a", LAYOUT, pool)
    pages.adopt(shared)
    assert (pages.num_shared, pages.num_pages) == (2, 0)
    assert pages.lacking(8) == 2
    assert pages.lacking(9) == 3
    assert pages.tokens_within_reach(3) == 12
    assert pages.grow(9)
    assert list(pages.block_table)[:2] == shared
    assert (pages.num_pages, len(pages.block_table)) == (3, 3)
    pages.check(12)
    in_step(pages)
    pages.release()
    assert pool.counts().cached == 2
    assert all(pool.references(page) == 1 for page in shared)
    assert pool.num_free == 17
    pool.check()


def test_blocks_are_adopted_at_the_beginning_or_not_at_all() -> None:
    pool = PagePool(20)
    pages = SequencePages("a", LAYOUT, pool)
    pages.grow(1)
    with pytest.raises(InvariantError, match="has pages already"):
        pages.adopt(shared_blocks(pool, 1))
    nothing = SequencePages("b", LAYOUT, pool)
    nothing.adopt([])
    assert (nothing.num_shared, nothing.lacking(1)) == (0, 3)


def test_ordered_snapshots_are_kept_if_published_and_free_otherwise() -> None:
    pool = PagePool(20)
    pages = SequencePages("a", LAYOUT, pool)
    pages.grow(4)
    kept, dropped = pages.order_snapshot(), pages.order_snapshot()
    assert kept is not None
    assert dropped is not None
    assert pages.num_pages == 3 + 4
    pages.check(4)
    in_step(pages)
    pool.share(kept)
    pages.settle_snapshots()
    assert {pool.state_of(page) for page in kept} == {PageState.CACHED}
    assert {pool.state_of(page) for page in dropped} == {PageState.FREE}
    assert pages.num_pages == 3
    pages.settle_snapshots()
    pages.check(4)
    pages.release()
    pool.check()


def test_what_may_not_be_finite_is_scrubbed_and_what_was_published_is_not() -> None:
    pool = PagePool(20)
    pages = SequencePages("a", LAYOUT, pool)
    pages.grow(4)
    kept, dropped = pages.order_snapshot(), pages.order_snapshot()
    assert kept is not None
    assert dropped is not None
    in_step(pages)
    pool.share(kept)
    pages.settle_snapshots(tainted=True)
    assert set(pool.take_tainted()) == set(dropped)
    pages.release()
    assert pool.counts().cached == 2


def test_a_snapshot_without_memory_is_not_ordered_and_nothing_is_lost() -> None:
    pool = PagePool(1 + 3 + 1)
    pages = SequencePages("a", LAYOUT, pool)
    pages.grow(4)
    assert pages.order_snapshot() is None
    assert pages.num_pages == 3
    pages.check(4)


def test_a_life_that_ends_gives_its_orders_back_too() -> None:
    pool = PagePool(20)
    pages = SequencePages("a", LAYOUT, pool)
    pages.grow(4)
    pages.order_snapshot()
    pages.begin_step()
    with pytest.raises(InvariantError, match="a running step may write"):
        pages.release()
    pages.end_step()
    pages.release(tainted=True)
    assert len(pool.take_tainted()) == 5
    assert pool.num_free == pool.num_usable
    pool.check()


def test_an_order_that_no_step_wrote_is_just_free() -> None:
    pool = PagePool(20)
    pages = SequencePages("a", LAYOUT, pool)
    pages.grow(4)
    pages.order_snapshot()
    pages.release(tainted=True)
    assert pool.num_free == pool.num_usable
    assert pool.take_tainted() == ()


def test_the_live_state_s_pages_may_become_a_snapshot() -> None:
    """The last snapshot costs no copy: its pages have references when their owner lets them go."""
    pool = PagePool(20)
    pages = SequencePages("a", LAYOUT, pool)
    pages.grow(5)
    in_step(pages)
    state, blocks = list(pages.state_table), list(pages.block_table)
    pool.share([*state, blocks[0]])
    pages.release()
    assert {pool.state_of(page) for page in (*state, blocks[0])} == {PageState.CACHED}
    assert pool.state_of(blocks[1]) is PageState.FREE
    pool.check()


def test_a_table_that_names_a_page_twice_is_found() -> None:
    pool = PagePool(20)
    shared = shared_blocks(pool, 1)
    pages = SequencePages("a", LAYOUT, pool)
    pages.adopt([*shared, *shared])
    with pytest.raises(InvariantError, match="once each"):
        pages.check(0)
