"""Copies that go on only when a test says so."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from milepost.transfer.page_store import PageArray, Stopped, TransferError
from milepost.types import Tier, Transfer, TransferResult

PATIENCE_S = 10.0  # far more than anything here takes; a test that waits for it fails


def transfer(
    transfer_id: int, source: Tier, target: Tier, *pages: tuple[int, int], record: bytes = b""
) -> Transfer:
    return Transfer(transfer_id=transfer_id, source=source, target=target, pages=pages, record=record)


def done(transfer_id: int) -> TransferResult:
    return TransferResult(transfer_id=transfer_id)


class GatedCopier:
    """A copier whose copies begin when they like and end when `let_end` is called, one per call."""

    def __init__(self, copy: Callable[[Transfer], None] = lambda _: None) -> None:
        self.begun: list[int] = []
        self._copy = copy
        self._changed = threading.Condition()
        self._permits = 0

    def copy(self, transfer: Transfer, stopped: Stopped) -> None:
        with self._changed:
            self.begun.append(transfer.transfer_id)
            self._changed.notify_all()
            while not self._permits:
                if stopped():
                    raise TransferError("stopped at a gate")
                self._changed.wait(0.001)
            self._permits -= 1
        self._copy(transfer)

    def let_end(self, count: int = 1) -> None:
        with self._changed:
            self._permits += count
            self._changed.notify_all()

    def wait_for_begun(self, count: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.begun) >= count, PATIENCE_S)


class GatedDisk:
    """A disk tier in memory. Each page waits for the gate, and says that it has come to it."""

    def __init__(self, pages: PageArray) -> None:
        self.pages = pages
        self.closed = 0
        self.gate = threading.Semaphore(0)
        self.reached = threading.Semaphore(0)

    def write(
        self, record: bytes, pages: Sequence[tuple[int, int]], source: PageArray, stopped: Stopped
    ) -> None:
        for row, slot in pages:
            self._pass(stopped)
            self.pages[slot] = source[row]

    def read(self, pages: Sequence[tuple[int, int]], target: PageArray, stopped: Stopped) -> None:
        for slot, row in pages:
            self._pass(stopped)
            target[row] = self.pages[slot]

    def close(self) -> None:
        self.closed += 1

    def wait_until_reached(self) -> None:
        assert self.reached.acquire(timeout=PATIENCE_S)

    def _pass(self, stopped: Stopped) -> None:
        self.reached.release()
        while not self.gate.acquire(timeout=0.002):
            if stopped():
                raise TransferError("stopped at the gate")
