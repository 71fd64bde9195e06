"""What kernels write, filled with what must not be read before it is written."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["poisoned"]


def poisoned(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """In place of `milepost.kernels.native.empty`: NaN, or an index far outside of everything."""
    return torch.full(shape, float("nan") if dtype.is_floating_point else -(2**40), dtype=dtype)
