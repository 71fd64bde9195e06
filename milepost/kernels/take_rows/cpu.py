"""Gathering rows for CPUs."""

from __future__ import annotations

from torch import Tensor

from milepost.kernels.native import address, empty, floats, native
from milepost.kernels.take_rows import check

__all__ = ["take_rows"]


def take_rows(x: Tensor, index: Tensor) -> Tensor:
    """See `milepost.kernels.take_rows.TakeRows`; x is float32."""
    check(x, index)
    rows, dim = index.shape[0], x.shape[1]
    out = empty(rows, dim)
    native.take_rows(
        floats("take_rows", "x", x),
        x.stride(0),
        address("take_rows", "index", index),
        rows,
        dim,
        out.data_ptr(),
    )
    return out
