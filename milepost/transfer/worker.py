"""The thread that copies in the background while steps run."""

from __future__ import annotations

import threading
from collections import deque
from typing import Protocol

from milepost.errors import InvariantError
from milepost.transfer.page_store import Stopped, TransferError
from milepost.types import Transfer, TransferResult

__all__ = ["Copier", "TransferWorker", "result_of"]


class Copier(Protocol):
    """Does one transfer in the calling thread; `TierCopier` is one."""

    def copy(self, transfer: Transfer, stopped: Stopped) -> None:
        """Copy, or raise: then nothing that was written may be used."""
        ...


def result_of(copier: Copier, transfer: Transfer, stopped: Stopped) -> TransferResult:
    """Do a transfer; whatever goes wrong becomes its result's error."""
    try:
        copier.copy(transfer, stopped)
    except TransferError as error:
        return TransferResult(transfer_id=transfer.transfer_id, error=str(error))
    except Exception as error:  # noqa: BLE001 -- a transfer that ends without a result would hold its pages for ever
        return TransferResult(transfer_id=transfer.transfer_id, error=f"{type(error).__name__}: {error}")
    return TransferResult(transfer_id=transfer.transfer_id)


class TransferWorker:
    """One daemon thread that does transfers in the order of their start.

    Every started transfer ends in exactly one result, that of a failed or dropped one too. `start`,
    `finished` and `wait` are for one thread; `close` may come from any.

    Args:
        copier: does the copies.
    """

    def __init__(self, copier: Copier) -> None:
        self._copier = copier
        self._changed = threading.Condition()
        self._queue: deque[Transfer] = deque()
        self._current: Transfer | None = None
        self._ended: list[TransferResult] = []
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="milepost-transfers", daemon=True)
        self._thread.start()

    def start(self, transfer: Transfer) -> None:
        """Queue a transfer; its pages are the worker's until its result has been taken."""
        with self._changed:
            if self._closed:
                self._ended.append(_dropped(transfer))
            else:
                self._queue.append(transfer)
            self._changed.notify_all()

    def finished(self) -> tuple[TransferResult, ...]:
        """Take the results that are there, without waiting."""
        with self._changed:
            return self._take()

    def wait(self) -> tuple[TransferResult, ...]:
        """Sleep until a transfer has ended, and take all results that are there.

        Raises:
            InvariantError: nothing was started, so nothing can end.
        """
        with self._changed:
            if not (self._ended or self._queue or self._current):
                raise InvariantError("A batch waits for a transfer to end, and none is on its way.")
            while not self._ended:
                self._changed.wait()
            return self._take()

    def close(self, timeout_s: float = 10.0) -> bool:
        """Stop: the running transfer ends at its next page, the queued ones are dropped, all as failures.

        Safe to call twice.

        Args:
            timeout_s: seconds to wait for the running one. A disk that hangs must not hang the engine's
                end too; the thread is then left behind, and its transfer has failed all the same.

        Returns:
            Whether the thread has ended, so that nobody touches the tiers any more.
        """
        with self._changed:
            self._closed = True
            self._ended.extend(_dropped(transfer) for transfer in self._queue)
            self._queue.clear()
            self._changed.notify_all()
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout_s)
        with self._changed:
            if self._current is not None:
                self._ended.append(_dropped(self._current))
                self._current = None
                self._changed.notify_all()
        return not self._thread.is_alive()

    def _take(self) -> tuple[TransferResult, ...]:
        results = tuple(self._ended)
        self._ended.clear()
        return results

    def _work(self) -> None:
        while (transfer := self._next()) is not None:
            result = result_of(self._copier, transfer, self._is_closed)
            with self._changed:
                if self._current is None:  # `close` has given up on it and told so
                    return
                self._current = None
                self._ended.append(result)
                self._changed.notify_all()

    def _next(self) -> Transfer | None:
        """The next transfer, once there is one; None when the worker is closed."""
        with self._changed:
            while not (self._queue or self._closed):
                self._changed.wait()
            if self._closed:
                return None
            self._current = self._queue.popleft()
            return self._current

    def _is_closed(self) -> bool:
        return self._closed


def _dropped(transfer: Transfer) -> TransferResult:
    return TransferResult(
        transfer_id=transfer.transfer_id, error="The engine stopped before the transfer had ended."
    )
