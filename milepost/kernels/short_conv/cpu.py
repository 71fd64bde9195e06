"""Short convolution as a sum of shifted inputs, all rows at once.

Each row's window is laid in front of its tokens, rows end to end, so that tap j of every token is one
shifted view of the same buffer; sums that would straddle two rows are computed and left out.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from milepost.kernels.paging import PagedState, Ragged
from milepost.kernels.precision import compute_dtype
from milepost.kernels.short_conv import check, window_tiles

__all__ = ["short_conv"]


def short_conv(u: Tensor, weight: Tensor, state: PagedState, first_tile: int, ragged: Ragged) -> Tensor:
    """See `milepost.kernels.short_conv.ShortConv`."""
    check(u, weight, state, first_tile, ragged)
    channels, taps = weight.shape
    window = taps - 1
    dtype = compute_dtype(u.dtype)
    tiles = state.tile_ids(first_tile, window_tiles(state, window, channels))  # [rows, tiles]
    past = _read_windows(state.conv, tiles, window * channels).view(-1, window, channels).to(dtype)
    past[ragged.starts == 0] = 0.0  # whatever lies in a fresh page is never read
    w = weight.to(dtype).T.contiguous()  # [taps, channels]
    if ragged.num_tokens == ragged.num_rows:
        y, newest = _one_token(u.to(dtype), past, w)
    else:
        y, newest = _many_tokens(u.to(dtype), past, w, ragged)
    _write_windows(state.conv, tiles, newest.flatten(1).to(state.conv.dtype))
    return functional.silu(y, inplace=True).to(u.dtype)


def _one_token(u: Tensor, past: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """Every row one token: y [rows, channels] and the new windows [rows, window, channels]."""
    inputs = torch.cat([past, u[:, None]], dim=1)  # [rows, taps, channels]
    return (inputs * w).sum(1), inputs[:, 1:]


def _many_tokens(u: Tensor, past: Tensor, w: Tensor, ragged: Ragged) -> tuple[Tensor, Tensor]:
    """Rows of any lengths: y [tokens, channels] and the new windows [rows, window, channels]."""
    rows, window, channels = past.shape
    ends = ragged.cu_seqlens[1:] + window * torch.arange(1, rows + 1)  # in the buffer
    places = torch.arange(ragged.num_tokens) + window * (ragged.row_ids() + 1)  # of the tokens in the buffer
    last = ends[:, None] + torch.arange(-window, 0)  # [rows, window]
    buffer = u.new_empty(ragged.num_tokens + rows * window, channels)
    fronts = ragged.cu_seqlens[:-1, None] + window * torch.arange(rows)[:, None] + torch.arange(window)
    buffer[fronts] = past
    buffer[places] = u
    length = buffer.shape[0] - window
    sums = buffer[window:] * w[window]
    for tap in range(window):
        sums.addcmul_(buffer[tap : tap + length], w[tap])
    return sums[places - window], buffer[last]


def _read_windows(conv: Tensor, tiles: Tensor, size: int) -> Tensor:
    """The first `size` elements of each row's tiles, [rows, size], a copy."""
    return conv[tiles].flatten(1)[:, :size].clone()


def _write_windows(conv: Tensor, tiles: Tensor, windows: Tensor) -> None:
    """Lay [rows, size] over each row's tiles; what the last tile holds behind it stays."""
    width = conv.shape[1]
    whole, rest = divmod(windows.shape[1], width)
    if whole:
        conv[tiles[:, :whole]] = windows[:, : whole * width].view(-1, whole, width)
    if rest:
        columns = torch.arange(rest)
        conv[tiles[:, whole, None], columns] = windows[:, whole * width :]
