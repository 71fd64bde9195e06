"""The background thread: in order, one result each, whatever happens."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from milepost.errors import InvariantError
from milepost.transfer.page_store import Stopped
from milepost.transfer.worker import Copier, TransferWorker
from milepost.types import Tier, Transfer, TransferResult
from tests.transfer.gated_copier import PATIENCE_S, GatedCopier, done, transfer

workers: list[TransferWorker] = []


def new_worker(copier: Copier) -> TransferWorker:
    workers.append(TransferWorker(copier))
    return workers[-1]


@pytest.fixture(autouse=True)
def end_workers() -> Iterator[None]:
    yield
    while workers:
        workers.pop().close()


def job(transfer_id: int) -> Transfer:
    return transfer(transfer_id, Tier.HOST, Tier.ARENA, (0, 0))


def take(worker: TransferWorker, count: int) -> list[TransferResult]:
    results: list[TransferResult] = []
    while len(results) < count:
        results += worker.wait()
    return results


def test_transfers_end_in_the_order_of_their_start() -> None:
    gate = GatedCopier()
    worker = new_worker(gate)
    for number in range(5):
        worker.start(job(number))
    gate.wait_for_begun(1)
    assert worker.finished() == ()
    gate.let_end(5)
    assert take(worker, 5) == [done(number) for number in range(5)]
    assert gate.begun == list(range(5))
    assert worker.finished() == ()


def test_only_one_transfer_runs_at_a_time() -> None:
    gate = GatedCopier()
    worker = new_worker(gate)
    worker.start(job(1))
    worker.start(job(2))
    gate.wait_for_begun(1)
    time.sleep(0.02)
    assert gate.begun == [1]
    gate.let_end()
    gate.wait_for_begun(2)
    assert worker.wait() == (done(1),)


@pytest.mark.parametrize("error", [OSError(5, "Input/output error"), MemoryError(), ValueError("odd")])
def test_a_failure_is_its_own_transfers_error(error: Exception) -> None:
    def copy(asked: Transfer) -> None:
        if asked.transfer_id == 2:
            raise error

    gate = GatedCopier(copy)
    worker = new_worker(gate)
    for number in (1, 2, 3):
        worker.start(job(number))
    gate.let_end(3)
    first, failed, last = take(worker, 3)
    assert (first, last) == (done(1), done(3))
    assert failed.transfer_id == 2
    assert type(error).__name__ in str(failed.error)


def test_waiting_sleeps_until_something_ends() -> None:
    gate = GatedCopier()
    worker = new_worker(gate)
    worker.start(job(1))
    gate.wait_for_begun(1)
    threading.Timer(0.1, gate.let_end).start()
    wall, cpu = time.monotonic(), time.thread_time()
    assert worker.wait() == (done(1),)
    assert time.monotonic() - wall > 0.05
    assert time.thread_time() - cpu < 0.03  # no busy loop


def test_waiting_for_nothing_is_a_bug() -> None:
    worker = new_worker(GatedCopier())
    with pytest.raises(InvariantError, match="none is on its way"):
        worker.wait()


def test_closing_ends_every_transfer_once() -> None:
    gate = GatedCopier()
    worker = new_worker(gate)
    for number in range(4):
        worker.start(job(number))
    gate.let_end()
    gate.wait_for_begun(2)  # 0 has ended, 1 runs, 2 and 3 are queued
    assert worker.close()
    worker.start(job(4))
    results = worker.finished()
    assert sorted(result.transfer_id for result in results) == [0, 1, 2, 3, 4]
    assert [result.transfer_id for result in results if result.error is None] == [0]
    assert worker.close()
    assert worker.finished() == ()
    assert gate.begun == [0, 1]


def test_closing_wakes_who_waits() -> None:
    gate = GatedCopier()
    worker = new_worker(gate)
    worker.start(job(1))
    gate.wait_for_begun(1)
    results: list[TransferResult] = []
    waiting = threading.Thread(target=lambda: results.extend(worker.wait()))
    waiting.start()
    worker.close()
    waiting.join(PATIENCE_S)
    assert [result.transfer_id for result in results] == [1]
    assert results[0].error is not None


def test_a_copy_that_hangs_does_not_hang_the_end() -> None:
    begun, release = threading.Event(), threading.Event()

    class Hanging:
        def copy(self, transfer: Transfer, stopped: Stopped) -> None:
            begun.set()
            release.wait(PATIENCE_S)

    worker = new_worker(Hanging())
    worker.start(job(1))
    assert begun.wait(PATIENCE_S)
    assert not worker.close(timeout_s=0.05)
    (result,) = worker.finished()
    assert result.transfer_id == 1
    assert result.error is not None
    release.set()  # it comes back late: no second result
    assert worker.close()
    assert worker.finished() == ()


def test_the_thread_ends_with_the_process() -> None:
    assert new_worker(GatedCopier())._thread.daemon
