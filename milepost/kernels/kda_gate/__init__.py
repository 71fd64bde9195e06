"""KDA's log-space decay per token, head and key channel, in both families' forms.

    K3:           g = lower_bound * sigmoid(exp(a_log) * z)      in (lower_bound, 0)
    Kimi-Linear:  g = -exp(a_log) * softplus(z)                  unbounded below

Kimi K3 technical report, section 2.1.1.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from milepost.kernels.checks import check_shape

__all__ = ["KdaGate", "check"]


class KdaGate(Protocol):
    """Turn the gate projection into the log of the state's decay."""

    def __call__(self, z: Tensor, a_log: Tensor, lower_bound: float | None) -> Tensor:
        """Compute the gate.

        Args:
            z: [tokens, heads, dim], dt_bias already added.
            a_log: [heads], cut to the heads of this rank.
            lower_bound: K3's bound (-5.0), or None for Kimi-Linear's softplus form.

        Returns:
            g: [tokens, heads, dim], at most 0, float32 (float64 for float64 inputs).
        """
        ...


def check(z: Tensor, a_log: Tensor) -> None:
    """Check shapes; see `KdaGate`.

    Raises:
        InvariantError: the shapes don't fit each other.
    """
    check_shape("kda_gate", "z", z, None, a_log.shape[0], None)
    check_shape("kda_gate", "a_log", a_log, None)
