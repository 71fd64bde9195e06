"""What a tier is to those that copy pages: an array of pages, or a place with slots that can fail."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = ["DiskTier", "PageArray", "Stopped", "TransferError"]

PageArray = NDArray[np.uint8]
"""[num_pages, page_bytes] uint8: a tier in memory, each row contiguous."""

Stopped = Callable[[], bool]
"""Asked between pages: whether the copy shall end now, half done."""


class TransferError(Exception):
    """A transfer can't be done. It never leaves this package: it becomes `TransferResult.error`."""


class DiskTier(Protocol):
    """A tier that is not memory; `DiskStore` is one."""

    def clear(self) -> None:
        """Forget everything, for later processes too.

        Raises:
            TransferError, OSError: what is on disk may be found again.
        """
        ...

    def write(
        self, record: bytes, pages: Sequence[tuple[int, int]], source: PageArray, stopped: Stopped
    ) -> None:
        """Write rows of `source` to slots, then make them findable after a restart by `record`.

        Args:
            record: opaque; empty if nobody will look for the pages after a restart.
            pages: (row of `source`, slot) pairs.
            source: rows to read.
            stopped: asked between pages.

        Raises:
            TransferError, OSError: nothing of it may be used.
        """
        ...

    def read(self, pages: Sequence[tuple[int, int]], target: PageArray, stopped: Stopped) -> None:
        """Read slots into rows of `target`, each only if it holds exactly what was written.

        Args:
            pages: (slot, row of `target`) pairs.
            target: rows to write.
            stopped: asked between pages.

        Raises:
            TransferError, OSError: nothing of it may be used.
        """
        ...

    def close(self) -> None:
        """Give the files back. Safe to call twice."""
        ...
