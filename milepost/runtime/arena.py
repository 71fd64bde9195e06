"""The arena: one buffer in which all pages live, and the views that kernels read and write.

    bytes       [num_pages * page_bytes]                         uint8, the buffer itself
    kv          [num_pages, mla_layers, block_size, row_dim]     a page as a KV block
    recurrent   [num_tiles, tile_rows, head_dim]                 a page as part of a state's matrices
    conv        [num_tiles, tile_bytes // itemsize]              a page as part of its windows

The views alias one another: what a page means is decided by the tables of the sequence that owns it.
"""

from __future__ import annotations

import mmap
from collections.abc import Collection, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from milepost.byte_counts import format_bytes
from milepost.errors import ConfigError, InvariantError
from milepost.kernels.finite_states import finite_states
from milepost.kernels.paging import PagedState, StateSnapshots
from milepost.memory.layout import DUMMY_PAGE, TiledLayout

__all__ = ["Arena"]

# Every byte 0xFF: NaN when read as float64, float32, bfloat16, float16 or fp8 (e4m3).
_POISON = 0xFF


class Arena:
    """All pages of one device. It knows bytes, not owners.

    Args:
        layout: how a page is cut.
        num_pages: pages, the dummy page counted.
        kv_dtype: of cached KV.
        conv_dtype: of the convolution windows.
        recurrent_dtype: of the recurrent matrices.

    Raises:
        ConfigError: the system refuses to map that much memory.
        InvariantError: a dtype's size is not the one that the layout was built with.
    """

    def __init__(
        self,
        layout: TiledLayout,
        num_pages: int,
        *,
        kv_dtype: torch.dtype,
        conv_dtype: torch.dtype,
        recurrent_dtype: torch.dtype = torch.float32,
    ) -> None:
        _check_itemsize("kv", kv_dtype, layout.kv_itemsize)
        _check_itemsize("conv", conv_dtype, layout.conv_itemsize)
        _check_itemsize("recurrent", recurrent_dtype, layout.recurrent_itemsize)
        self.layout = layout
        self.num_pages = num_pages
        self.bytes = _map_zeros(num_pages * layout.page_bytes)
        num_tiles = num_pages * layout.tiles_per_page
        self.kv: Tensor = self.bytes.view(kv_dtype).view(
            num_pages, layout.num_attention_layers, layout.block_size, layout.row_dim
        )
        self.recurrent: Tensor = self.bytes.view(recurrent_dtype).view(
            num_tiles, layout.tile_rows, layout.head_dim
        )
        self.conv: Tensor = self.bytes.view(conv_dtype).view(num_tiles, -1)
        self._recurrent_tiles = layout.first_recurrent_tiles
        self._conv_tiles = layout.first_conv_tiles

    def scrub(self, pages: Sequence[int]) -> None:
        """Fill pages with zeros."""
        self._fill(pages, 0)

    def scrub_tails(self, tails: Sequence[tuple[int, int]]) -> None:
        """Fill KV pages with zeros behind their first tokens.

        Args:
            tails: (page, tokens that stay) pairs.
        """
        self._check_pages([page for page, _ in tails])
        for page, kept in tails:
            self.kv[page, :, kept:] = 0

    def poison(self, pages: Sequence[int]) -> None:
        """Fill pages with bytes that are NaN in whatever dtype they are read (for tests)."""
        self._fill(pages, _POISON)

    def poisoned(self, pages: Sequence[int]) -> bool:
        """Whether pages hold nothing but `poison` (for tests)."""
        table = self.bytes.view(self.num_pages, self.layout.page_bytes)
        return bool((table[list(pages)] == _POISON).all())

    def poison_all(self) -> None:
        """Poison every page, the dummy page too. This commits the whole arena's memory."""
        self.bytes.fill_(_POISON)

    def pages(self) -> NDArray[np.uint8]:
        """The buffer as [num_pages, page_bytes], to be read and written by those who move pages.

        It shares the arena's memory and keeps it alive.
        """
        pages: NDArray[np.uint8] = self.bytes.numpy().reshape(self.num_pages, self.layout.page_bytes)
        return pages

    def copy_pages(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy whole pages inside the arena.

        Args:
            pairs: (source, target) of each copy; no page is written twice, and none is both.

        Raises:
            InvariantError: a page outside the arena, the dummy page, or pages that depend on the order.
        """
        if not pairs:
            return
        sources, targets = {source for source, _ in pairs}, {target for _, target in pairs}
        self._check_pages(sources | targets)
        if DUMMY_PAGE in sources | targets:
            raise InvariantError(f"The dummy page is copied: {list(pairs)}.")
        if len(targets) != len(pairs) or not sources.isdisjoint(targets):
            raise InvariantError(f"Copies must not depend on their order. Given: {list(pairs)}.")
        pages = self.pages()
        for source, target in pairs:
            pages[target] = pages[source]

    def states(self, tables: Tensor, snapshots: StateSnapshots | None = None) -> PagedState:
        """Some sequences' states as kernels see them; `tables` are their state tables.

        Args:
            tables: [rows, pages_per_state] int64.
            snapshots: what a step leaves of them.
        """
        return PagedState(
            recurrent=self.recurrent,
            conv=self.conv,
            table=tables,
            tiles_per_page=self.layout.tiles_per_page,
            recurrent_tiles=self._recurrent_tiles,
            conv_tiles=self._conv_tiles,
            snapshots=snapshots,
        )

    def finite_states(self, states: PagedState) -> Tensor:
        """Which states hold finite numbers only; what pads their tiles and pages is not looked at.

        Returns:
            [rows] bool.
        """
        layout = self.layout
        window_size = layout.conv_window * layout.conv_channels
        return finite_states(states, layout.recurrent_tiles_per_layer, window_size)

    def _fill(self, pages: Sequence[int], byte: int) -> None:
        if not pages:
            return
        self._check_pages(pages)
        # index_fill_ writes these pages alone; a boolean mask would touch, so commit, every page.
        index = torch.tensor(pages, dtype=torch.int64)
        self.bytes.view(self.num_pages, self.layout.page_bytes).index_fill_(0, index, byte)

    def _check_pages(self, pages: Collection[int]) -> None:
        if pages and (min(pages) < 0 or max(pages) >= self.num_pages):
            raise InvariantError(f"Pages {sorted(pages)} are not all in an arena of {self.num_pages} pages.")


def _check_itemsize(what: str, dtype: torch.dtype, itemsize: int) -> None:
    if dtype.itemsize != itemsize:
        raise InvariantError(
            f"The layout has {itemsize}-byte {what} elements, the arena got {dtype}: "
            "build both from one config."
        )


def _map_zeros(num_bytes: int) -> Tensor:
    """Zeros that take memory only once they are touched, aligned to the system's page."""
    # torch.zeros would write, and so commit, the whole budget at once.
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
    try:
        buffer = mmap.mmap(-1, num_bytes, flags=flags)
    except (OSError, ValueError, OverflowError) as error:
        raise ConfigError(
            f"The system refuses to map an arena of {num_bytes} bytes ({format_bytes(num_bytes)}): {error}. "
            "Choose less memory."
        ) from error
    return torch.frombuffer(buffer, dtype=torch.uint8)
