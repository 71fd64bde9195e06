"""Look-up of rows in plain torch."""

from __future__ import annotations

from torch import Tensor

from milepost.kernels.embedding import check

__all__ = ["embedding"]


def embedding(token_ids: Tensor, table: Tensor) -> Tensor:
    """See `milepost.kernels.embedding.Embedding`."""
    check(token_ids, table)
    unknown = (token_ids < 0) | (token_ids >= table.shape[0])
    rows = table[token_ids.masked_fill(unknown, 0)]
    return rows.masked_fill_(unknown[:, None], float("nan"))
