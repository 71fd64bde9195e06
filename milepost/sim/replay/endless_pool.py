"""A page pool without a limit, for runs that ask what unlimited memory would hit."""

from __future__ import annotations

from milepost.memory.pool import Lease, PagePool

__all__ = ["EndlessPool"]

_LIMIT = 1 << 40
_FIRST_PAGES = 1 << 12


class EndlessPool(PagePool):
    """Gives pages as long as it is asked: it claims to have 10^12 of them and makes them when needed."""

    def __init__(self) -> None:
        super().__init__(_FIRST_PAGES)

    @property
    def num_pages(self) -> int:
        """All pages that one could ask for."""
        return _LIMIT

    @property
    def num_usable(self) -> int:
        """The same, less the dummy page."""
        return _LIMIT - 1

    @property
    def num_free(self) -> int:
        """More than anybody needs."""
        return _LIMIT

    def reserve(self, lease: Lease, count: int) -> tuple[int, ...] | None:
        """Move `count` pages to `lease`, made if need be."""
        self.ensure_free(count)
        return super().reserve(lease, count)
