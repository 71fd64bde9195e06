"""MLA attention, unabsorbed: every cached row is expanded to its heads' keys and values."""

from __future__ import annotations

import torch
from torch import Tensor

from milepost.kernels.matrix import Matrix
from milepost.kernels.mla_attention import check
from milepost.kernels.paging import PagedKv, Ragged
from milepost.kernels.precision import compute_dtype

__all__ = ["mla_attention"]


def mla_attention(
    q: Tensor, k_b: Matrix, v_b: Matrix, gate: Tensor | None, kv: PagedKv, layer: int, ragged: Ragged
) -> Tensor:
    """See `milepost.kernels.mla_attention.MlaAttention`."""
    dims = check(q, k_b, v_b, gate, kv, layer, ragged)
    dtype = compute_dtype(q.dtype)
    scale = (dims.nope + dims.rope) ** -0.5
    to_keys = torch.stack([k_b.dense(dtype, head) for head in range(dims.heads)])  # [heads, lora, nope]
    to_values = torch.stack([v_b.dense(dtype, head) for head in range(dims.heads)])  # [heads, v, lora]
    out = torch.empty(q.shape[0], dims.heads, dims.v, dtype=dtype)
    for row, start in enumerate(ragged.start_list):
        begin, end = ragged.offsets[row], ragged.offsets[row + 1]
        rows = _written_rows(kv, layer, row, start + end - begin).to(dtype)  # [positions, row_dim]
        c, k_pe = rows[:, : dims.lora], rows[:, dims.lora :]
        k_nope = torch.einsum("pl,hln->hpn", c, to_keys)
        v = torch.einsum("pl,hvl->hpv", c, to_values)
        k = torch.cat([k_nope, k_pe.expand(dims.heads, -1, -1)], dim=-1)  # [heads, positions, nope + rope]
        for t in range(begin, end):
            seen = start + t - begin + 1
            scores = torch.einsum("hd,hpd->hp", q[t].to(dtype), k[:, :seen]) * scale
            out[t] = torch.einsum("hp,hpv->hv", scores.softmax(-1), v[:, :seen])
    mixed = out.flatten(1)
    if gate is not None:
        mixed = mixed * gate.to(dtype).sigmoid()
    return mixed.to(q.dtype)


def _written_rows(kv: PagedKv, layer: int, row: int, num_tokens: int) -> Tensor:
    """The cached rows at positions 0 .. num_tokens - 1 of one sequence, [num_tokens, row_dim]."""
    positions = torch.arange(num_tokens)
    pages = kv.block_table[row, positions // kv.block_size]
    return kv.cache[pages, layer, positions % kv.block_size]
