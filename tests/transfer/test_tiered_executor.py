"""The order of a step with transfers, and what comes back when."""

from __future__ import annotations

import errno
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np
import pytest

from milepost.engine.executor import Executor
from milepost.errors import InvariantError
from milepost.transfer.disk_store import DiskStore
from milepost.transfer.host_store import HostStore
from milepost.transfer.tiered_executor import TieredExecutor
from milepost.types import Batch, NewRequest, SamplingParams, SnapshotOrder, Tier, TransferResult
from tests.transfer.arena_steps import ArenaSteps, writing_row
from tests.transfer.gated_copier import GatedDisk, done, transfer
from tests.transfer.small_disk import PAGE_BYTES, failing_disk, open_store, rows_of

ARENA, HOST, DISK = Tier.ARENA, Tier.HOST, Tier.DISK


class Rig:
    """A tiered executor over an arena of 8 pages filled with their own numbers, and a gated disk."""

    def __init__(self) -> None:
        self.arena = np.repeat(np.arange(8, dtype=np.uint8)[:, None], PAGE_BYTES, axis=1)
        self.inner = ArenaSteps(self.arena)
        self.host = HostStore(6, PAGE_BYTES)
        self.disk = GatedDisk(np.full((6, PAGE_BYTES), 200, dtype=np.uint8))
        self.executor = TieredExecutor(self.inner, self.arena, self.host, cast(DiskStore, self.disk))

    def value(self, page: int) -> int:
        assert (self.arena[page] == self.arena[page, 0]).all()
        return int(self.arena[page, 0])

    def until_ended(self, step: int) -> tuple[TransferResult, ...]:
        return self.executor.run(Batch(step=step, rows=(), waits=True)).transfers


@pytest.fixture
def rig() -> Iterator[Rig]:
    rig = Rig()
    yield rig
    rig.executor.close()


def test_it_is_an_executor(rig: Rig) -> None:
    executor: Executor = rig.executor  # checked by mypy
    assert executor.run(Batch(step=3, rows=())).step == 3


def test_a_copy_to_the_host_comes_before_everything_that_the_step_overwrites(rig: Rig) -> None:
    batch = Batch(
        step=0,
        rows=(writing_row(3, 77),),
        scrubs=(1,),
        copies=((4, 2),),
        transfers=(transfer(9, ARENA, HOST, (1, 0), (2, 1), (3, 2)),),
    )
    result = rig.executor.run(batch)
    assert result.transfers == (done(9),)
    assert rig.host.pages[:3, 0].tolist() == [1, 2, 3]
    assert [rig.value(page) for page in (1, 2, 3)] == [0, 4, 77]


def test_a_load_runs_while_the_step_runs(rig: Rig) -> None:
    """The inner step ends only after the load has begun, so a load that waited for the step would hang."""

    def moment(name: str) -> None:
        if name == "before scrubs":
            rig.disk.wait_until_reached()

    rig.inner.moment = moment
    batch = Batch(step=0, rows=(writing_row(1, 50),), transfers=(transfer(5, DISK, ARENA, (0, 4)),))
    assert rig.executor.run(batch).transfers == ()
    assert rig.value(4) == 4
    rig.disk.gate.release()
    assert rig.until_ended(1) == (done(5),)
    assert rig.value(4) == 200


@pytest.mark.parametrize(
    ("touched", "page_4", "page_5"),
    [({"scrubs": (4,)}, 0, 5), ({"copies": ((4, 5),)}, 4, 4), ({"copies": ((5, 4),)}, 5, 5)],
)
def test_a_load_into_a_page_that_the_step_scrubs_or_copies_begins_after_the_step(
    rig: Rig, touched: dict[str, Any], page_4: int, page_5: int
) -> None:
    """R51, R52: a scrub that ran after the load would wipe it out."""

    def moment(_: str) -> None:
        assert not rig.disk.reached.acquire(timeout=0.02)

    rig.inner.moment = moment
    load = transfer(5, DISK, ARENA, (0, 4))
    assert rig.executor.run(Batch(step=0, rows=(), transfers=(load,), **touched)).transfers == ()
    assert (rig.value(4), rig.value(5)) == (page_4, page_5)
    rig.disk.gate.release()
    assert rig.until_ended(1) == (done(5),)
    assert rig.value(4) == 200


def test_what_the_inner_executor_sees_has_no_transfers(rig: Rig) -> None:
    new = NewRequest(request_id="n", prompt_token_ids=(1,), sampling=SamplingParams())
    batch = Batch(
        step=4,
        rows=(writing_row(1, 5),),
        new_requests=(new,),
        released=("gone",),
        transfers=(transfer(1, ARENA, HOST, (2, 2)),),
    )
    rig.executor.run(batch)
    (seen,) = rig.inner.batches
    assert seen.transfers == ()
    assert (seen.step, seen.new_requests, seen.released) == (4, (new,), ("gone",))
    assert seen.rows[0].block_table is batch.rows[0].block_table  # tables are live


def test_a_batch_without_transfers_is_passed_on_as_it_is(rig: Rig) -> None:
    batch = Batch(step=1, rows=(writing_row(1, 5),))
    rig.executor.run(batch)
    assert rig.inner.batches[0] is batch


def test_a_wait_that_has_nothing_to_run_does_not_run_the_inner_executor(rig: Rig) -> None:
    rig.disk.gate.release()
    result = rig.executor.run(
        Batch(step=7, rows=(), waits=True, transfers=(transfer(1, DISK, ARENA, (0, 4)),))
    )
    assert (result.step, result.rows, result.transfers) == (7, (), (done(1),))
    assert rig.inner.batches == []


NEW = NewRequest(request_id="n", prompt_token_ids=(1,), sampling=SamplingParams())


@pytest.mark.parametrize(
    "news", [{"released": ("a",)}, {"new_requests": (NEW,)}, {"scrubs": (1,)}, {"copies": ((1, 2),)}]
)
def test_a_wait_still_passes_on_the_rest_of_its_batch(rig: Rig, news: dict[str, Any]) -> None:
    rig.disk.gate.release()
    batch = Batch(step=0, rows=(), waits=True, transfers=(transfer(1, DISK, ARENA, (0, 4)),), **news)
    assert rig.executor.run(batch).transfers == (done(1),)
    (seen,) = rig.inner.batches
    assert not seen.waits
    assert all(getattr(seen, name) == value for name, value in news.items())


def test_a_wait_sleeps_until_a_transfer_of_an_earlier_step_has_ended(rig: Rig) -> None:
    rig.executor.run(Batch(step=0, rows=(), transfers=(transfer(1, DISK, ARENA, (0, 4)),)))
    threading.Timer(0.1, rig.disk.gate.release).start()
    wall, cpu = time.monotonic(), time.thread_time()
    assert rig.until_ended(1) == (done(1),)
    assert time.monotonic() - wall > 0.05
    assert time.thread_time() - cpu < 0.03


def test_a_wait_returns_with_the_first_that_ends(rig: Rig) -> None:
    loads = (transfer(1, DISK, ARENA, (0, 4)), transfer(2, DISK, ARENA, (1, 5)))
    rig.disk.gate.release()
    assert rig.executor.run(Batch(step=0, rows=(), waits=True, transfers=loads)).transfers == (done(1),)
    rig.disk.gate.release()
    assert rig.until_ended(1) == (done(2),)


def test_a_copy_to_the_host_ends_a_wait_at_once(rig: Rig) -> None:
    both = (transfer(1, DISK, ARENA, (0, 4)), transfer(2, ARENA, HOST, (1, 1)))
    assert rig.executor.run(Batch(step=0, rows=(), waits=True, transfers=both)).transfers == (done(2),)


def test_waiting_for_nothing_is_a_bug(rig: Rig) -> None:
    with pytest.raises(InvariantError, match="none is on its way"):
        rig.until_ended(0)


@pytest.mark.parametrize("what", ["scrub", "copy", "snapshot"])
def test_nobody_may_write_a_page_that_a_transfer_still_writes(rig: Rig, what: str) -> None:
    """R51, R85: between a transfer and its result its target is nobody's, wanted or not."""
    rig.executor.run(Batch(step=0, rows=(), transfers=(transfer(1, DISK, ARENA, (0, 4)),)))
    row = writing_row(1, 5)
    if what == "scrub":
        batch = Batch(step=1, rows=(row,), scrubs=(4,))
    elif what == "copy":
        batch = Batch(step=1, rows=(row,), copies=((2, 4),))
    else:
        order = SnapshotOrder(position=1, pages=(4,))
        batch = Batch(step=1, rows=(msgspec.structs.replace(row, snapshots=(order,)),))
    with pytest.raises(
        InvariantError, match="Step 1 writes page 4 of the arena tier, which a transfer is still writ"
    ):
        rig.executor.run(batch)
    rig.disk.gate.release()
    assert rig.until_ended(2) == (done(1),)
    rig.executor.run(batch)  # after the result it is fine


@pytest.mark.parametrize(
    ("first", "second", "what"),
    [
        ((DISK, ARENA, (0, 4)), (HOST, ARENA, (0, 4)), "writes page 4 of the arena tier, .* writing"),
        ((DISK, ARENA, (0, 4)), (ARENA, HOST, (4, 0)), "reads page 4 of the arena tier, .* writing"),
        ((HOST, DISK, (2, 0)), (ARENA, HOST, (1, 2)), "writes page 2 of the host tier, .* reading"),
        ((HOST, DISK, (2, 0)), (DISK, ARENA, (0, 1)), "reads page 0 of the disk tier, .* writing"),
        ((DISK, ARENA, (0, 4)), (HOST, DISK, (2, 0)), "writes page 0 of the disk tier, .* reading"),
    ],
)
def test_transfers_leave_one_anothers_pages_alone(
    rig: Rig,
    first: tuple[Tier, Tier, tuple[int, int]],
    second: tuple[Tier, Tier, tuple[int, int]],
    what: str,
) -> None:
    """R85: no page is given to somebody else while a copy reads it; nor one that a copy writes."""
    rig.executor.run(Batch(step=0, rows=(), transfers=(transfer(1, *first),)))
    rig.disk.wait_until_reached()
    with pytest.raises(InvariantError, match=f"Transfer 2 {what}"):
        rig.executor.run(Batch(step=1, rows=(), transfers=(transfer(2, *second),)))
    rig.disk.gate.release(2)
    assert rig.until_ended(2) == (done(1),)
    rig.executor.run(Batch(step=3, rows=(), transfers=(transfer(2, *second),)))


def test_a_page_may_be_read_by_several_transfers_and_by_copies(rig: Rig) -> None:
    ups = (transfer(1, DISK, ARENA, (0, 4)), transfer(2, DISK, ARENA, (0, 5)))
    down = transfer(3, ARENA, DISK, (1, 3))
    rig.executor.run(Batch(step=0, rows=(), transfers=(*ups, down)))
    rig.executor.run(Batch(step=1, rows=(), copies=((1, 2),)))
    rig.disk.gate.release(3)
    results: list[TransferResult] = []
    while len(results) < 3:
        results += rig.until_ended(2)
    assert results == [done(1), done(2), done(3)]


def test_a_transfer_is_started_once(rig: Rig) -> None:
    rig.executor.run(Batch(step=0, rows=(), transfers=(transfer(1, DISK, ARENA, (0, 4)),)))
    with pytest.raises(InvariantError, match="Transfer 1 is started twice"):
        rig.executor.run(Batch(step=1, rows=(), transfers=(transfer(1, DISK, ARENA, (1, 5)),)))


def test_a_failed_transfer_is_a_result_and_the_engine_goes_on(rig: Rig) -> None:
    batch = Batch(
        step=0,
        rows=(writing_row(1, 5),),
        transfers=(
            transfer(1, ARENA, HOST, (1, 600)),
            transfer(2, HOST, ARENA, (600, 4)),
            transfer(3, DISK, ARENA, (600, 5)),
            transfer(4, DISK, HOST, (0, 5)),
        ),
    )
    rig.disk.gate.release(2)
    result = rig.executor.run(batch)
    results = list(result.transfers)
    while len(results) < 4:
        results += rig.until_ended(1)
    errors = {one.transfer_id: one.error for one in results}
    assert errors.keys() == {1, 2, 3, 4}
    assert "Pages [600] are not in the host tier" in str(errors[1])
    assert "Pages [600] are not in the host tier" in str(errors[2])
    assert "IndexError" in str(errors[3])
    assert errors[4] is None
    assert [row.request_id for row in result.rows] == ["r1"]
    assert rig.value(1) == 5


def test_without_tiers_every_transfer_fails_and_the_rest_runs() -> None:
    arena = rows_of([1, 2])
    inner = ArenaSteps(arena)
    executor = TieredExecutor(inner, arena)
    batch = Batch(step=0, rows=(writing_row(1, 5),), transfers=(transfer(1, ARENA, HOST, (0, 0)),))
    (result,) = executor.run(batch).transfers
    assert result.error == "There is no host tier."
    assert len(inner.batches) == 1
    executor.close()


def test_closing_closes_everything_and_twice_is_fine(rig: Rig) -> None:
    rig.executor.run(Batch(step=0, rows=(), transfers=(transfer(1, DISK, ARENA, (0, 4)),)))
    rig.disk.wait_until_reached()
    rig.executor.close()
    rig.executor.close()
    assert (rig.inner.closed, rig.disk.closed, len(rig.host.pages)) == (2, 2, 0)
    assert rig.value(4) == 4
    (result,) = rig.executor.run(Batch(step=1, rows=())).transfers
    assert result.transfer_id == 1
    assert result.error is not None


def test_closing_gives_the_hosts_memory_back(rig: Rig) -> None:
    pages = weakref.ref(rig.host.pages)
    rig.executor.run(Batch(step=0, rows=(), transfers=(transfer(1, ARENA, HOST, (0, 4)),)))
    rig.executor.close()
    assert pages() is None


def test_an_exception_of_the_inner_executor_is_the_steps(rig: Rig) -> None:
    def moment(_: str) -> None:
        raise RuntimeError("kernel")

    rig.inner.moment = moment
    with pytest.raises(RuntimeError, match="kernel"):
        rig.executor.run(Batch(step=0, rows=(writing_row(1, 1),)))


def test_a_snapshot_goes_down_to_disk_and_comes_back_in_another_process(tmp_path: Path) -> None:
    arena = rows_of([0, 1, 2, 3])
    first = TieredExecutor(ArenaSteps(arena), arena, HostStore(4, PAGE_BYTES), open_store(tmp_path))
    first.run(Batch(step=0, rows=(), transfers=(transfer(1, ARENA, HOST, (1, 3), (2, 2)),)))
    down = transfer(2, HOST, DISK, (3, 5), (2, 1), record=b"key")
    assert first.run(Batch(step=1, rows=(), waits=True, transfers=(down,))).transfers == (done(2),)
    first.close()
    store = open_store(tmp_path)
    (entry,) = store.recover()
    assert (entry.record, entry.pages) == (b"key", (5, 1))
    fresh = rows_of([0, 0, 0])
    second = TieredExecutor(ArenaSteps(fresh), fresh, None, store)
    up = transfer(1, DISK, ARENA, *zip(entry.pages, (2, 1), strict=True))
    assert second.run(Batch(step=0, rows=(), waits=True, transfers=(up,))).transfers == (done(1),)
    assert np.array_equal(fresh, rows_of([0, 2, 1]))
    second.close()


def test_a_damaged_page_is_an_error_and_the_engine_goes_on(tmp_path: Path) -> None:
    arena = rows_of([0, 1, 2])
    executor = TieredExecutor(ArenaSteps(arena), arena, None, open_store(tmp_path))
    executor.run(Batch(step=0, rows=(), waits=True, transfers=(transfer(1, ARENA, DISK, (1, 1)),)))
    with (tmp_path / "milepost.pages").open("r+b") as file:
        file.seek(PAGE_BYTES + 3)
        file.write(b"\xff")
    up = Batch(step=1, rows=(), waits=True, transfers=(transfer(2, DISK, ARENA, (1, 2)),))
    (result,) = executor.run(up).transfers
    assert "does not hold what was written to it" in str(result.error)
    assert len(executor.run(Batch(step=2, rows=(writing_row(1, 9),))).rows) == 1
    executor.close()


def test_a_full_disk_is_told_once_and_then_now_and_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    arena = rows_of([0, 1, 2])
    executor = TieredExecutor(ArenaSteps(arena), arena, None, open_store(tmp_path))
    now, full = [0.0], OSError(errno.ENOSPC, "No space left on device")
    monkeypatch.setattr(executor._failures, "_clock", lambda: now[0])

    def write(step: int) -> str | None:
        down = transfer(step, ARENA, DISK, (1, 1))
        (result,) = executor.run(Batch(step=step, rows=(), waits=True, transfers=(down,))).transfers
        return result.error

    with failing_disk(monkeypatch, 1, full, times=1000):
        assert all("No space left" in str(write(step)) for step in range(5))
        now[0] = 700.0
        assert "No space left" in str(write(5))
    assert write(6) is None
    first, second = [record.getMessage() for record in caplog.records]
    assert first.startswith(
        "The prefix cache could not copy from arena to disk: OSError: [Errno 28] No space"
    )
    assert "4 times since" in second
    executor.close()


def test_steps_stay_quick_while_pages_are_copied() -> None:
    """Copies and the step take turns page by page; none of them waits for a whole transfer."""
    page_bytes, num_pages, num_loads = 1 << 20, 16, 4
    arena = np.zeros((2 + num_loads * num_pages, page_bytes), dtype=np.uint8)
    host = HostStore(num_pages, page_bytes)
    host.pages[:] = 7
    executor = TieredExecutor(ArenaSteps(arena), arena, host)
    loads = tuple(
        transfer(number, HOST, ARENA, *((page, 2 + number * num_pages + page) for page in range(num_pages)))
        for number in range(num_loads)
    )
    ended = len(executor.run(Batch(step=0, rows=(), transfers=loads)).transfers)
    steps = 0
    while ended < len(loads):
        steps += 1
        ended += len(executor.run(Batch(step=steps, rows=(writing_row(1, 1),))).transfers)
    assert steps > 4 * len(loads)  # there would be one a transfer at most
    assert (arena[2:] == 7).all()
    executor.close()
