"""Small pages out of large ones: a large page belongs to one owner, and is free when all of it is.

    large page   | small | small | small | small |      4 small pages each here
    life a         KV      KV      KV      spare        takes from its own large page first
    life b         state   state   state   state        a state takes whole ones
    cached         KV      -       KV      KV           the second is free and of no use to anyone

An owner's KV gathers in its large page, so that it comes free as a whole (Jenga's request-aware
allocation). What a dropped entry leaves behind in a large page that somebody still needs is lost until
the rest goes: Jenga gives it to other requests when there is no large page left, which this pool does not.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from milepost.errors import ConfigError, InvariantError
from milepost.memory.page_states import PageState
from milepost.memory.pool import Lease, PagePool

__all__ = ["LcmPool"]

# What a small page means to its large page.
_FREE, _EVICTABLE, _NEEDED = range(3)
# As plain numbers: comparing with an enum's member costs a look-up for each page.
_STATE_FREE, _STATE_CACHED = int(PageState.FREE), int(PageState.CACHED)


class LcmPool(PagePool):
    """`num_large` large pages of `pages_per_large` small ones each, numbered from 1; 0 is the dummy page.

    What it says is free or evictable are whole large pages, counted in small ones. The `spare` small
    pages of a life are those that are left in its own large page.

    Raises:
        ConfigError: no large page, or none of any size.
    """

    def __init__(self, num_large: int, pages_per_large: int) -> None:
        if num_large < 1 or pages_per_large < 1:
            raise ConfigError(
                "A pool of large pages needs at least 1 of at least 1 small page. "
                f"Given: {num_large} of {pages_per_large}."
            )
        super().__init__(num_large * pages_per_large + 1)
        self._per_large = pages_per_large
        self._free.clear()  # free pages are listed by their large page, see `check`
        self._meaning = bytearray(self.num_pages)
        self._free_in = [self._pages_of(large) for large in range(num_large)]
        self._num_needed = [0] * num_large
        self._empty = list(range(num_large - 1, -1, -1))
        self._can_go = [False] * num_large
        self._num_evictable_large = 0
        self._open: dict[int, int] = {}  # a lease's generation -> its large page with room
        self._opened_by: dict[int, int] = {}  # and the other way round

    @property
    def num_free(self) -> int:
        """Small pages of large ones that are free as a whole."""
        return len(self._empty) * self._per_large

    @property
    def num_evictable(self) -> int:
        """Small pages of large ones that hold nothing but cached pages that no running request needs."""
        return self._num_evictable_large * self._per_large

    def free_pages(self) -> Sequence[int]:
        """Every free small page, of use or not."""
        return tuple(page for pages in self._free_in for page in pages)

    def spare(self, lease: Lease) -> int:
        """Small pages that are left in the lease's own large page."""
        large = self._open.get(lease.generation)
        return 0 if large is None else len(self._free_in[large])

    def reserve(self, lease: Lease, count: int) -> tuple[int, ...] | None:
        """Move `count` small pages to `lease`, its spare ones first: all of them, or None."""
        return self._take(lease, count, self.spare(lease))

    def reserve_state(self, lease: Lease, count: int) -> tuple[int, ...] | None:
        """Move whole large pages to `lease`, `count` small ones in all."""
        if count % self._per_large:
            raise InvariantError(
                f"{lease!r} reserves {count} pages for a state, which takes whole large ones"
            )
        return self._take(lease, count, 0)

    def ensure_free(self, count: int) -> None:
        """Refuse to grow: large pages are as many as there is memory for.

        Raises:
            InvariantError: fewer than `count` are free.
        """
        if count > self.num_free:
            raise InvariantError(f"a pool of large pages can't be made to have {count} free pages")

    def release(self, lease: Lease, pages: Iterable[int], *, tainted: bool = False) -> None:
        """As `PagePool.release`."""
        released = list(pages)
        super().release(lease, released, tainted=tainted)
        self._note(released)

    def drop(self, pages: Iterable[int]) -> int:
        """As `PagePool.drop`."""
        dropped = list(pages)
        unnamed = super().drop(dropped)
        self._note(dropped)
        return unnamed

    def hold(self, pages: Iterable[int]) -> None:
        """As `PagePool.hold`."""
        held = list(pages)
        super().hold(held)
        self._note(held)

    def unhold(self, pages: Iterable[int]) -> None:
        """As `PagePool.unhold`."""
        unheld = list(pages)
        super().unhold(unheld)
        self._note(unheld)

    def take_tainted(self) -> tuple[int, ...]:
        """As `PagePool.take_tainted`."""
        pages = super().take_tainted()
        self._note(pages)
        return pages

    def close(self, lease: Lease) -> None:
        """As `PagePool.close`; what was spare is nobody's any more."""
        super().close(lease)
        large = self._open.pop(lease.generation, None)
        if large is not None:
            del self._opened_by[large]

    def check(self) -> None:
        """Prove what `PagePool` does, and that large pages are counted right; for tests."""
        self._free.extend(self.free_pages())
        super().check()
        self._free.clear()
        for large, free in enumerate(self._free_in):
            pages = self._pages_of(large)
            if sorted(free) != sorted(page for page in pages if self._means(page) == _FREE):
                raise InvariantError(f"large page {large} does not list its free pages")
            if self._num_needed[large] != sum(self._means(page) == _NEEDED for page in pages):
                raise InvariantError(f"large page {large} miscounts the pages that are needed")
        empty = [large for large, free in enumerate(self._free_in) if len(free) == self._per_large]
        if sorted(self._empty) != empty:
            raise InvariantError(f"large pages {empty} are free, listed are {sorted(self._empty)}")
        evictable = sum(map(self._is_evictable, range(len(self._free_in))))
        if evictable != self._num_evictable_large:
            raise InvariantError(
                f"{evictable} large pages can be evicted, the count says {self._num_evictable_large}"
            )

    def _take(self, lease: Lease, count: int, spare: int) -> tuple[int, ...] | None:
        if count - spare > self.num_free:
            return None
        pages: list[int] = []
        if spare:
            pages += self._some_of(self._open[lease.generation], min(count, spare))
        while len(pages) < count:
            large = self._empty.pop()
            pages += self._some_of(large, count - len(pages))
            if self._free_in[large]:
                self._open[lease.generation] = large
                self._opened_by[large] = lease.generation
        self._free.extend(reversed(pages))
        taken = super().reserve(lease, count)
        self._note(pages)
        return taken

    def _some_of(self, large: int, count: int) -> list[int]:
        free = self._free_in[large]
        taken = free[:count]
        del free[:count]
        return taken

    def _note(self, pages: Iterable[int]) -> None:
        """These pages may mean something else to their large pages now."""
        touched: set[int] = set()
        meaning, states, holds, per_large = self._meaning, self._states, self._holds, self._per_large
        for page in pages:  # written for speed: a state is hundreds of pages
            state, before = states[page], meaning[page]
            if state == _STATE_FREE:
                now = _FREE
            else:
                now = _EVICTABLE if state == _STATE_CACHED and not holds[page] else _NEEDED
            if before == now:
                continue
            large = (page - 1) // per_large
            meaning[page] = now
            self._num_needed[large] += (now == _NEEDED) - (before == _NEEDED)
            if now == _FREE:
                self._free_in[large].append(page)
            touched.add(large)
        for large in touched:
            if len(self._free_in[large]) == self._per_large:
                self._empty.append(large)
                self._disown(large)
            can_go = self._is_evictable(large)
            self._num_evictable_large += can_go - self._can_go[large]
            self._can_go[large] = can_go
        self._free.clear()

    def _disown(self, large: int) -> None:
        generation = self._opened_by.pop(large, None)
        if generation is not None and self._open.get(generation) == large:
            del self._open[generation]

    def _means(self, page: int) -> int:
        state = self._states[page]
        if state == _STATE_FREE:
            return _FREE
        return _EVICTABLE if state == _STATE_CACHED and not self._holds[page] else _NEEDED

    def _is_evictable(self, large: int) -> bool:
        return not self._num_needed[large] and len(self._free_in[large]) < self._per_large

    def _pages_of(self, large: int) -> list[int]:
        first = large * self._per_large + 1
        return list(range(first, first + self._per_large))
