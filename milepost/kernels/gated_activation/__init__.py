"""The gated activation of feed-forward networks.

    silu:  silu(gate) * up                                                        SwiGLU
    situ:  [gate_cap * tanh(gate / gate_cap) * sigmoid(gate)] * [up_cap * tanh(up / up_cap)]

Kimi K3 technical report, equations 11-13.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from milepost.errors import InvariantError
from milepost.kernels.checks import check_shape

__all__ = ["ACTIVATIONS", "GatedActivation", "check"]

ACTIVATIONS = ("silu", "situ")


class GatedActivation(Protocol):
    """Combine a gate with what it gates."""

    def __call__(self, gate: Tensor, up: Tensor, name: str, gate_cap: float, up_cap: float) -> Tensor:
        """Apply the activation.

        Args:
            gate: [tokens, dim]; rows may be views into something wider.
            up: [tokens, dim], likewise.
            name: "silu" or "situ".
            gate_cap: soft cap of the gate, used by situ only.
            up_cap: soft cap of up, used by situ only.

        Returns:
            [tokens, dim] in gate's dtype, computed in at least float32.
        """
        ...


def check(gate: Tensor, up: Tensor, name: str, gate_cap: float, up_cap: float) -> None:
    """Check the name, the caps and the shapes; see `GatedActivation`.

    Raises:
        InvariantError: the name is unknown, a cap isn't above 0, or the shapes differ.
    """
    check_shape("gated_activation", "up", up, *gate.shape)
    if name not in ACTIVATIONS:
        raise InvariantError(f"gated_activation: name must be one of {ACTIVATIONS}. Given: {name!r}.")
    if name == "situ" and not (gate_cap > 0 and up_cap > 0):
        raise InvariantError(f"gated_activation: situ's caps must be > 0. Given: {gate_cap} and {up_cap}.")
