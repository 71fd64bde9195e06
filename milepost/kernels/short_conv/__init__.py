"""Causal depthwise convolution over time, then SiLU; its window of past inputs lives in the state.

    y[t, c] = silu(sum_j weight[j, c] * u[t - (taps - 1) + j, c])       the last tap is the current token

Kimi K3 technical report, section 2.1.1.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from milepost.kernels.checks import check_ragged, check_shape, check_state
from milepost.kernels.paging import PagedState, Ragged

__all__ = ["ShortConv", "check", "window_tiles"]


class ShortConv(Protocol):
    """Convolve each row's tokens after the inputs in its window, and leave the new window behind."""

    def __call__(
        self, u: Tensor, weight: Tensor, state: PagedState, first_tile: int, ragged: Ragged
    ) -> Tensor:
        """Run one layer's convolution.

        Args:
            u: [tokens, channels].
            weight: [taps, channels], oldest input first; computed in at least float32.
            state: a row's window is the last ``taps - 1`` inputs, oldest first, flat [taps - 1, channels]
                over the conv tiles. Read when the row's start is above 0 (zeros else), then rewritten.
                Each of its snapshots is written with the window before its end, which is partly the
                old window where the row has fewer tokens up to there.
            first_tile: tile of the state at which this layer's window starts.
            ragged: the rows.

        Returns:
            [tokens, channels] in u's dtype.
        """
        ...


def window_tiles(state: PagedState, window: int, channels: int) -> int:
    """Tiles that one layer's window takes."""
    return -(-window * channels // state.conv.shape[1])


def check(u: Tensor, weight: Tensor, state: PagedState, first_tile: int, ragged: Ragged) -> None:
    """Check shapes; see `ShortConv`.

    Raises:
        InvariantError: the shapes don't fit each other.
    """
    tokens, channels = u.shape
    check_shape("short_conv", "weight", weight, None, channels)
    check_ragged("short_conv", tokens, ragged)
    tiles = window_tiles(state, weight.shape[0] - 1, channels)
    check_state("short_conv", state, ragged, first_tile + tiles)
