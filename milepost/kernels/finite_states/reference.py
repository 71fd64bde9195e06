"""Finite states, layer by layer."""

from __future__ import annotations

import torch
from torch import Tensor

from milepost.kernels.paging import PagedState

__all__ = ["finite_states"]


def finite_states(state: PagedState, tiles: int, window_size: int) -> Tensor:
    """See `milepost.kernels.finite_states.FiniteStates`."""
    finite = torch.ones(state.table.shape[0], dtype=torch.bool)
    window_tiles = -(-window_size // state.conv.shape[1])
    for recurrent_tile, conv_tile in zip(state.recurrent_tiles, state.conv_tiles, strict=True):
        matrices = state.recurrent[state.tile_ids(recurrent_tile, tiles)].flatten(1)
        windows = state.conv[state.tile_ids(conv_tile, window_tiles)].flatten(1)[:, :window_size]
        finite &= torch.isfinite(matrices).all(dim=1) & torch.isfinite(windows).all(dim=1)
    return finite
