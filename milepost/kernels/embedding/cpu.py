"""Look-up of rows for CPUs."""

from __future__ import annotations

from torch import Tensor

from milepost.kernels.embedding import check
from milepost.kernels.native import address, empty, float_type, native

__all__ = ["embedding"]


def embedding(token_ids: Tensor, table: Tensor) -> Tensor:
    """See `milepost.kernels.embedding.Embedding`; the table is float32 or bfloat16."""
    check(token_ids, table)
    (tokens,), (vocab, dim) = token_ids.shape, table.shape
    out = empty(tokens, dim)
    native.embedding(
        address("embedding", "token_ids", token_ids),
        address("embedding", "table", table),
        float_type("embedding", "table", table),
        vocab,
        dim,
        tokens,
        out.data_ptr(),
    )
    return out
