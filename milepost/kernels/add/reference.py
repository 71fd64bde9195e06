"""Adding in plain torch."""

from __future__ import annotations

from torch import Tensor

from milepost.kernels.add import check

__all__ = ["add"]


def add(x: Tensor, delta: Tensor) -> None:
    """See `milepost.kernels.add.Add`."""
    check(x, delta)
    x.add_(delta)
