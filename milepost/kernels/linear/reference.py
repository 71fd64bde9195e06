"""Products with a weight matrix in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

from milepost.kernels.linear import check
from milepost.kernels.matrix import Matrix
from milepost.kernels.precision import compute_dtype

__all__ = ["linear"]


def linear(x: Tensor, matrix: Matrix, onto: Tensor | None = None) -> Tensor:
    """See `milepost.kernels.linear.Linear`."""
    check(x, matrix, onto)
    product = _product(x.to(compute_dtype(x.dtype)), matrix).to(x.dtype)
    return product if onto is None else onto.add_(product)


def _product(x: Tensor, matrix: Matrix) -> Tensor:
    if x.ndim == 2:
        return x @ matrix.dense(x.dtype).T
    items = [x[:, item] @ matrix.dense(x.dtype, item).T for item in range(matrix.shape[0])]
    return torch.stack(items, dim=1)
