"""The rows of a table that stand for a step's tokens."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from milepost.errors import InvariantError
from milepost.kernels.checks import check_shape

__all__ = ["Embedding", "check"]


class Embedding(Protocol):
    """Look tokens up."""

    def __call__(self, token_ids: Tensor, table: Tensor) -> Tensor:
        """Look up.

        Args:
            token_ids: [tokens] int64.
            table: [vocab, dim].

        Returns:
            [tokens, dim]: float32 by ``cpu``, the table's dtype by ``reference``. An id that the table
            does not have gives a row of NaN: whoever computes on with it can't mistake it for a token.
        """
        ...


def check(token_ids: Tensor, table: Tensor) -> None:
    """Check shapes and the ids' dtype; see `Embedding`.

    Raises:
        InvariantError: they don't fit.
    """
    check_shape("embedding", "token_ids", token_ids, None)
    check_shape("embedding", "table", table, None, None)
    if token_ids.dtype != torch.int64:
        raise InvariantError(f"embedding: token_ids must be int64. Given: {token_ids.dtype}.")
