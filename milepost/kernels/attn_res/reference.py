"""Attention Residuals' read and the norm behind it, as their formulas."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from milepost.kernels.attn_res import check
from milepost.kernels.precision import compute_dtype

__all__ = ["attn_res"]


def attn_res(
    running: Tensor, banks: Sequence[Tensor], site_weight: Tensor, out_weight: Tensor, eps: float
) -> Tensor:
    """See `milepost.kernels.attn_res.AttnRes`."""
    check(running, banks, site_weight, out_weight)
    dtype = compute_dtype(running.dtype)
    sources = torch.stack([*banks, running]).to(dtype)  # [sources, tokens, d]
    p = (_normed(sources, eps) * site_weight.to(dtype)).sum(-1).softmax(0)  # [sources, tokens]
    mixed = (p[:, :, None] * sources).sum(0)
    return (_normed(mixed, eps) * out_weight.to(dtype)).to(running.dtype)


def _normed(x: Tensor, eps: float) -> Tensor:
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + eps)
