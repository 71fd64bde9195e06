"""KDA's gate, formula by formula."""

from __future__ import annotations

import torch
from torch import Tensor

from milepost.kernels.kda_gate import check
from milepost.kernels.precision import compute_dtype

__all__ = ["kda_gate"]


def kda_gate(z: Tensor, a_log: Tensor, lower_bound: float | None) -> Tensor:
    """See `milepost.kernels.kda_gate.KdaGate`."""
    check(z, a_log)
    dtype = compute_dtype(z.dtype)
    z = z.to(dtype)
    rate = a_log.to(dtype).exp()[:, None]  # [heads, 1]
    if lower_bound is not None:
        return lower_bound * torch.sigmoid(rate * z)
    # softplus(z) = log(1 + e^z), without overflow for large z
    return -rate * torch.logaddexp(z, torch.zeros_like(z))
