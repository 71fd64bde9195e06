"""The router in one call: the scores' product, then each token's best by insertion."""

from __future__ import annotations

import torch
from torch import Tensor

from milepost.kernels.matrix import Matrix
from milepost.kernels.native import empty, floats, native
from milepost.kernels.native.packed import pack
from milepost.kernels.route import check

__all__ = ["route"]


def route(
    hidden: Tensor, gate_weight: Matrix, bias: Tensor, top_k: int, renormalize: bool, scaling: float
) -> tuple[Tensor, Tensor]:
    """See `milepost.kernels.route.Route`; hidden and bias are float32. An unpacked matrix is packed first."""
    check(hidden, gate_weight, bias, top_k)
    packed = pack(gate_weight)
    tokens, (_, experts, _) = hidden.shape[0], packed.shape
    scores = empty(tokens, -(-experts // native.PANEL) * native.PANEL)
    ids, weights = empty(tokens, top_k, dtype=torch.int64), empty(tokens, top_k)
    native.route(
        packed.handle,
        floats("route", "bias", bias),
        floats("route", "hidden", hidden),
        hidden.stride(0),
        tokens,
        top_k,
        renormalize,
        scaling,
        scores.data_ptr(),
        ids.data_ptr(),
        weights.data_ptr(),
    )
    return ids, weights
