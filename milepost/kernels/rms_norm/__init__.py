"""RMSNorm of rows: ``x * rsqrt(mean(x^2) + eps) * weight``."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from milepost.kernels.checks import check_shape

__all__ = ["RmsNorm", "check"]


class RmsNorm(Protocol):
    """Scale each row to root mean square 1, then by the weight."""

    def __call__(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Norm the rows.

        Args:
            x: [tokens, dim]; rows may lie apart, as in a part of a fused projection.
            weight: [dim].
            eps: added to the mean square.

        Returns:
            [tokens, dim] in x's dtype, computed in at least float32.
        """
        ...


def check(x: Tensor, weight: Tensor) -> None:
    """Check shapes; see `RmsNorm`.

    Raises:
        InvariantError: the shapes don't fit each other.
    """
    check_shape("rms_norm", "x", x, None, None)
    check_shape("rms_norm", "weight", weight, x.shape[1])
