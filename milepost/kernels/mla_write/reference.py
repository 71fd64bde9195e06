"""MLA row write, token by token."""

from __future__ import annotations

import torch
from torch import Tensor

from milepost.kernels.mla_write import check
from milepost.kernels.paging import PagedKv, Ragged
from milepost.kernels.rms_norm.reference import rms_norm

__all__ = ["mla_write"]


def mla_write(
    latent: Tensor, k_pe: Tensor, weight: Tensor, eps: float, kv: PagedKv, layer: int, ragged: Ragged
) -> None:
    """See `milepost.kernels.mla_write.MlaWrite`."""
    check(latent, k_pe, weight, kv, layer, ragged)
    rows = torch.cat([rms_norm(latent, weight, eps), k_pe], dim=-1)  # [tokens, row_dim]
    for row, start in enumerate(ragged.start_list):
        begin = ragged.offsets[row]
        for t in range(begin, ragged.offsets[row + 1]):
            position = start + t - begin
            page = kv.block_table[row, position // kv.block_size]
            kv.cache[page, layer, position % kv.block_size] = rows[t].to(kv.cache.dtype)
