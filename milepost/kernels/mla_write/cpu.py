"""MLA row write, all tokens at once."""

from __future__ import annotations

from torch import Tensor

from milepost.kernels.mla_write import check
from milepost.kernels.paging import PagedKv, Ragged

__all__ = ["mla_write"]


def mla_write(rows: Tensor, kv: PagedKv, layer: int, ragged: Ragged) -> None:
    """See `milepost.kernels.mla_write.MlaWrite`."""
    check(rows, kv, layer, ragged)
    positions = ragged.positions()
    pages = kv.block_table[ragged.row_ids(), positions // kv.block_size]  # [tokens]
    kv.cache[pages, layer, positions % kv.block_size] = rows.to(kv.cache.dtype)
