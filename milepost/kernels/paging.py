"""How kernels see a step's tokens and the arena's pages.

A step computes rows of different lengths, one per sequence, laid end to end without padding
(`Ragged`). A row's recurrent state is a list of tiles over pages (`PagedState`), its MLA rows are
blocks, one page each (`PagedKv`). All tensors are views of one arena; kernels write in place. The
kernels that advance states also leave `StateSnapshots` behind, after whichever tokens are asked for.

    tile t of row r     tile number  table[r, t // tiles_per_page] * tiles_per_page + t % tiles_per_page
    token p of row r    cache[block_table[r, p // block_size], layer, p % block_size]
"""

from __future__ import annotations

import itertools
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from milepost.errors import InvariantError

if TYPE_CHECKING:
    from milepost.kernels.native._native import Kv, Rows, States

__all__ = ["PagedKv", "PagedState", "Ragged", "StateSnapshots"]


@dataclass(frozen=True, eq=False)
class Ragged:
    """Which of a step's tokens belong to which row, and where in its sequence each row starts.

    Attributes:
        cu_seqlens: [rows + 1] int64, token offsets: row r's tokens are ``cu_seqlens[r]:cu_seqlens[r + 1]``.
        starts: [rows] int64, tokens of the sequence computed before this step, which is the position
            of the row's first token. 0 means a fresh state: nothing of the row's pages is read.

    What is derived from them is computed once and kept, since every layer of a step asks again; ``native``
    is the compiled kernels' view (`milepost.kernels.native.views`).
    """

    cu_seqlens: Tensor
    starts: Tensor
    native: Rows | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.cu_seqlens.dtype != torch.int64 or self.starts.dtype != torch.int64:
            raise InvariantError(
                "cu_seqlens and starts must be int64. "
                f"Given: {self.cu_seqlens.dtype} and {self.starts.dtype}."
            )
        if self.cu_seqlens.ndim != 1 or self.cu_seqlens.shape[0] != self.starts.shape[0] + 1:
            raise InvariantError(
                "cu_seqlens must hold one number more than starts. "
                f"Given shapes: {tuple(self.cu_seqlens.shape)} and {tuple(self.starts.shape)}."
            )

    @property
    def num_rows(self) -> int:
        """Rows of the step."""
        return self.starts.shape[0]

    @cached_property
    def num_tokens(self) -> int:
        """Tokens of the step, all rows together."""
        return self.offsets[-1]

    @cached_property
    def offsets(self) -> list[int]:
        """`cu_seqlens` as Python numbers."""
        offsets: list[int] = self.cu_seqlens.tolist()
        if any(begin >= end for begin, end in itertools.pairwise(offsets)):
            raise InvariantError(f"Every row must have at least one token. Given cu_seqlens: {offsets}.")
        return offsets

    @cached_property
    def start_list(self) -> list[int]:
        """`starts` as Python numbers."""
        starts: list[int] = self.starts.tolist()
        return starts

    def lengths(self) -> Tensor:
        """Tokens of each row, [rows] int64."""
        return self._lengths

    def rows(self) -> Tensor:
        """The rows' numbers, [rows] int64."""
        return self._rows

    def ends(self) -> Tensor:
        """Token offset behind each row's last token, [rows] int64."""
        return self._ends

    def row_ids(self) -> Tensor:
        """Row of each token, [tokens] int64."""
        return self._row_ids

    def positions(self) -> Tensor:
        """Position of each token in its sequence, [tokens] int64."""
        return self._positions

    @cached_property
    def _lengths(self) -> Tensor:
        return self.cu_seqlens[1:] - self.cu_seqlens[:-1]

    @cached_property
    def _rows(self) -> Tensor:
        return torch.arange(self.num_rows, device=self.starts.device)

    @cached_property
    def _ends(self) -> Tensor:
        return self.cu_seqlens[1:]

    @cached_property
    def _row_ids(self) -> Tensor:
        return torch.repeat_interleave(self._rows, self._lengths)

    @cached_property
    def _positions(self) -> Tensor:
        tokens = torch.arange(self.num_tokens, device=self.starts.device)
        first = self.starts - self.cu_seqlens[:-1]  # position of token 0, were it in this row
        return tokens + first[self._row_ids]


@dataclass(frozen=True, eq=False)
class StateSnapshots:
    """States that a step's rows leave on other pages on their way, each after some token of its row.

    Attributes:
        rows: [snapshots] int64, row of each; ascending.
        ends: [snapshots] int64, offset into the step's tokens: the state has seen its row's tokens
            before this offset and none behind it. Strictly ascending, so a row's are in order.
        table: [snapshots, pages_per_state] int64, page of each logical page; nobody else's pages.
    """

    rows: Tensor
    ends: Tensor
    table: Tensor

    def __post_init__(self) -> None:
        dtypes = {name: getattr(self, name).dtype for name in ("rows", "ends", "table")}
        if set(dtypes.values()) != {torch.int64}:
            raise InvariantError(f"A step's snapshots must be int64. Given: {dtypes}.")
        shapes = [list(tensor.shape) for tensor in (self.rows, self.ends, self.table)]
        count = shapes[0][0] if shapes[0] else 0
        if count == 0 or shapes[0] != [count] or shapes[1] != [count] or shapes[2][:-1] != [count]:
            raise InvariantError(
                "Snapshots must have shapes [n], [n] and [n, pages], n at least 1; a step without any has "
                f"None. Given: {shapes}."
            )

    @cached_property
    def row_list(self) -> list[int]:
        """`rows` as Python numbers."""
        rows: list[int] = self.rows.tolist()
        return rows

    @cached_property
    def end_list(self) -> list[int]:
        """`ends` as Python numbers."""
        ends: list[int] = self.ends.tolist()
        return ends

    def of_row(self, row: int) -> list[tuple[int, int]]:
        """A row's snapshots in order, as (number of the snapshot, its end)."""
        first, last = bisect_left(self.row_list, row), bisect_right(self.row_list, row)
        return list(enumerate(self.end_list[first:last], first))


@dataclass(frozen=True, eq=False)
class PagedState:
    """The states of a step's rows: tiles over pages.

    Attributes:
        recurrent: [num_tiles, tile_rows, head_dim] view of the arena, float32 (float64 in tests);
            num_tiles = pages * tiles_per_page. A head's [v, k] matrix is head_dim / tile_rows
            consecutive tiles of a state.
        conv: [num_tiles, tile_bytes / itemsize] view of the same arena in the window's dtype.
        table: [rows, pages_per_state] int64, page of each logical page of the row's state.
        tiles_per_page: tiles that a page holds.
        recurrent_tiles: tile of a state at which each KDA layer's matrices start, as the layout says;
            kernels get the one of their layer, so these may be left out where a kernel is called alone.
        conv_tiles: tile of a state at which each KDA layer's window starts.
        snapshots: states that rows leave on the way; None: none.
        native: the compiled kernels' view (`milepost.kernels.native.views`), once it is asked for.
    """

    recurrent: Tensor
    conv: Tensor
    table: Tensor
    tiles_per_page: int
    recurrent_tiles: tuple[int, ...] = ()
    conv_tiles: tuple[int, ...] = ()
    snapshots: StateSnapshots | None = None
    native: States | None = field(default=None, repr=False)

    def tile_ids(self, first_tile: int, count: int) -> Tensor:
        """Where tiles ``first_tile .. first_tile + count - 1`` of each row's state lie.

        Returns:
            [rows, count] int64 tile numbers of the arena.
        """
        return self._tile_ids(self.table, first_tile, count)

    def snapshot_tile_ids(self, first_tile: int, count: int) -> Tensor:
        """Where tiles ``first_tile .. first_tile + count - 1`` of each snapshot lie.

        Returns:
            [snapshots, count] int64 tile numbers of the arena; no rows without snapshots.
        """
        if self.snapshots is None:
            return torch.empty(0, count, dtype=torch.int64, device=self.table.device)
        return self._tile_ids(self.snapshots.table, first_tile, count)

    def _tile_ids(self, table: Tensor, first_tile: int, count: int) -> Tensor:
        tiles = torch.arange(first_tile, first_tile + count, device=table.device)
        pages = table[:, tiles // self.tiles_per_page]  # [tables, count]
        return pages * self.tiles_per_page + tiles % self.tiles_per_page


@dataclass(frozen=True, eq=False)
class PagedKv:
    """The MLA rows of a step's sequences: one block, one page.

    Attributes:
        cache: [pages, mla_layers, block_size, row_dim] view of the arena in the KV dtype. What lies
            past a sequence's written tokens is garbage (NaN in tests) and is never used.
        block_table: [rows, max_blocks] int64, page of each block, padded with the dummy page 0.
        native: the compiled kernels' view (`milepost.kernels.native.views`), once it is asked for.
    """

    cache: Tensor
    block_table: Tensor
    native: Kv | None = field(default=None, repr=False)

    @property
    def block_size(self) -> int:
        """Tokens of a block."""
        return self.cache.shape[2]

    @property
    def row_dim(self) -> int:
        """Elements of one token's row: normed latent | shared k_pe."""
        return self.cache.shape[3]
