"""Gated head norm in one pass."""

from __future__ import annotations

from torch import Tensor

from milepost.kernels.gated_head_norm import check
from milepost.kernels.native import empty, floats, native, strided_heads

__all__ = ["gated_head_norm"]


def gated_head_norm(o: Tensor, gate: Tensor, weight: Tensor, eps: float) -> Tensor:
    """See `milepost.kernels.gated_head_norm.GatedHeadNorm`; everything is float32."""
    check(o, gate, weight)
    y = empty(*o.shape)
    native.gated_head_norm(
        *strided_heads("gated_head_norm", "o", o),
        *strided_heads("gated_head_norm", "gate", gate),
        floats("gated_head_norm", "weight", weight),
        eps,
        y.data_ptr(),
        *o.shape,
    )
    return y
