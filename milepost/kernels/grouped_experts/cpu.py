"""Routed experts for CPUs: choices sorted by expert, and each touched expert's weights walked once."""

from __future__ import annotations

import torch
from torch import Tensor

from milepost.errors import InvariantError
from milepost.kernels.grouped_experts import check
from milepost.kernels.matrix import Matrix
from milepost.kernels.native import address, contiguous_floats, empty, floats, native
from milepost.kernels.native.packed import pack

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
    """See `milepost.kernels.grouped_experts.GroupedExperts`; x and weights are float32.

    Unpacked matrices are packed first. A token's experts are added up by ascending id. A token with an
    id that no expert has gets NaN.
    """
    check(x, ids, weights, w1, w3, w2, activation, gate_cap, up_cap)
    if ids.dtype != torch.int64:
        raise InvariantError(f"grouped_experts: ids must be int64. Given: {ids.dtype}.")
    gate, up, down = pack(w1), pack(w3), pack(w2)
    experts, intermediate, _ = gate.shape
    tokens, top_k = ids.shape
    out = empty(tokens, x.shape[1])
    num_choices = tokens * top_k
    order, ends = empty(num_choices, dtype=torch.int64), empty(experts, dtype=torch.int64)
    blocks = empty(experts + num_choices // native.LEAST_BLOCK_ROWS, dtype=torch.int64)
    hidden = empty(num_choices, -(-intermediate // native.PANEL) * native.PANEL)
    native.grouped_experts(
        gate.handle,
        up.handle,
        down.handle,
        floats("grouped_experts", "x", x),
        x.stride(0),
        address("grouped_experts", "ids", ids),
        contiguous_floats("grouped_experts", "weights", weights),
        tokens,
        top_k,
        activation == "situ",
        gate_cap,
        up_cap,
        out.data_ptr(),
        out.shape[1],
        order.data_ptr(),
        ends.data_ptr(),
        blocks.data_ptr(),
        hidden.data_ptr(),
    )
    return out
