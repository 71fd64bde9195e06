"""Products with packed weight matrices for CPUs."""

from __future__ import annotations

from torch import Tensor

from milepost.kernels.linear import check
from milepost.kernels.matrix import Matrix
from milepost.kernels.native import empty, floats, native
from milepost.kernels.native.packed import pack

__all__ = ["linear"]


def linear(x: Tensor, matrix: Matrix, onto: Tensor | None = None) -> Tensor:
    """See `milepost.kernels.linear.Linear`; x is float32. An unpacked matrix is packed first."""
    check(x, matrix, onto)
    packed = pack(matrix)
    tokens, out = x.shape[0], packed.shape[1]
    y = empty(*x.shape[:-1], out) if onto is None else onto
    x_item, y_item = (0, 0) if x.ndim == 2 else (x.stride(1), y.stride(1))
    native.linear(
        packed.handle,
        floats("linear", "x", x),
        x.stride(0),
        x_item,
        floats("linear", "onto", y),
        y.stride(0),
        y_item,
        tokens,
        onto is not None,
    )
    return y
