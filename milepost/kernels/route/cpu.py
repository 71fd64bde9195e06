"""The router with a partial sort; equal scores at the border are the rare case and are sorted fully."""

from __future__ import annotations

import torch
from torch import Tensor

from milepost.kernels.precision import compute_dtype
from milepost.kernels.route import WEIGHT_SUM_EPS, check

__all__ = ["route"]


def route(
    hidden: Tensor, gate_weight: Tensor, bias: Tensor, top_k: int, renormalize: bool, scaling: float
) -> tuple[Tensor, Tensor]:
    """See `milepost.kernels.route.Route`."""
    check(hidden, gate_weight, bias, top_k)
    dtype = compute_dtype(hidden.dtype)
    scores = torch.sigmoid(torch.nn.functional.linear(hidden.to(dtype), gate_weight.to(dtype)))
    ids = _stable_top(scores + bias.to(dtype), top_k)
    weights = scores.gather(-1, ids)
    if renormalize:
        weights = weights / (weights.sum(-1, keepdim=True) + WEIGHT_SUM_EPS)
    return ids, weights * scaling


def _stable_top(biased: Tensor, top_k: int) -> Tensor:
    """Indices of the top_k largest of each row, descending, ties to the lower index: [tokens, top_k]."""
    values, ids = biased.topk(top_k, dim=-1)
    # topk leaves open which of several equal values it takes, and in what order it lists them.
    ids, _ = ids.sort(dim=-1)
    order = biased.gather(-1, ids).argsort(dim=-1, descending=True, stable=True)
    ids = ids.gather(-1, order)
    crowded = (biased >= values[:, -1:]).sum(-1) != top_k  # more equals at the border than places
    if bool(crowded.any()):
        ids[crowded] = biased[crowded].argsort(dim=-1, descending=True, stable=True)[:, :top_k]
    return ids
