"""An executor around another one that fills every page which holds nothing with NaN.

What an engine computes must not depend on what a page held before it was given out, on what lies
past a sequence's written tokens, or on anybody else's pages. Under this executor such a dependence
turns logits into NaN, and a write to a page that nobody owns is an error.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from milepost.engine.executor import Executor
from milepost.errors import InvariantError
from milepost.memory.layout import DUMMY_PAGE
from milepost.types import Batch, BatchResult, Row

__all__ = ["PoisonablePages", "PoisoningExecutor"]


class PoisonablePages(Protocol):
    """The pages that an executor works on; `milepost.runtime.arena.Arena` is one."""

    num_pages: int

    def poison(self, pages: Sequence[int]) -> None:
        """Fill pages with bytes that are NaN however they are read."""
        ...

    def poisoned(self, pages: Sequence[int]) -> bool:
        """Whether pages still hold nothing but poison."""
        ...


class PoisoningExecutor:
    """Poisons free pages before each step, and pages that change hands before their new owner runs.

    It sees batches only, so a preempted request counts as the owner of its old pages until it runs
    again or another request gets them.

    Args:
        inner: the executor that computes.
        pages: its pages. The dummy page is poisoned once; padding may write it, so it is not checked.
    """

    def __init__(self, inner: Executor, pages: PoisonablePages) -> None:
        self._inner = inner
        self._pages = pages
        self._owner: dict[int, str] = {}
        self._poisoned: set[int] = set()

    def run(self, batch: Batch) -> BatchResult:
        """Check and poison, then run the step.

        Raises:
            InvariantError: the steps before wrote a page that nobody owned.
        """
        untouched = sorted(self._poisoned - {DUMMY_PAGE})
        if not self._pages.poisoned(untouched):
            written = [page for page in untouched if not self._pages.poisoned([page])]
            raise InvariantError(f"Pages {written} were written while nobody owned them.")
        self._forget(batch.released)
        fresh = {page for row in batch.rows for page in self._take(row)}
        free = set(range(self._pages.num_pages)) - self._owner.keys()
        self._pages.poison(sorted((free - self._poisoned) | (fresh - self._poisoned)))
        result = self._inner.run(batch)
        self._poisoned = free - set(batch.scrubs)
        return result

    def close(self) -> None:
        """Close the inner executor."""
        self._inner.close()

    def _forget(self, request_ids: Collection[str]) -> None:
        if request_ids:
            gone = set(request_ids)
            self._owner = {page: owner for page, owner in self._owner.items() if owner not in gone}

    def _take(self, row: Row) -> set[int]:
        """Note a row's pages; returns those whose content the row must not depend on."""
        if row.start == 0:
            self._forget([row.request_id])
        tables = {*row.state_table, *row.block_table}
        fresh = {page for page in tables if self._owner.get(page) != row.request_id}
        self._owner.update(dict.fromkeys(fresh, row.request_id))
        return fresh
