"""Routed experts for CPUs: tokens grouped by expert; each touched expert is walked once."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from milepost.kernels.gated_activation.cpu import gated_activation
from milepost.kernels.grouped_experts import check
from milepost.kernels.matrix import Matrix
from milepost.kernels.precision import compute_dtype

__all__ = ["grouped_experts"]


def grouped_experts(
    x: Tensor,
    ids: Tensor,
    weights: Tensor,
    w1: Matrix,
    w3: Matrix,
    w2: Matrix,
    activation: str,
    gate_cap: float,
    up_cap: float,
) -> Tensor:
    """See `milepost.kernels.grouped_experts.GroupedExperts`."""
    check(x, ids, weights, w1, w3, w2, activation, gate_cap, up_cap)
    dtype = compute_dtype(x.dtype)
    wide = x.to(dtype).contiguous()
    # Choices [tokens * top_k] in order of their expert; stable, so each sum's order is fixed.
    order = ids.flatten().argsort(stable=True)
    counts: list[int] = torch.bincount(ids.flatten(), minlength=w1.shape[0]).tolist()
    touched = [(expert, count) for expert, count in enumerate(counts) if count]
    out = torch.zeros(x.shape, dtype=dtype)
    tokens = order // ids.shape[1]
    shares = weights.to(dtype).flatten()[order]
    begin = 0
    for expert, count in touched:
        part = slice(begin, begin + count)
        begin += count
        inputs = wide[tokens[part]]
        gate = functional.linear(inputs, w1.dense(dtype, expert))
        up = functional.linear(inputs, w3.dense(dtype, expert))
        hidden = gated_activation(gate, up, activation, gate_cap, up_cap).mul_(shares[part, None])
        out.index_add_(0, tokens[part], functional.linear(hidden, w2.dense(dtype, expert)))
    return out.to(x.dtype)
