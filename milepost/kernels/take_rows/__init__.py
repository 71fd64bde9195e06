"""Some rows of a tensor, as a tensor of their own."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from milepost.errors import InvariantError
from milepost.kernels.checks import check_shape

__all__ = ["TakeRows", "check"]


class TakeRows(Protocol):
    """Gather rows."""

    def __call__(self, x: Tensor, index: Tensor) -> Tensor:
        """Gather.

        Args:
            x: [tokens, dim].
            index: [rows] int64, each a row of x: the caller has seen to that, it is not checked here.

        Returns:
            [rows, dim] in x's dtype.
        """
        ...


def check(x: Tensor, index: Tensor) -> None:
    """Check shapes and the index's dtype; see `TakeRows`.

    Raises:
        InvariantError: they don't fit.
    """
    check_shape("take_rows", "x", x, None, None)
    check_shape("take_rows", "index", index, None)
    if index.dtype != torch.int64:
        raise InvariantError(f"take_rows: index must be int64. Given: {index.dtype}.")
