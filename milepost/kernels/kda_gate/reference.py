"""KDA's gate, formula by formula."""

from __future__ import annotations

import torch
from torch import Tensor

from milepost.kernels.kda_gate import check
from milepost.kernels.precision import compute_dtype

__all__ = ["kda_gate"]


def kda_gate(
    z: Tensor, b: Tensor, dt_bias: Tensor, a_log: Tensor, lower_bound: float | None
) -> tuple[Tensor, Tensor]:
    """See `milepost.kernels.kda_gate.KdaGate`."""
    check(z, b, dt_bias, a_log)
    dtype = compute_dtype(z.dtype)
    z = z.to(dtype) + dt_bias.to(dtype).view(z.shape[1:])
    beta = torch.sigmoid(b.to(dtype))
    rate = a_log.to(dtype).exp()[:, None]  # [heads, 1]
    if lower_bound is not None:
        return lower_bound * torch.sigmoid(rate * z), beta
    # softplus(z) = log(1 + e^z), without overflow for large z
    return -rate * torch.logaddexp(z, torch.zeros_like(z)), beta
