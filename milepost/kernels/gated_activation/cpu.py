"""Gated activations with few passes over memory."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from milepost.kernels.gated_activation import check
from milepost.kernels.precision import compute_dtype

__all__ = ["gated_activation"]


def gated_activation(gate: Tensor, up: Tensor, name: str, gate_cap: float, up_cap: float) -> Tensor:
    """See `milepost.kernels.gated_activation.GatedActivation`."""
    check(gate, up, name, gate_cap, up_cap)
    dtype = compute_dtype(gate.dtype)
    g, u = gate.to(dtype), up.to(dtype)
    if name == "silu":
        return functional.silu(g).mul_(u).to(gate.dtype)
    capped_gate = torch.mul(g, 1.0 / gate_cap).tanh_().mul_(torch.sigmoid(g))
    capped_up = torch.mul(u, 1.0 / up_cap).tanh_()
    return capped_gate.mul_(capped_up).mul_(gate_cap * up_cap).to(gate.dtype)
