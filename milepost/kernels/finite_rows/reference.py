"""The finite check in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

from milepost.kernels.finite_rows import check
from milepost.kernels.paging import Ragged

__all__ = ["finite_rows"]


def finite_rows(x: Tensor, ragged: Ragged | None = None) -> Tensor:
    """See `milepost.kernels.finite_rows.FiniteRows`."""
    check(x, ragged)
    finite = torch.isfinite(x).all(dim=1)  # [tokens]
    if ragged is None:
        return finite
    rows = torch.ones(ragged.num_rows, dtype=torch.bool)
    rows[ragged.row_ids()[~finite]] = False
    return rows
