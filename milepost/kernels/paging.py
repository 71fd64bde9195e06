"""How kernels see a step's tokens and the arena's pages.

A step computes rows of different lengths, one per sequence, laid end to end without padding
(`Ragged`). A row's recurrent state is a list of tiles over pages (`PagedState`), its MLA rows are
blocks, one page each (`PagedKv`). All tensors are views of one arena; kernels write in place.

    tile t of row r     tile number  table[r, t // tiles_per_page] * tiles_per_page + t % tiles_per_page
    token p of row r    cache[block_table[r, p // block_size], layer, p % block_size]
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from milepost.errors import InvariantError

__all__ = ["PagedKv", "PagedState", "Ragged"]


@dataclass(frozen=True, eq=False)
class Ragged:
    """Which of a step's tokens belong to which row, and where in its sequence each row starts.

    Attributes:
        cu_seqlens: [rows + 1] int64, token offsets: row r's tokens are ``cu_seqlens[r]:cu_seqlens[r + 1]``.
        starts: [rows] int64, tokens of the sequence computed before this step, which is the position
            of the row's first token. 0 means a fresh state: nothing of the row's pages is read.

    What is derived from them is computed once and kept, since every layer of a step asks again.
    """

    cu_seqlens: Tensor
    starts: Tensor

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
    def _row_ids(self) -> Tensor:
        rows = torch.arange(self.num_rows, device=self.starts.device)
        return torch.repeat_interleave(rows, self._lengths)

    @cached_property
    def _positions(self) -> Tensor:
        tokens = torch.arange(self.num_tokens, device=self.starts.device)
        first = self.starts - self.cu_seqlens[:-1]  # position of token 0, were it in this row
        return tokens + first[self._row_ids]


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
    """

    recurrent: Tensor
    conv: Tensor
    table: Tensor
    tiles_per_page: int
    recurrent_tiles: tuple[int, ...] = ()
    conv_tiles: tuple[int, ...] = ()

    def tile_ids(self, first_tile: int, count: int) -> Tensor:
        """Where tiles ``first_tile .. first_tile + count - 1`` of each row's state lie.

        Returns:
            [rows, count] int64 tile numbers of the arena.
        """
        tiles = torch.arange(first_tile, first_tile + count, device=self.table.device)
        pages = self.table[:, tiles // self.tiles_per_page]  # [rows, count]
        return pages * self.tiles_per_page + tiles % self.tiles_per_page


@dataclass(frozen=True, eq=False)
class PagedKv:
    """The MLA rows of a step's sequences: one block, one page.

    Attributes:
        cache: [pages, mla_layers, block_size, row_dim] view of the arena in the KV dtype. What lies
            past a sequence's written tokens is garbage (NaN in tests) and is never used.
        block_table: [rows, max_blocks] int64, page of each block, padded with the dummy page 0.
    """

    cache: Tensor
    block_table: Tensor

    @property
    def block_size(self) -> int:
        """Tokens of a block."""
        return self.cache.shape[2]

    @property
    def row_dim(self) -> int:
        """Elements of one token's row: normed latent | shared k_pe."""
        return self.cache.shape[3]
