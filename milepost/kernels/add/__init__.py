"""Adding to a running sum, in place."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from milepost.kernels.checks import check_shape

__all__ = ["Add", "check"]


class Add(Protocol):
    """Add one tensor to another."""

    def __call__(self, x: Tensor, delta: Tensor) -> None:
        """Add.

        Args:
            x: [tokens, dim], overwritten with the sum.
            delta: [tokens, dim], no part of x's memory.
        """
        ...


def check(x: Tensor, delta: Tensor) -> None:
    """Check shapes; see `Add`.

    Raises:
        InvariantError: they don't fit each other.
    """
    check_shape("add", "x", x, None, None)
    check_shape("add", "delta", delta, *x.shape)
