"""Block and state tables: which pages hold a sequence's tokens and its state."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from milepost.errors import InvariantError
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
    """All pages of one life of a sequence: its state, the KV blocks of its tokens, snapshots being left.

        block table   [ shared, others' whole blocks | own blocks .................. ]
        state table   [ own .................... ]
        snapshots     pages ordered from the running step, until they are settled

    Built with no pages; `adopt` takes over what a prefix hit shares, `grow` reserves its own,
    `begin_step` and `end_step` frame the step that writes them, `release` gives all of them back and
    ends the life.
    """

    __slots__ = (
        "_layout",
        "_lease",
        "_num_shared",
        "_pool",
        "_room",
        "_snapshots",
        "_unwritten",
        "block_table",
        "state_table",
    )

    def __init__(self, owner: str, layout: Layout, pool: PagePool) -> None:
        self._layout = layout
        self._pool = pool
        self._lease = pool.open(owner)
        self._unwritten: list[int] = []
        # Tokens that the pages held can hold: most steps need no new page and should cost nothing.
        self._room = 0
        self._num_shared = 0
        self._snapshots: list[tuple[int, ...]] = []
        self.block_table = PageTable()
        self.state_table = PageTable()

    @property
    def num_pages(self) -> int:
        """Own pages now; shared ones are not counted."""
        return self._lease.num_pages

    @property
    def num_shared(self) -> int:
        """Pages of others at the beginning of the block table."""
        return self._num_shared

    @property
    def in_step(self) -> bool:
        """Whether a step that writes these pages is running."""
        return self._lease.in_step

    def holds(self, num_tokens: int) -> bool:
        """Whether it has all pages that `num_tokens` computed tokens take; True in most decode steps."""
        return num_tokens <= self._room

    def adopt(self, shared: Sequence[int]) -> None:
        """Start with others' whole blocks, which this sequence only reads; comes before the first `grow`."""
        if len(self.block_table) or len(self.state_table):
            raise InvariantError(f"{self._lease!r} adopts blocks and has pages already")
        self.block_table.extend(shared)
        self._num_shared = len(shared)

    def lacking(self, num_tokens: int) -> int:
        """Free pages that it takes until the sequence can hold `num_tokens` computed tokens."""
        if num_tokens <= self._room:
            return 0
        lacking = max(0, self._missing(num_tokens) - self._pool.spare(self._lease))
        return lacking if len(self.state_table) else lacking + self._layout.pages_per_state

    def _missing(self, num_tokens: int) -> int:
        """Pages of blocks that `num_tokens` computed tokens need and that aren't there."""
        return self._layout.blocks_for(num_tokens) * self._layout.pages_per_block - len(self.block_table)

    def tokens_within_reach(self, num_pages: int) -> int:
        """Most computed tokens that the pages held now and `num_pages` more could hold together."""
        lacking_state = 0 if len(self.state_table) else self._layout.pages_per_state
        spare = self._pool.spare(self._lease)
        blocks = (num_pages + spare - lacking_state) // self._layout.pages_per_block
        held = len(self.block_table) // self._layout.pages_per_block
        return max(0, held + blocks) * self._layout.block_size

    def grow(self, num_tokens: int) -> bool:
        """Reserve what holding `num_tokens` computed tokens lacks: all of it, or False and nothing."""
        if num_tokens <= self._room:
            return True
        first_block = 0 if len(self.state_table) else self._layout.pages_per_state
        pages = self._pool.reserve(self._lease, first_block + self._missing(num_tokens))
        if pages is None:
            return False
        if first_block:
            self.state_table.extend(pages[:first_block])
        self.block_table.extend(pages[first_block:])
        self._unwritten.extend(pages)
        self._room = self._layout.blocks_for(num_tokens) * self._layout.block_size
        return True

    def order_snapshot(self) -> tuple[int, ...] | None:
        """Reserve the pages of a snapshot that the next step writes; None when too few are free."""
        pages = self._pool.reserve_state(self._lease, self._layout.pages_per_state)
        if pages is not None:
            self._snapshots.append(pages)
            self._unwritten.extend(pages)
        return pages

    def settle_snapshots(self, *, tainted: bool = False) -> None:
        """Let every ordered snapshot go after its step: what was published stays cached, the rest is free.

        With `tainted` the rest is scrubbed first: what a step wrote there may not be finite.
        """
        if self._snapshots:
            ordered = [page for pages in self._snapshots for page in pages]
            self._pool.release(self._lease, ordered, tainted=tainted)
            self._snapshots.clear()

    def begin_step(self) -> None:
        """A step that writes these pages is about to run; until `end_step` none can be released."""
        self._pool.begin_step(self._lease, self._unwritten)

    def end_step(self) -> None:
        """The step has come back."""
        self._pool.end_step(self._lease, self._unwritten)
        self._unwritten.clear()

    def release(self, *, tainted: bool = False) -> None:
        """Let every own page go and end this life; `tainted` pages are scrubbed before reuse."""
        self.settle_snapshots(tainted=tainted)
        self._pool.release(self._lease, self.state_table, tainted=tainted)
        self._pool.release(self._lease, self.block_table[self._num_shared :], tainted=tainted)
        self._pool.close(self._lease)

    def check(self, num_computed: int) -> None:
        """Raise `InvariantError` unless the tables hold what `num_computed` tokens need, each page once."""
        pages = [*self.state_table, *self.block_table, *(page for pages in self._snapshots for page in pages)]
        own = len(pages) - self._num_shared
        if len(set(pages)) != len(pages) or own != self._lease.num_pages:
            raise InvariantError(f"the tables of {self._lease!r} do not list its pages once each")
        has_state = len(self.state_table) == self._layout.pages_per_state
        if num_computed and (not has_state or self._missing(num_computed) > 0):
            raise InvariantError(f"{self._lease!r} can't hold the {num_computed} tokens computed")
