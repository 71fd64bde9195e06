"""The router, as its formula."""

from __future__ import annotations

import torch
from torch import Tensor

from milepost.kernels.matrix import Matrix
from milepost.kernels.precision import compute_dtype
from milepost.kernels.route import WEIGHT_SUM_EPS, check

__all__ = ["route"]


def route(
    hidden: Tensor, gate_weight: Matrix, bias: Tensor, top_k: int, renormalize: bool, scaling: float
) -> tuple[Tensor, Tensor]:
    """See `milepost.kernels.route.Route`."""
    check(hidden, gate_weight, bias, top_k)
    dtype = compute_dtype(hidden.dtype)
    scores = torch.sigmoid(hidden.to(dtype) @ gate_weight.dense(dtype).T)  # [tokens, experts]
    # A stable descending sort puts the lower of two equal experts first, which topk doesn't promise.
    order = torch.argsort(scores + bias.to(dtype), dim=-1, descending=True, stable=True)
    ids = order[:, :top_k]
    weights = scores.gather(-1, ids)
    if renormalize:
        weights = weights / (weights.sum(-1, keepdim=True) + WEIGHT_SUM_EPS)
    return ids, weights * scaling
