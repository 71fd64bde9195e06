"""KDA's output norm: RMSNorm over each head, times the sigmoid of the output gate.

    y = o * rsqrt(mean(o^2) + eps) * weight * sigmoid(gate)          sigmoid, not SiLU

Kimi K3 technical report, section 2.1.1.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from milepost.kernels.checks import check_shape

__all__ = ["GatedHeadNorm", "check"]


class GatedHeadNorm(Protocol):
    """Norm each head's output and gate it."""

    def __call__(self, o: Tensor, gate: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Compute the gated norm.

        Args:
            o: [tokens, heads, dim].
            gate: [tokens, heads, dim], before the sigmoid.
            weight: [dim], shared by all heads.
            eps: added to the mean square.

        Returns:
            [tokens, heads, dim] in o's dtype, computed in at least float32.
        """
        ...


def check(o: Tensor, gate: Tensor, weight: Tensor) -> None:
    """Check shapes; see `GatedHeadNorm`.

    Raises:
        InvariantError: the shapes don't fit each other.
    """
    check_shape("gated_head_norm", "o", o, None, None, None)
    check_shape("gated_head_norm", "gate", gate, *o.shape)
    check_shape("gated_head_norm", "weight", weight, o.shape[-1])
