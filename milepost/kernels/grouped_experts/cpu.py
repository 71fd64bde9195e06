"""Routed experts for CPUs: tokens grouped by expert, one matrix product per touched expert and matrix.

Packed matrices are unpacked when their expert is touched and dropped at once, so memory stays packed.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from milepost.kernels.gated_activation.cpu import gated_activation
from milepost.kernels.grouped_experts import ExpertWeights, Mxfp4Experts, check
from milepost.kernels.mxfp4.cpu import dequantize
from milepost.kernels.precision import compute_dtype

__all__ = ["grouped_experts"]


def grouped_experts(
    x: Tensor,
    ids: Tensor,
    weights: Tensor,
    w1: ExpertWeights,
    w3: ExpertWeights,
    w2: ExpertWeights,
    activation: str,
    gate_cap: float,
    up_cap: float,
) -> Tensor:
    """See `milepost.kernels.grouped_experts.GroupedExperts`."""
    check(x, ids, weights, w1, w3, w2)
    dtype = compute_dtype(x.dtype)
    wide = x.to(dtype)
    out = torch.zeros(x.shape, dtype=dtype)
    # Choices [tokens * top_k] in order of their expert; stable, so each sum's order is fixed.
    order = ids.flatten().argsort(stable=True)
    tokens = order // ids.shape[1]
    shares = weights.to(dtype).flatten()[order]
    counts: list[int] = torch.bincount(ids.flatten(), minlength=w1.shape[0]).tolist()
    begin = 0
    for expert, count in enumerate(counts):
        if not count:
            continue
        part = slice(begin, begin + count)
        begin += count
        inputs = wide[tokens[part]]
        gate = functional.linear(inputs, _matrix(w1, expert, dtype))
        up = functional.linear(inputs, _matrix(w3, expert, dtype))
        hidden = gated_activation(gate, up, activation, gate_cap, up_cap).mul_(shares[part, None])
        out.index_add_(0, tokens[part], functional.linear(hidden, _matrix(w2, expert, dtype)))
    return out.to(x.dtype)


def _matrix(weights: ExpertWeights, expert: int, dtype: torch.dtype) -> Tensor:
    """One expert's [out, in]."""
    if isinstance(weights, Mxfp4Experts):
        return dequantize(weights.packed[expert], weights.scale[expert], dtype)
    return weights.matrix(expert, dtype)
