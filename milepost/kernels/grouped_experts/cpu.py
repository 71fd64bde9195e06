"""Routed experts for CPUs: tokens grouped by expert; each touched expert is walked once.

A few tokens (decodes) go to compiled loops, more to one matrix product per touched expert and matrix.
Packed matrices are unpacked when their expert is touched and dropped at once, so memory stays packed.
"""

from __future__ import annotations

from typing import TypeGuard

import torch
from torch import Tensor
from torch.nn import functional

from milepost.kernels.gated_activation.cpu import gated_activation
from milepost.kernels.grouped_experts import DenseExperts, ExpertWeights, Mxfp4Experts, check
from milepost.kernels.grouped_experts.cpu_few import dense_few, packed_few
from milepost.kernels.jit import Array, arrays
from milepost.kernels.mxfp4.cpu import dequantize, tables
from milepost.kernels.precision import compute_dtype

__all__ = ["grouped_experts"]

_FEW_TOKENS = 16
"""Up to this many tokens the compiled loops beat a matrix product per expert."""

_Matrices = tuple[ExpertWeights, ExpertWeights, ExpertWeights]  # w1, w3, w2


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
    check(x, ids, weights, w1, w3, w2, activation, gate_cap, up_cap)
    dtype = compute_dtype(x.dtype)
    wide = x.to(dtype).contiguous()
    # Choices [tokens * top_k] in order of their expert; stable, so each sum's order is fixed.
    order = ids.flatten().argsort(stable=True)
    counts: list[int] = torch.bincount(ids.flatten(), minlength=w1.shape[0]).tolist()
    touched = [(expert, count) for expert, count in enumerate(counts) if count]
    matrices = (w1, w3, w2)
    if x.shape[0] <= _FEW_TOKENS and (_all_packed(matrices) or _all_dense(matrices, dtype)):
        choices = _few(wide, order, touched, matrices, activation, gate_cap, up_cap, ids.shape[1])
        return (choices.view(*ids.shape, x.shape[1]) * weights.to(dtype)[..., None]).sum(1).to(x.dtype)
    out = torch.zeros(x.shape, dtype=dtype)
    tokens = order // ids.shape[1]
    shares = weights.to(dtype).flatten()[order]
    begin = 0
    for expert, count in touched:
        part = slice(begin, begin + count)
        begin += count
        inputs = wide[tokens[part]]
        gate = functional.linear(inputs, _matrix(w1, expert, dtype))
        up = functional.linear(inputs, _matrix(w3, expert, dtype))
        hidden = gated_activation(gate, up, activation, gate_cap, up_cap).mul_(shares[part, None])
        out.index_add_(0, tokens[part], functional.linear(hidden, _matrix(w2, expert, dtype)))
    return out.to(x.dtype)


def _all_packed(matrices: _Matrices) -> TypeGuard[tuple[Mxfp4Experts, Mxfp4Experts, Mxfp4Experts]]:
    """Whether all three are packed."""
    return all(isinstance(weights, Mxfp4Experts) for weights in matrices)


def _all_dense(
    matrices: _Matrices, dtype: torch.dtype
) -> TypeGuard[tuple[DenseExperts, DenseExperts, DenseExperts]]:
    """Whether all three are dense and of the dtype computed in."""
    return all(isinstance(weights, DenseExperts) and weights.weight.dtype == dtype for weights in matrices)


def _few(
    x: Tensor,
    order: Tensor,
    touched: list[tuple[int, int]],
    matrices: _Matrices,
    activation: str,
    gate_cap: float,
    up_cap: float,
    top_k: int,
) -> Tensor:
    """Each choice's result before its weight, [tokens * top_k, width]."""
    out = x.new_empty(order.shape[0], x.shape[1])
    experts = torch.tensor([expert for expert, _ in touched], dtype=torch.int64)
    offsets = torch.tensor([0, *(count for _, count in touched)]).cumsum(0)
    w1 = matrices[0]
    work = 3 * len(touched) * w1.shape[1] * w1.shape[2]
    head: list[Array | float] = [*arrays(x, order, experts, offsets), top_k]
    tail: list[Array | float] = [int(activation == "situ"), gate_cap, up_cap, *arrays(out)]
    if _all_packed(matrices):
        packed = [part for weights in matrices for part in (weights.packed, weights.scale)]
        packed_few(work, *head, *arrays(*packed, *tables(x.dtype)), *tail)
    elif _all_dense(matrices, x.dtype):
        dense_few(work, *head, *arrays(*(weights.weight for weights in matrices)), *tail)
    return out


def _matrix(weights: ExpertWeights, expert: int, dtype: torch.dtype) -> Tensor:
    """One expert's [out, in]."""
    if isinstance(weights, Mxfp4Experts):
        return dequantize(weights.packed[expert], weights.scale[expert], dtype)
    return weights.matrix(expert, dtype)
