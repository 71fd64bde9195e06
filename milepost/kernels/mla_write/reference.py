"""MLA row write, token by token."""

from __future__ import annotations

from torch import Tensor

from milepost.kernels.mla_write import check
from milepost.kernels.paging import PagedKv, Ragged

__all__ = ["mla_write"]


def mla_write(rows: Tensor, kv: PagedKv, layer: int, ragged: Ragged) -> None:
    """See `milepost.kernels.mla_write.MlaWrite`."""
    check(rows, kv, layer, ragged)
    for row, start in enumerate(ragged.start_list):
        begin = ragged.offsets[row]
        for t in range(begin, ragged.offsets[row + 1]):
            position = start + t - begin
            page = kv.block_table[row, position // kv.block_size]
            kv.cache[page, layer, position % kv.block_size] = rows[t].to(kv.cache.dtype)
