"""MLA attention, unabsorbed: every cached row is expanded to its heads' keys and values."""

from __future__ import annotations

import torch
from torch import Tensor

from milepost.kernels.mla_attention import check
from milepost.kernels.paging import PagedKv, Ragged
from milepost.kernels.precision import compute_dtype

__all__ = ["mla_attention"]


def mla_attention(q: Tensor, kv_b: Tensor, kv: PagedKv, layer: int, ragged: Ragged) -> Tensor:
    """See `milepost.kernels.mla_attention.MlaAttention`."""
    dims = check(q, kv_b, kv, layer, ragged)
    dtype = compute_dtype(q.dtype)
    scale = (dims.nope + dims.rope) ** -0.5
    out = torch.empty(q.shape[0], dims.heads, dims.v, dtype=dtype)
    for row, start in enumerate(ragged.start_list):
        begin, end = ragged.offsets[row], ragged.offsets[row + 1]
        rows = _written_rows(kv, layer, row, start + end - begin).to(dtype)  # [positions, row_dim]
        c, k_pe = rows[:, : dims.lora], rows[:, dims.lora :]
        expanded = torch.einsum("pl,hnl->hpn", c, kv_b.to(dtype))  # [heads, positions, nope + v]
        k_nope, v = expanded[..., : dims.nope], expanded[..., dims.nope :]
        k = torch.cat([k_nope, k_pe.expand(dims.heads, -1, -1)], dim=-1)  # [heads, positions, nope + rope]
        for t in range(begin, end):
            seen = start + t - begin + 1
            scores = torch.einsum("hd,hpd->hp", q[t].to(dtype), k[:, :seen]) * scale
            out[t] = torch.einsum("hp,hpv->hv", scores.softmax(-1), v[:, :seen])
    return out.to(q.dtype)


def _written_rows(kv: PagedKv, layer: int, row: int, num_tokens: int) -> Tensor:
    """The cached rows at positions 0 .. num_tokens - 1 of one sequence, [num_tokens, row_dim]."""
    positions = torch.arange(num_tokens)
    pages = kv.block_table[row, positions // kv.block_size]
    return kv.cache[pages, layer, positions % kv.block_size]
