"""Products with a weight matrix: y = x W^T, in whatever format the weights are stored."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from milepost.errors import InvariantError
from milepost.kernels.checks import check_shape
from milepost.kernels.matrix import Matrix

__all__ = ["Linear", "check"]


class Linear(Protocol):
    """Multiply rows by a matrix, or each item of a batch of rows by its own."""

    def __call__(self, x: Tensor, matrix: Matrix, onto: Tensor | None = None) -> Tensor:
        """Multiply.

        Args:
            x: [tokens, in], or [tokens, batch, in] for a batch of matrices; the last dimension contiguous.
            matrix: [out, in] or [batch, out, in].
            onto: shaped like the result; the product is added to it in place.

        Returns:
            [tokens, out], or [tokens, batch, out]; sums are at least float32. `onto`, if given.
        """
        ...


def check(x: Tensor, matrix: Matrix, onto: Tensor | None = None) -> None:
    """Check shapes; see `Linear`.

    Raises:
        InvariantError: the shapes don't fit each other.
    """
    batch, out, inputs = matrix.shape
    fits = x.shape[1:] == (inputs,) and batch == 1 if x.ndim == 2 else x.shape[1:] == (batch, inputs)
    if not fits:
        raise InvariantError(
            f"linear: x must be [tokens, {inputs}] or [tokens, {batch}, {inputs}] for a matrix of "
            f"{[batch, out, inputs]}. Given: {list(x.shape)}."
        )
    if onto is not None:
        check_shape("linear", "onto", onto, *x.shape[:-1], out)
