"""RMSNorm, as its formula."""

from __future__ import annotations

import torch
from torch import Tensor

from milepost.kernels.precision import compute_dtype
from milepost.kernels.rms_norm import check

__all__ = ["rms_norm"]


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """See `milepost.kernels.rms_norm.RmsNorm`."""
    check(x, weight)
    dtype = compute_dtype(x.dtype)
    wide = x.to(dtype)
    return (wide * torch.rsqrt((wide * wide).mean(-1, keepdim=True) + eps) * weight.to(dtype)).to(x.dtype)
