"""Routed experts, one token and one expert at a time."""

from __future__ import annotations

import torch
from torch import Tensor

from milepost.kernels.gated_activation.reference import gated_activation
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
    out = torch.zeros(x.shape, dtype=dtype)
    for t, chosen in enumerate(ids.tolist()):
        token = x[t].to(dtype)
        for i, expert in enumerate(chosen):
            gate = w1.dense(dtype, expert) @ token
            up = w3.dense(dtype, expert) @ token
            hidden = gated_activation(gate, up, activation, gate_cap, up_cap)
            out[t] += weights[t, i].to(dtype) * (w2.dense(dtype, expert) @ hidden)
    return out.to(x.dtype)
