"""Gated activations, as their formulas."""

from __future__ import annotations

import torch
from torch import Tensor

from milepost.kernels.gated_activation import check
from milepost.kernels.precision import compute_dtype

__all__ = ["gated_activation"]


def gated_activation(gate: Tensor, up: Tensor, name: str, gate_cap: float, up_cap: float) -> Tensor:
    """See `milepost.kernels.gated_activation.GatedActivation`."""
    check(gate, up, name, gate_cap, up_cap)
    dtype = compute_dtype(gate.dtype)
    g, u = gate.to(dtype), up.to(dtype)
    if name == "situ":
        capped = gate_cap * torch.tanh(g / gate_cap) * torch.sigmoid(g)
        return (capped * (up_cap * torch.tanh(u / up_cap))).to(gate.dtype)
    return (g * torch.sigmoid(g) * u).to(gate.dtype)
