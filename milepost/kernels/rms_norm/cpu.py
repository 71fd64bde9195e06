"""RMSNorm for CPUs."""

from __future__ import annotations

from torch import Tensor

from milepost.kernels.native import empty, floats, native
from milepost.kernels.rms_norm import check

__all__ = ["rms_norm"]


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """See `milepost.kernels.rms_norm.RmsNorm`; all is float32."""
    check(x, weight)
    tokens, dim = x.shape
    out = empty(tokens, dim)
    native.rms_norm(
        floats("rms_norm", "x", x),
        x.stride(0),
        floats("rms_norm", "weight", weight),
        tokens,
        dim,
        eps,
        out.data_ptr(),
    )
    return out
