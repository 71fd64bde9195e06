"""Short convolution for CPUs: inputs and windows in one pass."""

from __future__ import annotations

from torch import Tensor

from milepost.errors import InvariantError
from milepost.kernels.native import contiguous_floats, empty, floats, native
from milepost.kernels.native.views import rows_view, states_view
from milepost.kernels.paging import PagedState, Ragged
from milepost.kernels.short_conv import check

__all__ = ["short_conv"]


def short_conv(u: Tensor, weight: Tensor, state: PagedState, first_tile: int, ragged: Ragged) -> Tensor:
    """See `milepost.kernels.short_conv.ShortConv`; u and weight are float32.

    Raises:
        InvariantError: more taps than the kernel knows, or a weight that isn't contiguous.
    """
    check(u, weight, state, first_tile, ragged)
    taps, channels = weight.shape
    if taps > native.MOST_TAPS:
        raise InvariantError(f"short_conv: at most {native.MOST_TAPS} taps. Given: {taps}.")
    y = empty(*u.shape)
    native.short_conv(
        rows_view(ragged),
        states_view(state),
        first_tile,
        floats("short_conv", "u", u),
        u.stride(0),
        contiguous_floats("short_conv", "weight", weight),
        y.data_ptr(),
        u.shape[0],
        channels,
        taps,
    )
    return y
