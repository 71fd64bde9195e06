"""The page life cycle: each move that exists, and none that doesn't."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from milepost.errors import ConfigError, InvariantError
from milepost.memory.layout import DUMMY_PAGE
from milepost.memory.page_states import TRANSITIONS, PageState
from milepost.memory.pool import Lease, PagePool


def reserved(pool: PagePool, count: int, owner: str = "a") -> tuple[Lease, tuple[int, ...]]:
    lease = pool.open(owner)
    pages = pool.reserve(lease, count)
    assert pages is not None
    return lease, pages


def written(pool: PagePool, count: int, owner: str = "a") -> tuple[Lease, tuple[int, ...]]:
    lease, pages = reserved(pool, count, owner)
    pool.begin_step(lease, pages)
    pool.end_step(lease, pages)
    return lease, pages


def test_a_page_goes_from_free_through_reserved_and_writing_to_owned_and_back() -> None:
    pool = PagePool(4)
    lease, pages = reserved(pool, 2)
    seen = [{pool.state_of(page) for page in pages}]
    pool.begin_step(lease, pages)
    seen.append({pool.state_of(page) for page in pages})
    pool.end_step(lease, pages)
    seen.append({pool.state_of(page) for page in pages})
    pool.release(lease, pages)
    pool.close(lease)
    seen.append({pool.state_of(page) for page in pages})
    assert seen == [{PageState.RESERVED}, {PageState.WRITING}, {PageState.OWNED}, {PageState.FREE}]
    pool.check()


@pytest.mark.parametrize(("source", "target"), list(itertools.product(PageState, PageState)))
def test_only_the_moves_of_the_table_exist(source: PageState, target: PageState) -> None:
    pool = PagePool(2)
    pool._states[1] = source
    if (source, target) in TRANSITIONS:
        pool._move([1], target)
        assert pool.state_of(1) is target
    else:
        with pytest.raises(InvariantError, match=f"page 1 can't go from {source.name} to {target.name}"):
            pool._move([1], target)


def test_a_reservation_is_all_or_nothing() -> None:
    pool = PagePool(4)
    lease = pool.open("a")
    assert pool.reserve(lease, 4) is None
    assert (pool.num_free, lease.num_pages) == (3, 0)
    assert sorted(pool.reserve(lease, 3) or ()) == [1, 2, 3]
    assert pool.reserve(lease, 1) is None
    assert pool.reserve(lease, 0) == ()
    pool.check()


def test_r54_r55_the_dummy_page_is_counted_and_never_given() -> None:
    """R54, R55: padding has a page of its own, inside the budget, that no request can own."""
    pool = PagePool(5)
    assert (pool.num_pages, pool.num_usable, pool.num_free) == (5, 4, 4)
    lease, pages = reserved(pool, 4)
    assert DUMMY_PAGE not in pages
    assert pool.state_of(DUMMY_PAGE) is PageState.DUMMY
    for attempt in (pool.begin_step, pool.release):
        with pytest.raises(InvariantError, match="page 0 does not belong"):
            attempt(lease, [DUMMY_PAGE])


def test_pages_of_a_running_step_can_not_be_released() -> None:
    pool = PagePool(4)
    lease, old = written(pool, 2)
    pool.begin_step(lease, ())
    with pytest.raises(InvariantError, match="running step"):
        pool.release(lease, old)
    pool.end_step(lease, ())
    pool.release(lease, old)
    pool.check()


def test_steps_of_a_lease_do_not_nest() -> None:
    pool = PagePool(3)
    lease, pages = reserved(pool, 1)
    with pytest.raises(InvariantError, match="not part of a running step"):
        pool.end_step(lease, pages)
    pool.begin_step(lease, pages)
    with pytest.raises(InvariantError, match="already part of a running step"):
        pool.begin_step(lease, ())


def test_a_later_life_of_the_same_owner_has_no_right_to_earlier_pages() -> None:
    pool = PagePool(4)
    first, pages = written(pool, 2)
    pool.release(first, pages)
    pool.close(first)
    second = pool.open("a")
    assert second.generation > first.generation
    with pytest.raises(InvariantError, match="does not belong to"):
        pool.release(second, pages)
    with pytest.raises(InvariantError, match="is closed"):
        pool.reserve(first, 1)


def test_foreign_pages_are_refused() -> None:
    pool = PagePool(5)
    _, pages = written(pool, 2, "a")
    other = pool.open("b")
    with pytest.raises(InvariantError, match="does not belong to Lease\\('b'"):
        pool.release(other, pages)


def test_no_page_is_released_twice() -> None:
    pool = PagePool(3)
    lease, pages = written(pool, 1)
    with pytest.raises(InvariantError, match="can't go from FREE to FREE"):
        pool.release(lease, pages + pages)


def test_a_lease_is_closed_empty_or_not_at_all() -> None:
    pool = PagePool(3)
    lease, pages = reserved(pool, 1)
    with pytest.raises(InvariantError, match="closed while it holds pages"):
        pool.close(lease)
    pool.release(lease, pages)
    pool.close(lease)
    with pytest.raises(InvariantError, match="is closed"):
        pool.close(lease)


def test_tainted_pages_are_not_free_before_somebody_promises_to_scrub_them() -> None:
    pool = PagePool(6)
    lease, pages = written(pool, 2)
    unwritten = pool.reserve(lease, 1)
    assert unwritten is not None
    pool.release(lease, [*pages, *unwritten], tainted=True)
    pool.close(lease)
    assert (pool.counts().tainted, pool.num_free) == (2, 3)
    assert not set(pages) & set(pool.free_pages())
    pool.check()
    assert sorted(pool.take_tainted()) == sorted(pages)
    assert (pool.counts().tainted, pool.num_free) == (0, 5)
    assert pool.take_tainted() == ()
    pool.check()


def test_a_negative_reservation_is_a_bug() -> None:
    pool = PagePool(3)
    with pytest.raises(InvariantError, match="reserves -1 pages"):
        pool.reserve(pool.open("a"), -1)


@pytest.mark.parametrize("num_pages", [-1, 0, 1])
def test_a_pool_without_a_page_to_give_is_refused(num_pages: int) -> None:
    with pytest.raises(ConfigError, match=rf"at least 2 pages.*Given: {num_pages}"):
        PagePool(num_pages)


def _lose_a_page(pool: PagePool) -> None:
    pool._free.pop()


def _free_a_page_twice(pool: PagePool) -> None:
    pool._free[-1] = pool._free[0]


def _free_an_owned_page(pool: PagePool) -> None:
    pool._free[-1] = next(page for page in range(9) if pool.state_of(page) is PageState.OWNED)


def _change_an_owner(pool: PagePool) -> None:
    pool._generations[next(page for page in range(9) if pool.state_of(page) is PageState.OWNED)] = 2


def _miscount(pool: PagePool) -> None:
    pool._counts[PageState.FREE] -= 1


def _lose_a_tainted_page(pool: PagePool) -> None:
    pool._tainted.pop()


def _give_the_dummy_page_away(pool: PagePool) -> None:
    pool._states[DUMMY_PAGE], pool._states[pool._free[0]] = PageState.FREE, PageState.DUMMY


@pytest.mark.parametrize(
    "damage",
    [
        _lose_a_page,
        _free_a_page_twice,
        _free_an_owned_page,
        _change_an_owner,
        _miscount,
        _lose_a_tainted_page,
        _give_the_dummy_page_away,
    ],
)
def test_check_finds(damage: Callable[[PagePool], None]) -> None:
    pool = PagePool(9)
    written(pool, 2, "a")
    written(pool, 2, "b")
    failed, pages = written(pool, 1, "c")
    pool.release(failed, pages, tainted=True)
    pool.check()
    damage(pool)
    with pytest.raises(InvariantError):
        pool.check()


@settings(derandomize=True, deadline=None, max_examples=60)
@given(st.data())
def test_conservation_under_random_lives(data: st.DataObject) -> None:
    """Any mix of lives keeps every page in one place, against a model that is only sets."""
    num_pages = data.draw(st.integers(2, 12))
    pool = PagePool(num_pages)
    lives: list[tuple[Lease, set[int]]] = []
    for _ in range(30):
        action = data.draw(st.sampled_from(["open", "reserve", "step", "release", "scrub"]))
        if action == "open":
            lives.append((pool.open("x"), set()))
        elif action == "scrub":
            pool.take_tainted()
        elif lives:
            lease, held = data.draw(st.sampled_from(lives))
            if action == "reserve":
                count = data.draw(st.integers(0, num_pages))
                pages = pool.reserve(lease, count)
                assert (pages is None) == (count > num_pages - 1 - len(_taken(pool, lives)))
                held.update(pages or ())
            elif action == "step":
                fresh = [page for page in held if pool.state_of(page) is PageState.RESERVED]
                pool.begin_step(lease, fresh)
                pool.check()
                pool.end_step(lease, fresh)
            else:
                gone = set(data.draw(st.lists(st.sampled_from(sorted(held)), unique=True)) if held else ())
                pool.release(lease, gone, tainted=data.draw(st.booleans()))
                held -= gone
        pool.check()
        assert sum(len(held) for _, held in lives) == pool.counts().leased
        assert len(set().union(*(held for _, held in lives))) == pool.counts().leased


def _taken(pool: PagePool, lives: list[tuple[Lease, set[int]]]) -> set[int]:
    tainted = {page for page in range(pool.num_pages) if pool.state_of(page) is PageState.TAINTED}
    return tainted.union(*(held for _, held in lives))
