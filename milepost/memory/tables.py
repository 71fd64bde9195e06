"""Block and state tables: which pages hold a sequence's tokens and its state."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from milepost.errors import InvariantError
from milepost.memory.capacity import sequence_pages
from milepost.memory.layout import Layout
from milepost.memory.pool import PagePool

__all__ = ["PageTable", "SequencePages"]

_FIRST_CAPACITY = 8


class PageTable(Sequence[int]):
    """Page numbers by logical index, append-only.

    A step reads the table by reference while it runs. `numpy.asarray(table)` is a read-only view of
    the entries so far, without a copy; entries appended later do not disturb it.
    """

    __slots__ = ("_buffer", "_length")

    def __init__(self, pages: Sequence[int] = ()) -> None:
        self._buffer: npt.NDArray[np.int64] = np.empty(_FIRST_CAPACITY, np.int64)
        self._length = 0
        self.extend(pages)

    def extend(self, pages: Sequence[int]) -> None:
        """Append `pages` in order; amortised constant time each."""
        end = self._length + len(pages)
        if end > len(self._buffer):
            grown = np.empty(max(end, 2 * len(self._buffer)), np.int64)
            grown[: self._length] = self._buffer[: self._length]
            # The old buffer stays as it is for whoever still reads it.
            self._buffer = grown
        self._buffer[self._length : end] = pages
        self._length = end

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> list[int]: ...
    def __getitem__(self, index: int | slice) -> int | list[int]:
        entries = self._buffer[: self._length]
        if isinstance(index, slice):
            sliced: list[int] = entries[index].tolist()
            return sliced
        return int(entries[index])

    def __iter__(self) -> Iterator[int]:
        entries: list[int] = self._buffer[: self._length].tolist()
        return iter(entries)

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        view = self._buffer[: self._length]
        view.flags.writeable = False
        return np.array(view, dtype=dtype) if copy else np.asarray(view, dtype=dtype)

    def __repr__(self) -> str:
        return f"PageTable({list(self)})"


class SequencePages:
    """All pages of one life of a sequence: its state and the KV blocks of its tokens.

    Built with no pages; `grow` takes them, `begin_step` and `end_step` frame the step that writes
    them, `release` gives all of them back and ends the life.
    """

    __slots__ = ("_layout", "_lease", "_pool", "_room", "_unwritten", "block_table", "state_table")

    def __init__(self, owner: str, layout: Layout, pool: PagePool) -> None:
        self._layout = layout
        self._pool = pool
        self._lease = pool.open(owner)
        self._unwritten: list[int] = []
        # Tokens that the pages held can hold: most steps need no new page and should cost nothing.
        self._room = 0
        self.block_table = PageTable()
        self.state_table = PageTable()

    @property
    def num_pages(self) -> int:
        """Pages held now."""
        return self._lease.num_pages

    @property
    def in_step(self) -> bool:
        """Whether a step that writes these pages is running."""
        return self._lease.in_step

    def lacking(self, num_tokens: int) -> int:
        """Pages still to be reserved before the sequence can hold `num_tokens` computed tokens."""
        if num_tokens <= self._room:
            return 0
        if not len(self.state_table):
            return sequence_pages(self._layout, num_tokens)
        blocks = self._layout.blocks_for(num_tokens)
        return blocks * self._layout.pages_per_block - len(self.block_table)

    def tokens_within_reach(self) -> int:
        """Most computed tokens that the pages held now and all free pages could hold together."""
        lacking_state = 0 if len(self.state_table) else self._layout.pages_per_state
        blocks = (self._pool.num_free - lacking_state) // self._layout.pages_per_block
        held = len(self.block_table) // self._layout.pages_per_block
        return max(0, held + blocks) * self._layout.block_size

    def grow(self, num_tokens: int) -> bool:
        """Reserve what holding `num_tokens` computed tokens lacks: all of it, or False and nothing."""
        if num_tokens <= self._room:
            return True
        pages = self._pool.reserve(self._lease, self.lacking(num_tokens))
        if pages is None:
            return False
        first_block = 0
        if not len(self.state_table):
            first_block = self._layout.pages_per_state
            self.state_table.extend(pages[:first_block])
        self.block_table.extend(pages[first_block:])
        self._unwritten.extend(pages)
        self._room = self._layout.blocks_for(num_tokens) * self._layout.block_size
        return True

    def begin_step(self) -> None:
        """A step that writes these pages is about to run; until `end_step` none can be released."""
        self._pool.begin_step(self._lease, self._unwritten)

    def end_step(self) -> None:
        """The step has come back."""
        self._pool.end_step(self._lease, self._unwritten)
        self._unwritten.clear()

    def release(self, *, tainted: bool = False) -> None:
        """Give every page back and end this life; `tainted` pages are scrubbed before reuse."""
        self._pool.release(self._lease, self.state_table, tainted=tainted)
        self._pool.release(self._lease, self.block_table, tainted=tainted)
        self._pool.close(self._lease)

    def check(self, num_computed: int) -> None:
        """Raise `InvariantError` unless the tables hold what `num_computed` tokens need, each page once."""
        pages = [*self.state_table, *self.block_table]
        if len(set(pages)) != len(pages) or len(pages) != self._lease.num_pages:
            raise InvariantError(f"the tables of {self._lease!r} do not list its pages once each")
        if self.lacking(num_computed):
            raise InvariantError(f"{self._lease!r} can't hold the {num_computed} tokens computed")
