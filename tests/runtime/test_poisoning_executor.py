"""The poisoning executor itself: it must find what it is there to find."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from milepost.errors import InvariantError
from milepost.memory.layout import PagedLayout
from milepost.runtime.arena import Arena
from milepost.testing.poisoning_executor import PoisoningExecutor
from milepost.types import Batch, BatchResult, Row, RowResult, SnapshotOrder

BLOCK = 16


class Scribe:
    """Writes 1.0 to the pages of its rows, and to `stray` too; notes which pages it saw as NaN.

    `nan_pages` are those that its rows saw, `nan_targets` those that copies were about to fill.
    """

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self.stray: tuple[int, ...] = ()
        self.nan_pages: set[int] = set()
        self.nan_targets: set[int] = set()
        self.closed = False

    def run(self, batch: Batch) -> BatchResult:
        self._arena.scrub(batch.scrubs)
        self.nan_targets = {page for _, page in batch.copies if self._arena.kv[page].isnan().all()}
        self._arena.copy_pages(batch.copies)
        nan = self._arena.kv.isnan().flatten(1).all(dim=1)
        self.nan_pages = {int(page) for page in nan.nonzero()[:, 0]}
        for row in batch.rows:
            left = [page for order in row.snapshots for page in order.pages]
            for page in (*row.state_table, *row.block_table, *left, *self.stray):
                self._arena.kv[page] = 1.0
        return BatchResult(
            step=batch.step, rows=tuple(RowResult(request_id=r.request_id) for r in batch.rows)
        )

    def close(self) -> None:
        self.closed = True


def row(
    name: str, start: int, state: Sequence[int], blocks: Sequence[int], snapshot: Sequence[int] = ()
) -> Row:
    """A row of one token; it leaves its state on the pages of `snapshot`."""
    order = SnapshotOrder(position=start + 1, pages=tuple(snapshot))
    return Row(
        request_id=name,
        start=start,
        token_ids=(1,),
        state_table=state,
        block_table=blocks,
        samples=False,
        snapshots=(order,) if snapshot else (),
    )


@pytest.fixture
def arena(layout: PagedLayout) -> Arena:
    return Arena(layout, 8, kv_dtype=torch.float32, conv_dtype=torch.float32)


@pytest.fixture
def scribe(arena: Arena) -> Scribe:
    return Scribe(arena)


@pytest.fixture
def executor(scribe: Scribe, arena: Arena) -> PoisoningExecutor:
    return PoisoningExecutor(scribe, arena)


def test_only_what_a_row_wrote_before_survives(executor: PoisoningExecutor, scribe: Scribe) -> None:
    executor.run(Batch(step=0, rows=(row("a", 0, [1], [2]), row("b", 0, [3], [4]))))
    assert scribe.nan_pages == set(range(8))
    executor.run(Batch(step=1, rows=(row("a", 1, [1], [2, 5]),)))
    assert scribe.nan_pages == {0, 5, 6, 7}  # b is not in the batch, yet its pages are its own
    executor.run(Batch(step=2, rows=(row("a", 2, [1], [2, 5]),), released=("b",)))
    assert scribe.nan_pages == {0, 3, 4, 6, 7}


def test_pages_that_change_hands_are_poisoned_for_the_new_owner(
    executor: PoisoningExecutor, scribe: Scribe
) -> None:
    executor.run(Batch(step=0, rows=(row("a", 0, [1], [2]),)))
    executor.run(Batch(step=1, rows=(row("b", 0, [2], [1]),)))  # a was preempted; nobody said so
    assert {1, 2} <= scribe.nan_pages
    executor.run(Batch(step=2, rows=(row("a", 0, [3], [4]), row("b", 1, [2], [1]))))
    assert {1, 2}.isdisjoint(scribe.nan_pages)


def test_a_fresh_start_on_the_same_pages_is_fresh(executor: PoisoningExecutor, scribe: Scribe) -> None:
    executor.run(Batch(step=0, rows=(row("a", 0, [1], [2]),)))
    executor.run(Batch(step=1, rows=(row("a", 0, [1], [2]),)))
    assert {1, 2} <= scribe.nan_pages


def test_scrubs_come_after_the_poison(executor: PoisoningExecutor, scribe: Scribe) -> None:
    executor.run(Batch(step=0, rows=(row("a", 0, [1], [2]),), scrubs=(2, 6)))
    assert scribe.nan_pages == {0, 1, 3, 4, 5, 7}
    executor.run(Batch(step=1, rows=(row("a", 1, [1], [2]),)))
    assert 6 in scribe.nan_pages


def test_a_stray_write_is_found(executor: PoisoningExecutor, scribe: Scribe) -> None:
    scribe.stray = (0,)  # padding may write the dummy page
    executor.run(Batch(step=0, rows=(row("a", 0, [1], [2]),)))
    scribe.stray = (6,)
    executor.run(Batch(step=1, rows=(row("a", 1, [1], [2]),)))
    with pytest.raises(InvariantError, match=r"Pages \[6\] were written while nobody owned them"):
        executor.run(Batch(step=2, rows=(row("a", 2, [1], [2]),)))


def test_snapshots_outlive_their_request(executor: PoisoningExecutor, scribe: Scribe) -> None:
    executor.run(Batch(step=0, rows=(row("a", 0, [1], [2], snapshot=[3]),)))
    assert 3 in scribe.nan_pages
    executor.run(Batch(step=1, rows=(row("b", 0, [4], [5]),), released=("a",)))
    assert {1, 2} <= scribe.nan_pages
    assert 3 not in scribe.nan_pages


class Pool:
    """Says which of the arena's 8 pages are free."""

    def __init__(self, *free: int) -> None:
        self.free = set(free)

    def free_pages(self) -> set[int]:
        return self.free


def test_cached_pages_keep_their_content(scribe: Scribe, arena: Arena) -> None:
    """The pool's word counts: what is cached after its request's end is not poisoned until evicted."""
    pool = Pool(3, 4, 5, 6, 7)
    executor = PoisoningExecutor(scribe, arena, free_pages=pool.free_pages)
    executor.run(Batch(step=0, rows=(row("a", 0, [1], [2]),)))
    assert scribe.nan_pages == set(range(8))
    pool.free = {5, 6, 7}  # a's pages are cached: a snapshot, and a whole block
    resumed = row("b", BLOCK, [3], [2, 4])
    executor.run(Batch(step=1, rows=(resumed,), released=("a",), copies=((1, 3),)))
    assert scribe.nan_targets == {3}  # whatever a copy does not fill is NaN
    assert scribe.nan_pages == {0, 4, 5, 6, 7}
    pool.free = {1, 3, 4, 5, 6, 7}  # b is gone, the snapshot evicted
    executor.run(Batch(step=2, rows=(), released=("b",)))
    assert scribe.nan_pages == {0, 1, 3, 4, 5, 6, 7}


def test_a_partly_filled_block_and_a_state_must_be_copied(scribe: Scribe, arena: Arena) -> None:
    """Pages 3 and 4 change hands between two steps, so the pool never calls them free."""
    pool = Pool(5, 6, 7)
    executor = PoisoningExecutor(scribe, arena, free_pages=pool.free_pages)
    executor.run(Batch(step=0, rows=(row("a", 0, [1], [2]), row("b", 0, [3], [4]))))
    missing = Batch(step=1, rows=(row("c", 1, [3], [4]),), released=("b",))
    executor.run(missing)
    assert {3, 4} <= scribe.nan_pages
    batch = Batch(step=2, rows=(row("d", 1, [3], [4]),), released=("c",), copies=((1, 3), (2, 4)))
    executor.run(batch)
    assert scribe.nan_targets == {3, 4}
    assert {3, 4}.isdisjoint(scribe.nan_pages)


def test_free_pages_must_not_be_used(scribe: Scribe, arena: Arena) -> None:
    executor = PoisoningExecutor(scribe, arena, free_pages=Pool(4, 5, 6, 7).free_pages)
    for batch in (
        Batch(step=3, rows=(row("a", 0, [1], [4]),)),
        Batch(step=3, rows=(row("a", 0, [4], [2]),)),
        Batch(step=3, rows=(row("a", 0, [1], [2], snapshot=[4]),)),
        Batch(step=3, rows=(), copies=((4, 1),)),
        Batch(step=3, rows=(), copies=((1, 4),)),
    ):
        with pytest.raises(InvariantError, match=r"Step 3 uses pages \[4\], which nobody owns"):
            executor.run(batch)


def test_closing_closes(executor: PoisoningExecutor, scribe: Scribe) -> None:
    executor.close()
    assert scribe.closed
