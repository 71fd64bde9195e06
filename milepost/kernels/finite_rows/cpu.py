"""The finite check for CPUs, in one pass over the bits."""

from __future__ import annotations

import torch
from torch import Tensor

from milepost.kernels.finite_rows import check
from milepost.kernels.native import empty, float_type, native, row_address
from milepost.kernels.native.views import rows_view
from milepost.kernels.paging import Ragged

__all__ = ["finite_rows"]


def finite_rows(x: Tensor, ragged: Ragged | None = None) -> Tensor:
    """See `milepost.kernels.finite_rows.FiniteRows`; x is float32 or bfloat16."""
    check(x, ragged)
    tokens, dim = x.shape
    finite = empty(tokens if ragged is None else ragged.num_rows, dtype=torch.bool)
    native.finite_rows(
        row_address("finite_rows", "x", x),
        float_type("finite_rows", "x", x),
        x.stride(0),
        tokens,
        dim,
        None if ragged is None else rows_view(ragged),
        finite.data_ptr(),
    )
    return finite
