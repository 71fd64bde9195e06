"""One transfer between any two tiers, page by page."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from milepost.errors import InvariantError
from milepost.transfer.page_store import DiskTier, PageArray, Stopped, TransferError
from milepost.types import Tier, Transfer

__all__ = ["TierCopier"]


class TierCopier:
    """Copies between the pages of the arena, of the host and of the disk.

    Args:
        arena: [num_pages, page_bytes] uint8, a view of the arena's own memory.
        host: [num_pages, page_bytes] uint8, or None without a host tier.
        disk: the disk tier, or None.

    Raises:
        InvariantError: the arrays' pages differ in size.
    """

    def __init__(self, arena: PageArray, host: PageArray | None = None, disk: DiskTier | None = None) -> None:
        if host is not None and host.shape[1] != arena.shape[1]:
            raise InvariantError(f"Pages of {arena.shape[1]} and {host.shape[1]} bytes can't be exchanged.")
        self._arrays = {Tier.ARENA: arena} if host is None else {Tier.ARENA: arena, Tier.HOST: host}
        self._disk = disk

    def copy(self, transfer: Transfer, stopped: Stopped) -> None:
        """Do a transfer in the calling thread.

        Copies go page by page: numpy and the system let other threads run during each, and between two
        of them `stopped` is asked.

        Raises:
            TransferError, OSError: nothing that it wrote may be used.
        """
        source, target = transfer.source, transfer.target
        if source is target is Tier.DISK and not transfer.pages:
            self._require_disk().clear()
        elif source is target:
            raise TransferError(f"Source and target are both the {source.value} tier.")
        elif target is Tier.DISK:
            rows = self._array(source, (page for page, _ in transfer.pages))
            self._require_disk().write(transfer.record, transfer.pages, rows, stopped)
        elif source is Tier.DISK:
            rows = self._array(target, (page for _, page in transfer.pages))
            self._require_disk().read(transfer.pages, rows, stopped)
        else:
            _copy_rows(
                self._array(source, (page for page, _ in transfer.pages)),
                self._array(target, (page for _, page in transfer.pages)),
                transfer.pages,
                stopped,
            )

    def close(self) -> None:
        """Let go of all tiers' memory; what is copied afterwards fails. Safe to call twice."""
        self._arrays.clear()
        self._disk = None

    def _array(self, tier: Tier, pages: Iterable[int]) -> PageArray:
        """The tier's rows; page numbers are checked, as numpy would count a negative one from the end."""
        array = self._arrays.get(tier)
        if array is None:
            raise TransferError(f"There is no {tier.value} tier.")
        outside = [page for page in pages if not 0 <= page < len(array)]
        if outside:
            raise TransferError(f"Pages {outside} are not in the {tier.value} tier of {len(array)} pages.")
        return array

    def _require_disk(self) -> DiskTier:
        if self._disk is None:
            raise TransferError("There is no disk tier.")
        return self._disk


def _copy_rows(
    source: PageArray, target: PageArray, pages: tuple[tuple[int, int], ...], stopped: Stopped
) -> None:
    for source_page, target_page in pages:
        if stopped():
            raise TransferError("The transfer was stopped.")
        np.copyto(target[target_page], source[source_page])
