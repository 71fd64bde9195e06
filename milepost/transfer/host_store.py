"""The host tier: pages in the machine's memory, outside the arena."""

from __future__ import annotations

import mmap

import numpy as np

from milepost.byte_counts import format_bytes
from milepost.errors import ConfigError
from milepost.transfer.page_store import PageArray

__all__ = ["HostStore"]


class HostStore:
    """`num_pages` pages of memory, which the system commits only when a page is first written.

    Args:
        num_pages: pages, counted as the tier's pool counts them (its dummy page is never touched).
        page_bytes: bytes of a page, the arena's.

    Raises:
        ConfigError: no page fits, or the system refuses to map that much memory.
    """

    def __init__(self, num_pages: int, page_bytes: int) -> None:
        if num_pages < 1 or page_bytes < 1:
            raise ConfigError(
                f"The host cache must hold at least one page of {format_bytes(page_bytes)}. "
                f"Given: {num_pages} pages. Give it more memory."
            )
        self.num_pages = num_pages
        self.page_bytes = page_bytes
        self._pages: PageArray | None = _map_pages(num_pages, page_bytes)

    @property
    def pages(self) -> PageArray:
        """[num_pages, page_bytes] uint8; an empty array once closed."""
        if self._pages is None:
            return np.empty((0, self.page_bytes), dtype=np.uint8)
        return self._pages

    def close(self) -> None:
        """Give the memory back, as soon as nobody reads it any more. Safe to call twice."""
        self._pages = None


def _map_pages(num_pages: int, page_bytes: int) -> PageArray:
    num_bytes = num_pages * page_bytes
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
    try:
        buffer = mmap.mmap(-1, num_bytes, flags=flags)
    except (OSError, ValueError, OverflowError) as error:
        raise ConfigError(
            f"The system refuses to map a host cache of {num_bytes} bytes ({format_bytes(num_bytes)}): "
            f"{error}. Choose a smaller host cache."
        ) from error
    return np.frombuffer(buffer, dtype=np.uint8).reshape(num_pages, page_bytes)
