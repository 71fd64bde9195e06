"""An executor around another one that fills every page which holds nothing with NaN.

What an engine computes must not depend on what a page held before it was given out, on what lies
past a sequence's written tokens, or on anybody else's pages. Under this executor such a dependence
turns logits into NaN, and a write to a page that nobody owns is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Protocol

from milepost.engine.executor import Executor
from milepost.errors import InvariantError
from milepost.memory.layout import DUMMY_PAGE, Layout
from milepost.types import Batch, BatchResult, Row

__all__ = ["PoisonablePages", "PoisoningExecutor"]


class PoisonablePages(Protocol):
    """The pages that an executor works on; `milepost.runtime.arena.Arena` is one."""

    num_pages: int

    @property
    def layout(self) -> Layout:
        """How sequences lie in the pages."""
        ...

    def poison(self, pages: Sequence[int]) -> None:
        """Fill pages with bytes that are NaN however they are read."""
        ...

    def poisoned(self, pages: Sequence[int]) -> bool:
        """Whether pages still hold nothing but poison."""
        ...


class PoisoningExecutor:
    """Poisons free pages before each step, and pages whose content the step must not depend on.

    Those are the pages that a row has got since its last step: its state's, and its blocks', except
    the blocks of tokens computed before that it shares with a cached prefix. Pages that copies and
    snapshots fill are poisoned too before the step fills them. Who owns what is told by batches alone
    (a preempted request counts as the owner of its old pages until it runs again or another gets them).

    Args:
        inner: the executor that computes.
        pages: its pages. The dummy page is poisoned once; padding may write it, so it is not checked.
        free_pages: tells which pages nobody owns or caches (`PagePool.free_pages`). Batches don't say
            when a cached page becomes free; without this, every page that no request owns is taken for
            free, so there must be no prefix cache.
    """

    def __init__(
        self,
        inner: Executor,
        pages: PoisonablePages,
        *,
        free_pages: Callable[[], Iterable[int]] | None = None,
    ) -> None:
        self._inner = inner
        self._pages = pages
        self._free_pages = free_pages
        self._owner: dict[int, str | None] = {}  # None: a snapshot, which outlives its request
        self._computed: dict[str, int] = {}  # tokens of each request after its last step
        self._poisoned: set[int] = set()

    def run(self, batch: Batch) -> BatchResult:
        """Check and poison, then run the step.

        Raises:
            InvariantError: the steps before wrote a page that nobody owned, or the step uses one.
        """
        self._check_untouched()
        self._forget(batch.released)
        fresh = {page for row in batch.rows for page in self._take(row)}
        fresh.update(target for _, target in batch.copies)
        free = self._free()
        self._check_used(batch, free)
        self._pages.poison(sorted((free | fresh) - self._poisoned))
        result = self._inner.run(batch)
        self._poisoned = free - set(batch.scrubs)
        return result

    def filled_elsewhere(self, pages: Iterable[int]) -> None:
        """Somebody else writes `pages` from now on, such as an executor around this one that loads them."""
        self._poisoned.difference_update(pages)

    def close(self) -> None:
        """Close the inner executor."""
        self._inner.close()

    def _check_untouched(self) -> None:
        untouched = sorted(self._poisoned - {DUMMY_PAGE})
        if not self._pages.poisoned(untouched):
            written = [page for page in untouched if not self._pages.poisoned([page])]
            raise InvariantError(f"Pages {written} were written while nobody owned them.")

    def _free(self) -> set[int]:
        """Pages that hold nothing, the dummy page too."""
        if self._free_pages is None:
            return set(range(self._pages.num_pages)) - self._owner.keys()
        return {DUMMY_PAGE, *self._free_pages()}

    def _check_used(self, batch: Batch, free: Collection[int]) -> None:
        # A free page's content is poison; to read it is as wrong as to write it.
        used = {page for pair in batch.copies for page in pair}
        for row in batch.rows:
            used.update(row.state_table, row.block_table, _snapshot_pages(row))
        wrong = sorted(used.intersection(free))
        if wrong:
            raise InvariantError(f"Step {batch.step} uses pages {wrong}, which nobody owns.")

    def _forget(self, request_ids: Collection[str]) -> None:
        if request_ids:
            gone = set(request_ids)
            self._owner = {page: owner for page, owner in self._owner.items() if owner not in gone}
            for request_id in gone:
                self._computed.pop(request_id, None)

    def _take(self, row: Row) -> set[int]:
        """Note a row's pages; returns those whose content the row must not depend on."""
        if row.start != self._computed.get(row.request_id):
            self._forget([row.request_id])  # a new life
        self._computed[row.request_id] = row.start + len(row.token_ids)
        tables = {*row.state_table, *row.block_table}
        fresh = {page for page in tables if self._owner.get(page) != row.request_id}
        if self._free_pages is not None:
            # Whole blocks of earlier tokens may be shared; others have filled them.
            fresh -= {*row.block_table[: row.start // self._pages.layout.block_size]}
        snapshots = _snapshot_pages(row)
        self._owner.update(dict.fromkeys(tables, row.request_id))
        self._owner.update(dict.fromkeys(snapshots))
        return fresh | snapshots


def _snapshot_pages(row: Row) -> set[int]:
    return {page for order in row.snapshots for page in order.pages}
