"""RMSNorm over the last dim: ``x * rsqrt(mean(x^2) + eps) * weight``."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from milepost.kernels.checks import check_shape

__all__ = ["RmsNorm", "check"]


class RmsNorm(Protocol):
    """Scale each vector to root mean square 1, then by the weight."""

    def __call__(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Norm the last dim.

        Args:
            x: [..., dim].
            weight: [dim].
            eps: added to the mean square.

        Returns:
            [..., dim] in x's dtype, computed in at least float32.
        """
        ...


def check(x: Tensor, weight: Tensor) -> None:
    """Check shapes; see `RmsNorm`.

    Raises:
        InvariantError: the shapes don't fit each other.
    """
    check_shape("rms_norm", "weight", weight, x.shape[-1])
