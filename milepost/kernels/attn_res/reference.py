"""Attention Residuals' read, as its formula."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from milepost.kernels.attn_res import check
from milepost.kernels.precision import compute_dtype

__all__ = ["attn_res"]


def attn_res(
    running: Tensor, banks: Sequence[Tensor], norm_weight: Tensor, proj_weight: Tensor, eps: float
) -> Tensor:
    """See `milepost.kernels.attn_res.AttnRes`."""
    check(running, banks, norm_weight, proj_weight)
    dtype = compute_dtype(running.dtype)
    sources = torch.stack([*banks, running]).to(dtype)  # [sources, tokens, d]
    w = norm_weight.to(dtype) * proj_weight.to(dtype)
    normed = sources * torch.rsqrt((sources * sources).mean(-1, keepdim=True) + eps)
    p = (normed * w).sum(-1).softmax(0)  # [sources, tokens]
    return (p[:, :, None] * sources).sum(0).to(running.dtype)
