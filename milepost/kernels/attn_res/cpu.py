"""Attention Residuals' read without stacking the sources: they are only walked, twice each."""

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
    if not banks:
        return running.clone()  # a softmax over one source is 1
    dtype = compute_dtype(running.dtype)
    sources = [source.to(dtype) for source in (*banks, running)]  # [tokens, d] each
    w = norm_weight.to(dtype) * proj_weight.to(dtype)
    d = running.shape[1]
    scores = torch.stack([source @ w for source in sources])  # [sources, tokens]
    squares = torch.stack([torch.linalg.vector_norm(source, dim=-1) for source in sources]).square_()
    p = scores.mul_(squares.div_(d).add_(eps).rsqrt_()).softmax(0)
    out = sources[0] * p[0, :, None]
    for source, share in zip(sources[1:], p[1:], strict=True):
        out.addcmul_(source, share[:, None])
    return out.to(running.dtype)
