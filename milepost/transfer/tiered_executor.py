"""An executor around another one that also moves pages between the arena and the tiers behind it."""

from __future__ import annotations

from typing import Protocol

import msgspec

from milepost.transfer.disk_store import DiskStore
from milepost.transfer.failure_log import FailureLog
from milepost.transfer.host_store import HostStore
from milepost.transfer.page_store import PageArray
from milepost.transfer.pages_in_flight import PagesInFlight
from milepost.transfer.tier_copier import TierCopier
from milepost.transfer.worker import TransferWorker, result_of
from milepost.types import Batch, BatchResult, Tier, Transfer, TransferResult

__all__ = ["InnerExecutor", "TieredExecutor"]


class InnerExecutor(Protocol):
    """What runs the rows; any executor of the engine is one."""

    def run(self, batch: Batch) -> BatchResult:
        """Run one step that has no transfers."""
        ...

    def close(self) -> None:
        """Give everything back. Safe to call twice."""
        ...


class TieredExecutor:
    """Does a batch's transfers, and has `inner` do the rest, in the order that `Batch` promises.

        copy from the arena to the host    here, at once: afterwards the step may overwrite those pages
        start transfers in the background  here, but for those of pages that the step scrubs or copies
        scrub, copy pages, run the rows    `inner`
        start the other transfers          here: a scrub must never follow a load into the same page

    Args:
        inner: runs the rows, on the arena's pages.
        arena: [num_pages, page_bytes] uint8, a view of the memory that `inner` works on.
        host: the host tier, or None.
        disk: the disk tier, or None. Both are closed with the executor.

    Raises:
        InvariantError: the tiers' pages differ in size.
    """

    def __init__(
        self,
        inner: InnerExecutor,
        arena: PageArray,
        host: HostStore | None = None,
        disk: DiskStore | None = None,
    ) -> None:
        self._inner = inner
        self._host = host
        self._disk = disk
        self._copier = TierCopier(arena, None if host is None else host.pages, disk)
        self._worker = TransferWorker(self._copier)
        self._in_flight = PagesInFlight()
        self._failures = FailureLog()

    def run(self, batch: Batch) -> BatchResult:
        """Run one step; a batch that waits returns when a transfer has ended.

        A transfer that fails is an error in its result, of which now and then one is logged, and never an
        exception.

        Raises:
            InvariantError: the batch waits and no transfer is on its way, it touches pages of a transfer
                whose result is not in (see `PagesInFlight`), or `inner` says so.
        """
        self._in_flight.check_step(batch)
        ended = self._copy_to_host(batch)
        late = self._start_early(batch)
        result = self._run_inner(batch)
        for transfer in late:
            self._start(transfer)
        ended += self._collect(waits=batch.waits and not ended and not result.transfers)
        return msgspec.structs.replace(result, transfers=(*result.transfers, *ended)) if ended else result

    def close(self) -> None:
        """End the transfers and close the tiers and `inner`. Safe to call twice."""
        ended = self._worker.close()
        self._copier.close()
        # A thread that hangs in a read still uses the files; the process's end takes them from it.
        if ended and self._disk is not None:
            self._disk.close()
        if self._host is not None:
            self._host.close()
        self._inner.close()

    def _copy_to_host(self, batch: Batch) -> tuple[TransferResult, ...]:
        results = []
        for transfer in batch.transfers:
            if transfer.is_immediate:
                self._in_flight.check_transfer(transfer)
                result = result_of(self._copier, transfer, stopped=lambda: False)
                self._note(transfer, result)
                results.append(result)
        return tuple(results)

    def _start_early(self, batch: Batch) -> list[Transfer]:
        """Start what the step's own scrubs and copies have nothing to do with; returns the others."""
        tails = (page for page, _ in batch.tail_scrubs)
        busy = {*batch.scrubs, *tails, *(page for pair in batch.copies for page in pair)}
        late: list[Transfer] = []
        for transfer in batch.transfers:
            if transfer.is_immediate:
                continue
            if busy.isdisjoint(_arena_pages(transfer)):
                self._start(transfer)
            else:
                late.append(transfer)
        return late

    def _start(self, transfer: Transfer) -> None:
        self._in_flight.add(transfer)
        self._worker.start(transfer)

    def _collect(self, *, waits: bool) -> tuple[TransferResult, ...]:
        ended = self._worker.wait() if waits else self._worker.finished()
        for result in ended:
            self._note(self._in_flight.remove(result.transfer_id), result)
        return ended

    def _note(self, transfer: Transfer | None, result: TransferResult) -> None:
        if transfer is not None and result.error is not None:
            self._failures.note(transfer, result.error)

    def _run_inner(self, batch: Batch) -> BatchResult:
        work = (batch.rows, batch.new_requests, batch.released, batch.scrubs, batch.tail_scrubs, batch.copies)
        if not any(work):
            return BatchResult(step=batch.step, rows=())
        if batch.transfers or batch.waits:
            batch = msgspec.structs.replace(batch, transfers=(), waits=False)
        return self._inner.run(batch)


def _arena_pages(transfer: Transfer) -> list[int]:
    """The pages of the arena that a transfer reads or writes."""
    if transfer.source is Tier.ARENA:
        return [source for source, _ in transfer.pages]
    return [target for _, target in transfer.pages] if transfer.target is Tier.ARENA else []
