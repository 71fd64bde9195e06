"""Which rows are finite: a state or a hidden row that went bad must never be drawn from or published."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from milepost.kernels.checks import check_ragged, check_shape
from milepost.kernels.paging import Ragged

__all__ = ["FiniteRows", "check"]


class FiniteRows(Protocol):
    """Look for NaN and infinities."""

    def __call__(self, x: Tensor, ragged: Ragged | None = None) -> Tensor:
        """Look.

        Args:
            x: [tokens, dim], float.
            ragged: which tokens belong to which row; None: each is a row of its own.

        Returns:
            [rows] bool, whether all of a row's tokens hold finite numbers only.
        """
        ...


def check(x: Tensor, ragged: Ragged | None) -> None:
    """Check shapes; see `FiniteRows`.

    Raises:
        InvariantError: they don't fit each other.
    """
    check_shape("finite_rows", "x", x, None, None)
    if ragged is not None:
        check_ragged("finite_rows", x.shape[0], ragged)
