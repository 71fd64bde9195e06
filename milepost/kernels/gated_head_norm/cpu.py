"""Gated head norm with few passes over memory."""

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
    normed = torch.nn.functional.rms_norm(o.to(dtype), weight.shape, weight.to(dtype), eps)
    return normed.mul_(torch.sigmoid(gate.to(dtype))).to(o.dtype)
