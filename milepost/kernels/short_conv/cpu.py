"""Short convolution for CPUs: one pass over the inputs for all rows, then SiLU in place."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from milepost.kernels.jit import arrays
from milepost.kernels.paging import PagedState, Ragged
from milepost.kernels.precision import compute_dtype
from milepost.kernels.short_conv import check, window_tiles
from milepost.kernels.short_conv.cpu_taps import convolve

__all__ = ["short_conv"]


def short_conv(u: Tensor, weight: Tensor, state: PagedState, first_tile: int, ragged: Ragged) -> Tensor:
    """See `milepost.kernels.short_conv.ShortConv`."""
    check(u, weight, state, first_tile, ragged)
    channels, taps = weight.shape
    window = taps - 1
    dtype = compute_dtype(u.dtype)
    num_tiles = window_tiles(state, window, channels)
    tiles = state.tile_ids(first_tile, num_tiles)  # [rows, num_tiles]
    # Contiguous, as one row's windows are anyway: the loops are compiled once for each memory order.
    past = _read_windows(state.conv, tiles, window * channels).to(dtype).contiguous()
    past = past.view(-1, window, channels)
    wide = u.to(dtype).contiguous()
    rows, ends = ragged.rows(), ragged.ends()
    if state.snapshots is not None:
        rows, ends = torch.cat([rows, state.snapshots.rows]), torch.cat([ends, state.snapshots.ends])
        tiles = torch.cat([tiles, state.snapshot_tile_ids(first_tile, num_tiles)])
    y, windows = torch.empty_like(wide), wide.new_empty(len(rows), window, channels)
    operands = (
        wide,
        weight.to(dtype).T.contiguous(),
        past,
        ragged.starts,
        ragged.cu_seqlens,
        ragged.row_ids(),
        rows,
        ends,
    )
    convolve(taps * y.numel(), *arrays(*operands, y, windows))
    _write_windows(state.conv, tiles, windows.flatten(1).to(state.conv.dtype))
    return functional.silu(y, inplace=True).to(u.dtype)


def _read_windows(conv: Tensor, tiles: Tensor, size: int) -> Tensor:
    """The first `size` elements of each row's tiles, [rows, size], a copy."""
    return conv[tiles].flatten(1)[:, :size]


def _write_windows(conv: Tensor, tiles: Tensor, windows: Tensor) -> None:
    """Lay each of [windows, size] over its tiles; what the last tile holds behind it stays."""
    width = conv.shape[1]
    whole, rest = divmod(windows.shape[1], width)
    if whole:
        conv[tiles[:, :whole]] = windows[:, : whole * width].view(-1, whole, width)
    if rest:
        columns = torch.arange(rest)
        conv[tiles[:, whole, None], columns] = windows[:, whole * width :]
