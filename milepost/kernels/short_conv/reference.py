"""Short convolution, row by row and token by token."""

from __future__ import annotations

import torch
from torch import Tensor

from milepost.kernels.paging import PagedState, Ragged
from milepost.kernels.precision import compute_dtype
from milepost.kernels.short_conv import check, window_tiles

__all__ = ["short_conv"]


def short_conv(u: Tensor, weight: Tensor, state: PagedState, first_tile: int, ragged: Ragged) -> Tensor:
    """See `milepost.kernels.short_conv.ShortConv`."""
    check(u, weight, state, first_tile, ragged)
    taps, channels = weight.shape
    window = taps - 1
    dtype = compute_dtype(u.dtype)
    w = weight.to(dtype)
    num_tiles = window_tiles(state, window, channels)
    tiles = state.tile_ids(first_tile, num_tiles)  # [rows, num_tiles]
    snapshot_tiles = state.snapshot_tile_ids(first_tile, num_tiles)  # [snapshots, num_tiles]
    y = torch.empty(u.shape, dtype=dtype)
    for row, start in enumerate(ragged.start_list):
        begin, end = ragged.offsets[row], ragged.offsets[row + 1]
        if start > 0:
            past = state.conv[tiles[row]].flatten()[: window * channels].view(window, channels).to(dtype)
        else:
            past = torch.zeros(window, channels, dtype=dtype)
        inputs = torch.cat([past, u[begin:end].to(dtype)])  # [window + length, channels]
        for t in range(end - begin):
            y[begin + t] = (w * inputs[t : t + taps]).sum(0)
        _write_window(state.conv, tiles[row], inputs[end - begin :])
        for index, at in [] if state.snapshots is None else state.snapshots.of_row(row):
            _write_window(state.conv, snapshot_tiles[index], inputs[at - begin : at - begin + window])
    return torch.nn.functional.silu(y).to(u.dtype)


def _write_window(conv: Tensor, tiles: Tensor, window: Tensor) -> None:
    """Lay one window over its tiles; what the last tile holds behind it stays."""
    flat = window.flatten().to(conv.dtype)
    for i, tile in enumerate(tiles.tolist()):
        piece = flat[i * conv.shape[1] : (i + 1) * conv.shape[1]]
        conv[tile, : piece.shape[0]] = piece
