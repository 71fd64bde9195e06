"""A page's life: the states that it can be in, and the only moves between them.

A page is in exactly one state, and only the moves of `TRANSITIONS` exist:

    free ──▶ reserved ──▶ writing ──▶ owned ──▶ free
               │                        │ ├───▶ cached ──▶ free        named by the prefix index
               │                        │ └───▶ tainted ──▶ free
               ├──▶ receiving ──▶ owned
               │        ├──▶ tainted
               │        └──▶ quarantined ──▶ tainted
               └──▶ free

    dummy        page 0: padding rows read and write it, no owner ever gets it
    free         on the free list; its content means nothing
    reserved     promised to a lease; no step may write it yet
    writing      a step that is running writes it for the first time
    receiving    a transfer from another tier writes it; nobody else may touch it
    owned        written; its owner may go on writing it
    cached       no owner any more, but somebody's content: it has references
    quarantined  its transfer was given up and may still write it
    tainted      its owner failed; it must be scrubbed before anyone reads it
"""

from __future__ import annotations

import enum

import msgspec

__all__ = ["TRANSITIONS", "PageCounts", "PageState"]


class PageState(enum.IntEnum):
    """Where a page stands in its life; see the module's picture."""

    DUMMY = 0
    FREE = 1
    RESERVED = 2
    WRITING = 3
    OWNED = 4
    TAINTED = 5
    CACHED = 6
    RECEIVING = 7
    QUARANTINED = 8


TRANSITIONS: frozenset[tuple[PageState, PageState]] = frozenset(
    {
        (PageState.FREE, PageState.RESERVED),
        (PageState.RESERVED, PageState.WRITING),
        (PageState.RESERVED, PageState.FREE),
        (PageState.WRITING, PageState.OWNED),
        (PageState.OWNED, PageState.FREE),
        (PageState.OWNED, PageState.TAINTED),
        (PageState.OWNED, PageState.CACHED),
        (PageState.CACHED, PageState.FREE),
        (PageState.RESERVED, PageState.RECEIVING),
        (PageState.RECEIVING, PageState.OWNED),
        (PageState.RECEIVING, PageState.TAINTED),
        (PageState.RECEIVING, PageState.QUARANTINED),
        (PageState.QUARANTINED, PageState.TAINTED),
        (PageState.TAINTED, PageState.FREE),
    }
)


class PageCounts(msgspec.Struct, frozen=True, kw_only=True):
    """How many pages are in each state. They add up to `total`, the one dummy page included."""

    free: int
    reserved: int
    writing: int
    owned: int
    tainted: int
    cached: int
    receiving: int
    quarantined: int
    total: int

    @property
    def leased(self) -> int:
        """Pages of open leases: reserved, writing, receiving or owned."""
        return self.reserved + self.writing + self.owned + self.receiving
