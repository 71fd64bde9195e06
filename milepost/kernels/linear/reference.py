"""Products with a weight matrix in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

from milepost.kernels.linear import check
from milepost.kernels.matrix import Matrix
from milepost.kernels.precision import compute_dtype

__all__ = ["linear"]


def linear(x: Tensor, matrix: Matrix) -> Tensor:
    """See `milepost.kernels.linear.Linear`."""
    check(x, matrix)
    dtype = compute_dtype(x.dtype)
    wide = x.to(dtype)
    if x.ndim == 2:
        return (wide @ matrix.dense(dtype).T).to(x.dtype)
    items = [wide[:, item] @ matrix.dense(dtype, item).T for item in range(matrix.shape[0])]
    return torch.stack(items, dim=1).to(x.dtype)
