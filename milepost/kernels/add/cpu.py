"""Adding for CPUs."""

from __future__ import annotations

from torch import Tensor

from milepost.kernels.add import check
from milepost.kernels.native import floats, native

__all__ = ["add"]


def add(x: Tensor, delta: Tensor) -> None:
    """See `milepost.kernels.add.Add`; both are float32."""
    check(x, delta)
    native.add(floats("add", "x", x), x.stride(0), floats("add", "delta", delta), delta.stride(0), *x.shape)
