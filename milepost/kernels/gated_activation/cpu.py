"""Gated activations in one pass over memory."""

from __future__ import annotations

from torch import Tensor

from milepost.kernels.gated_activation import check
from milepost.kernels.native import empty, floats, native

__all__ = ["gated_activation"]


def gated_activation(gate: Tensor, up: Tensor, name: str, gate_cap: float, up_cap: float) -> Tensor:
    """See `milepost.kernels.gated_activation.GatedActivation`; gate and up are float32 [tokens, dim]."""
    check(gate, up, name, gate_cap, up_cap)
    rows, dim = gate.shape
    y = empty(rows, dim)
    native.gated_activation(
        floats("gated_activation", "gate", gate),
        gate.stride(0),
        floats("gated_activation", "up", up),
        up.stride(0),
        y.data_ptr(),
        dim,
        rows,
        dim,
        name == "situ",
        gate_cap,
        up_cap,
    )
    return y
