"""Finite states for CPUs: one read where they lie, no copy."""

from __future__ import annotations

import torch
from torch import Tensor

from milepost.kernels.native import floats, native
from milepost.kernels.native.views import states_view
from milepost.kernels.paging import PagedState

__all__ = ["finite_states"]


def finite_states(state: PagedState, tiles: int, window_size: int) -> Tensor:
    """See `milepost.kernels.finite_states.FiniteStates`; it is not one of the ops that a tape may hold."""
    floats("finite_states", "recurrent", state.recurrent)
    rows, layers = state.table.shape[0], len(state.recurrent_tiles)
    finite = torch.empty(rows, dtype=torch.bool)
    recurrent_tiles, conv_tiles = torch.tensor(state.recurrent_tiles), torch.tensor(state.conv_tiles)
    native.finite_states(
        states_view(state),
        rows,
        layers,
        recurrent_tiles.data_ptr(),
        conv_tiles.data_ptr(),
        tiles,
        window_size,
        finite.data_ptr(),
    )
    return finite
