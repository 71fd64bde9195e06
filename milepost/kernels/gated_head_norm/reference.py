"""Gated head norm, as its formula."""

from __future__ import annotations

import torch
from torch import Tensor

from milepost.kernels.gated_head_norm import check
from milepost.kernels.precision import compute_dtype

__all__ = ["gated_head_norm"]


def gated_head_norm(o: Tensor, gate: Tensor, weight: Tensor, eps: float) -> Tensor:
    """See `milepost.kernels.gated_head_norm.GatedHeadNorm`."""
    check(o, gate, weight)
    dtype = compute_dtype(o.dtype)
    x = o.to(dtype)
    normed = x * torch.rsqrt((x * x).mean(-1, keepdim=True) + eps) * weight.to(dtype)
    return (normed * torch.sigmoid(gate.to(dtype))).to(o.dtype)
