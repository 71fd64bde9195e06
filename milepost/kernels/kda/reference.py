"""KDA as the recurrence that defines it, one token at a time."""

from __future__ import annotations

import torch
from torch import Tensor

from milepost.kernels.kda import L2_EPS, check, head_tiles
from milepost.kernels.paging import PagedState, Ragged

__all__ = ["kda"]


def kda(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    state: PagedState,
    first_tile: int,
    ragged: Ragged,
) -> Tensor:
    """See `milepost.kernels.kda.Kda`."""
    check(q, k, v, g, beta, state, first_tile, ragged)
    _, heads, dim = q.shape
    dtype = state.recurrent.dtype
    num_tiles = heads * head_tiles(state)
    tiles = state.tile_ids(first_tile, num_tiles)  # [rows, num_tiles]
    snapshot_tiles = state.snapshot_tile_ids(first_tile, num_tiles)  # [snapshots, num_tiles]
    o = torch.empty(q.shape, dtype=dtype)
    for row, start in enumerate(ragged.start_list):
        wanted = {} if state.snapshots is None else {end: i for i, end in state.snapshots.of_row(row)}
        if start > 0:
            s = state.recurrent[tiles[row]].reshape(heads, dim, dim)  # [heads, v, k]
        else:
            s = torch.zeros(heads, dim, dim, dtype=dtype)
        for t in range(ragged.offsets[row], ragged.offsets[row + 1]):
            q_t, k_t, v_t, g_t, beta_t = (x[t].to(dtype) for x in (q, k, v, g, beta))
            o[t], s = _step(q_t, k_t, v_t, g_t, beta_t, s)
            if t + 1 in wanted:
                state.recurrent[snapshot_tiles[wanted[t + 1]]] = s.reshape(-1, *state.recurrent.shape[1:])
        state.recurrent[tiles[row]] = s.reshape(-1, *state.recurrent.shape[1:])
    return o.to(q.dtype)


def _step(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
    """One token of all heads: q, k, v, g [heads, dim], beta [heads], s [heads, v, k] -> o, new s."""
    q = q * torch.rsqrt((q * q).sum(-1, keepdim=True) + L2_EPS) * q.shape[-1] ** -0.5
    k = k * torch.rsqrt((k * k).sum(-1, keepdim=True) + L2_EPS)
    s = s * g.exp()[:, None, :]
    c = beta[:, None] * (v - torch.einsum("hvk,hk->hv", s, k))
    s = s + c[:, :, None] * k[:, None, :]
    return torch.einsum("hvk,hk->hv", s, q), s
