"""Which states hold finite numbers only: what a snapshot must pass before anybody may continue from it."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from milepost.kernels.finite_states import cpu, reference
from milepost.kernels.native import available
from milepost.kernels.paging import PagedState

__all__ = ["FiniteStates", "finite_states"]


class FiniteStates(Protocol):
    """Look at every number of some states, and at nothing that pads their tiles and pages."""

    def __call__(self, state: PagedState, tiles: int, window_size: int) -> Tensor:
        """Look.

        Args:
            state: the states, with the tiles at which its layers' matrices and windows start.
            tiles: of one layer's matrices.
            window_size: elements of one layer's window.

        Returns:
            [rows] bool.
        """
        ...


def finite_states(state: PagedState, tiles: int, window_size: int) -> Tensor:
    """See `FiniteStates`; compiled where that is built and reads the states' dtypes."""
    narrow = state.recurrent.dtype == torch.float32 and state.conv.dtype in {torch.float32, torch.bfloat16}
    look = cpu.finite_states if available() and narrow else reference.finite_states
    return look(state, tiles, window_size)
