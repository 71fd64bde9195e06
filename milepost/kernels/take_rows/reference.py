"""Gathering rows in plain torch."""

from __future__ import annotations

from torch import Tensor

from milepost.kernels.take_rows import check

__all__ = ["take_rows"]


def take_rows(x: Tensor, index: Tensor) -> Tensor:
    """See `milepost.kernels.take_rows.TakeRows`."""
    check(x, index)
    return x[index]
