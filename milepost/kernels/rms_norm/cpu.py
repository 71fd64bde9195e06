"""RMSNorm by torch's fused operator."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from milepost.kernels.precision import compute_dtype
from milepost.kernels.rms_norm import check

__all__ = ["rms_norm"]


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """See `milepost.kernels.rms_norm.RmsNorm`."""
    check(x, weight)
    dtype = compute_dtype(x.dtype)
    return functional.rms_norm(x.to(dtype), weight.shape, weight.to(dtype), eps).to(x.dtype)
