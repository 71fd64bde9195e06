"""Small arenas for kernel tests: pages scattered at random, and NaN wherever nothing was written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from milepost.kernels.paging import PagedKv, PagedState, Ragged

# Lengths and starts around the chunk (64), its half blocks and one token.
LENGTHS = (1, 2, 15, 16, 17, 63, 64, 65, 130, 200)
STARTS = (0, 1, 63, 64, 100)


def ragged(lengths: Sequence[int], starts: Sequence[int] | None = None) -> Ragged:
    """Rows of these lengths; fresh ones unless starts are given."""
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    return Ragged(
        cu_seqlens=offsets, starts=torch.tensor(starts if starts is not None else [0] * len(lengths))
    )


def ulps(dtype: torch.dtype) -> float:
    """Tolerance in units of the largest reference value."""
    return {torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float64: 1e-12}[dtype]


def assert_near(got: Tensor, want: Tensor, tolerance: float) -> None:
    """The largest difference is within `tolerance` of the largest wanted value; NaN fails."""
    assert got.shape == want.shape
    assert bool(torch.isfinite(got).all()), "not finite"
    scale = max(float(want.abs().max()), 1e-3) if want.numel() else 1.0
    worst = float((got.double() - want.double()).abs().max()) / scale if want.numel() else 0.0
    assert worst <= tolerance, f"off by {worst:.2e} of the largest value, allowed {tolerance:.0e}"


@dataclass(frozen=True)
class StateArena:
    """States of some rows in one poisoned arena."""

    state: PagedState
    first_tile: int
    tiles: int  # tiles of the layer under test

    def written(self) -> Tensor:
        """Mask over the arena's tiles: those of the layer under test in some row's state."""
        mask = torch.zeros(self.state.recurrent.shape[0], dtype=torch.bool)
        mask[self.state.tile_ids(self.first_tile, self.tiles).flatten()] = True
        return mask

    def as_dtype(self, dtype: torch.dtype) -> StateArena:
        """A copy in another dtype."""
        state = self.state
        copied = state.recurrent.clone().to(dtype)
        return replace(self, state=replace(state, recurrent=copied, conv=state.conv.clone().to(dtype)))


def kda_arena(
    rows: int, heads: int, dim: int, tile_rows: int, *, tiles_per_page: int = 3, first_tile: int = 2
) -> StateArena:
    """An arena of NaN with `rows` states on shuffled pages; the layer under test starts inside a page."""
    tiles = heads * dim // tile_rows
    pages = -(-(first_tile + tiles) // tiles_per_page)
    num_pages = rows * pages + 3
    order = torch.randperm(num_pages - 1)[: rows * pages] + 1  # page 0 is the dummy page
    recurrent = torch.full((num_pages * tiles_per_page, tile_rows, dim), float("nan"), dtype=torch.float64)
    state = PagedState(
        recurrent=recurrent,
        conv=recurrent.flatten(1),
        table=order.view(rows, pages),
        tiles_per_page=tiles_per_page,
    )
    return StateArena(state=state, first_tile=first_tile, tiles=tiles)


def kv_arena(
    contexts: Sequence[int], *, layers: int, block_size: int, row_dim: int, dtype: torch.dtype
) -> PagedKv:
    """A cache of NaN with room for `contexts` tokens of each row on shuffled pages."""
    needed = [-(-context // block_size) for context in contexts]
    num_pages = sum(needed) + 3
    cache = torch.full((num_pages, layers, block_size, row_dim), float("nan"), dtype=dtype)
    order = (torch.randperm(num_pages - 1) + 1).tolist()
    table = torch.zeros(len(contexts), max(needed) + 1, dtype=torch.int64)  # padded with the dummy page
    for row, blocks in enumerate(needed):
        table[row, :blocks] = torch.tensor([order.pop() for _ in range(blocks)])
    return PagedKv(cache=cache, block_table=table)
