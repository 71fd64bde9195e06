"""KDA's log-space decay per token, head and key channel, in both families' forms, and beta.

    K3:           g = lower_bound * sigmoid(exp(a_log) * (z + dt_bias))      in (lower_bound, 0)
    Kimi-Linear:  g = -exp(a_log) * softplus(z + dt_bias)                    unbounded below
    both:         beta = sigmoid(b)

Kimi K3 technical report, section 2.1.1.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from milepost.kernels.checks import check_shape

__all__ = ["KdaGate", "check"]


class KdaGate(Protocol):
    """Turn the gate's projections into the log of the state's decay and the weight of its corrections."""

    def __call__(
        self, z: Tensor, b: Tensor, dt_bias: Tensor, a_log: Tensor, lower_bound: float | None
    ) -> tuple[Tensor, Tensor]:
        """Compute the gate and beta.

        Args:
            z: [tokens, heads, dim].
            b: [tokens, heads].
            dt_bias: [heads * dim].
            a_log: [heads], cut to the heads of this rank.
            lower_bound: K3's bound (-5.0), or None for Kimi-Linear's softplus form.

        Returns:
            g [tokens, heads, dim], at most 0, and beta [tokens, heads] in (0, 1), both float32 (float64 for
            float64 inputs): a beta below float32 costs measurable accuracy on the real model.
        """
        ...


def check(z: Tensor, b: Tensor, dt_bias: Tensor, a_log: Tensor) -> None:
    """Check shapes; see `KdaGate`.

    Raises:
        InvariantError: the shapes don't fit each other.
    """
    check_shape("kda_gate", "z", z, None, a_log.shape[0], None)
    check_shape("kda_gate", "b", b, z.shape[0], a_log.shape[0])
    check_shape("kda_gate", "dt_bias", dt_bias, z.shape[1] * z.shape[2])
    check_shape("kda_gate", "a_log", a_log, None)
