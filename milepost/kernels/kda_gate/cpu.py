"""KDA's gate with few passes over memory."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from milepost.kernels.kda_gate import check
from milepost.kernels.precision import compute_dtype

__all__ = ["kda_gate"]


def kda_gate(z: Tensor, a_log: Tensor, lower_bound: float | None) -> Tensor:
    """See `milepost.kernels.kda_gate.KdaGate`."""
    check(z, a_log)
    dtype = compute_dtype(z.dtype)
    rate = a_log.to(dtype).exp()[:, None]  # [heads, 1]
    if lower_bound is not None:
        return torch.mul(z, rate).to(dtype).sigmoid_().mul_(lower_bound)
    # Above the threshold torch takes z itself; from 40 on that is exact in float64 too.
    return functional.softplus(z.to(dtype), threshold=40).mul_(-rate)
