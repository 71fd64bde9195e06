"""Page tables of a step's rows side by side, kept from step to step: only what is new is copied.

    pages     [rows, capacity]     row r: filled[r] entries of its table | the dummy page ...

A table grows and never changes otherwise (see `milepost.types.Row`), so the same object means the same
pages as far as they were copied before. Rows may come, go and change places.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import is_

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from milepost.errors import InvariantError
from milepost.memory.layout import DUMMY_PAGE
from milepost.types import Row

__all__ = ["TableBuffer"]

_FIRST_ROWS = 8

Table = Sequence[int]


class TableBuffer:
    """One kind of table of all rows, at one address and one stride while its capacity lasts.

    Args:
        num_pages: of the arena; every entry lies in it and is not the dummy page.
        part: what a page of such a table is, for messages.
        check_length: raises unless a row's table has as many entries as it needs.
        capacity: entries of a row to begin with.

    Attributes:
        generation: how often the address or the stride has changed.
    """

    def __init__(
        self, num_pages: int, part: str, check_length: Callable[[Row, int], None], *, capacity: int = 8
    ) -> None:
        self.generation = 0
        self._num_pages = num_pages
        self._part = part
        self._check_length = check_length
        self._tables: Sequence[Table] = ()  # whose entries the first rows hold
        self._needed: list[int] = []  # entries of each
        self._pages: NDArray[np.int64] = np.empty((0, 0), np.int64)
        self._filled: NDArray[np.int64] = np.zeros(0, np.int64)
        self._last_view = torch.empty(0, 0, dtype=torch.int64)
        self._allocate(_FIRST_ROWS, capacity)

    def fill(self, rows: Sequence[Row], tables: Sequence[Table], needed: list[int]) -> Tensor:
        """Hold the first entries of each row's table.

        Args:
            rows: the step's rows, at least one.
            tables: of each row, in the same order.
            needed: [rows], entries of each.

        Returns:
            [rows, capacity] int64 without gaps, padded with the dummy page; the same memory, whatever is
            filled later.

        Raises:
            InvariantError: a table without an entry that is needed, or a page that can't be there.
        """
        count = len(tables)
        same = len(self._tables) == count and all(map(is_, tables, self._tables))
        if (
            same and needed == self._needed
        ):  # no call of NumPy: that would be the costliest part of most steps
            return self._last_view
        # Whatever is wrong below, nothing of it is taken for right in the next step.
        known, self._tables = self._tables, ()
        self._reserve(count, max(needed))
        if not same:
            self._rearrange(known, tables)
        for row in np.flatnonzero(self._filled[:count] != needed).tolist():
            self._copy(row, rows[row], tables[row], needed[row])
        self._tables, self._needed = tables, needed
        self._last_view = self._tensor[:count]
        return self._last_view

    def held(self, first_entries: Sequence[int], ends: Sequence[int]) -> list[int]:
        """Entries ``first .. end - 1`` of the rows filled last, [rows] each, at least one entry a row."""
        first, end = np.array(first_entries), np.array(ends)
        lengths = end - first
        if (lengths == lengths[0]).all():
            places = first[:, None] + np.arange(lengths[0])
            held: list[int] = self._pages[np.arange(len(first))[:, None], places].ravel().tolist()
            return held
        parts = zip(self._pages, first.tolist(), end.tolist(), strict=False)
        return [page for pages, begin, stop in parts for page in pages[begin:stop].tolist()]

    def _copy(self, place: int, row: Row, table: Table, count: int) -> None:
        self._check_length(row, count)
        pages, filled = self._pages[place], int(self._filled[place])
        pages[count:filled] = DUMMY_PAGE
        self._filled[place] = count
        if filled >= count:
            return
        # As an array first: slicing a table makes a list, which costs far more at long contexts.
        new = np.asarray(table)[filled:count]
        pages[filled:count] = new
        # A page outside the arena would read or write another page's bytes, or fault, much later.
        if new.min() < 0 or new.max() >= self._num_pages:
            raise InvariantError(
                f"Tables of {[row.request_id]} name pages outside the arena's {self._num_pages}."
            )
        if not new.all():
            raise InvariantError(f"Request {row.request_id!r} holds the dummy page as a {self._part}.")

    def _rearrange(self, known: Sequence[Table], tables: Sequence[Table]) -> None:
        """Bring what is known of tables to their new places; places of new tables are empty."""
        places = {id(table): place for place, table in enumerate(known)}
        sources = np.array([places.get(id(table), -1) for table in tables])
        moved = np.flatnonzero(sources != np.arange(len(tables)))
        sources = sources[moved]
        self._pages[moved] = self._pages[sources]
        self._filled[moved] = self._filled[sources]
        new = moved[sources < 0]
        self._pages[new] = DUMMY_PAGE
        self._filled[new] = 0

    def _reserve(self, count: int, width: int) -> None:
        rows, capacity = self._pages.shape
        if count > rows or width > capacity:
            self._allocate(
                _power_of_two(count) if count > rows else rows,
                _power_of_two(width) if width > capacity else capacity,
            )

    def _allocate(self, rows: int, capacity: int) -> None:
        """Larger memory with the same content."""
        old, filled = self._pages, self._filled
        self._pages = np.full((rows, capacity), DUMMY_PAGE, np.int64)
        self._pages[: old.shape[0], : old.shape[1]] = old
        self._filled = np.zeros(rows, np.int64)
        self._filled[: len(filled)] = filled
        self._tensor = torch.from_numpy(self._pages)
        self.generation += 1


def _power_of_two(number: int) -> int:
    """The least that is not below `number`, at least 1."""
    return 1 << (number - 1).bit_length()
