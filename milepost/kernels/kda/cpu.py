"""KDA for CPUs: single tokens step in place on their tiles, longer rows go chunk by chunk."""

from __future__ import annotations

import torch
from torch import Tensor

from milepost.kernels.jit import arrays
from milepost.kernels.kda import L2_EPS, check, head_tiles
from milepost.kernels.kda.cpu_chunk import chunk_rows
from milepost.kernels.kda.cpu_plan import Plan, plan_rows
from milepost.kernels.kda.cpu_step import step_tiles
from milepost.kernels.paging import PagedState, Ragged

__all__ = ["kda"]

_SLAB_ELEMENTS = 1 << 19
"""Elements of one [tokens, heads, dim] tensor of a slab: 2 MB, so that a dozen stay in a last-level cache."""


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
    plan = plan_rows(ragged, _SLAB_ELEMENTS // (heads * dim), state.snapshots)
    if plan.chunk_rows.numel() == 0:
        out = _step(q, k, v, g, beta, state, state.table, first_tile, ragged.starts == 0)
        _leave_steps(state, first_tile, heads * head_tiles(state), plan)
        return out.to(q.dtype)
    out = torch.empty(q.shape, dtype=state.recurrent.dtype)
    if plan.step_rows.numel():
        at = plan.step_tokens
        fresh = ragged.starts[plan.step_rows] == 0
        table = state.table[plan.step_rows]
        out[at] = _step(q[at], k[at], v[at], g[at], beta[at], state, table, first_tile, fresh)
        _leave_steps(state, first_tile, heads * head_tiles(state), plan)
    _chunks(q, k, v, g, beta, state, first_tile, ragged, plan, out)
    return out.to(q.dtype)


def _step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    state: PagedState,
    table: Tensor,
    first_tile: int,
    fresh: Tensor,
) -> Tensor:
    """One token of each of `table`'s rows."""
    dtype = state.recurrent.dtype
    rows, heads, dim = q.shape
    q, k = q.to(dtype), k.to(dtype)
    q = q * (torch.rsqrt(q.square().sum(-1, keepdim=True) + L2_EPS) * dim**-0.5)
    k = k * torch.rsqrt(k.square().sum(-1, keepdim=True) + L2_EPS)
    o = torch.empty(q.shape, dtype=dtype)
    tiles, pages, fresh_rows = arrays(state.recurrent, table.contiguous(), fresh)
    operands = arrays(*(x.to(dtype).contiguous() for x in (q, k, v, g.to(dtype).exp(), beta)), o)
    work = rows * heads * dim * dim
    step_tiles(work, tiles, pages, state.tiles_per_page, first_tile, fresh_rows, *operands)
    return o


def _leave_steps(state: PagedState, first_tile: int, num_tiles: int, plan: Plan) -> None:
    """Copy the new states of rows of one token to their snapshots."""
    if plan.step_leaves.numel():
        sources = state.tile_ids(first_tile, num_tiles)[plan.step_leaves]  # [leaving, tiles]
        targets = state.snapshot_tile_ids(first_tile, num_tiles)[plan.step_snapshots]
        state.recurrent[targets] = state.recurrent[sources]


def _chunks(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    state: PagedState,
    first_tile: int,
    ragged: Ragged,
    plan: Plan,
    out: Tensor,
) -> None:
    """The plan's longer rows: gather their states, run the chunks, write the states back."""
    _, heads, dim = q.shape
    tiles = state.tile_ids(first_tile, heads * head_tiles(state))[plan.chunk_rows]  # [chunked, tiles]
    matrices = state.recurrent[tiles].view(-1, heads, dim, dim)  # a copy, [chunked, heads, v, k]
    matrices[ragged.starts[plan.chunk_rows] == 0] = 0.0  # whatever lies in a fresh page is never read
    snapshot_tiles = state.snapshot_tile_ids(first_tile, tiles.shape[1])  # [snapshots, tiles]

    def leave(number: int, left: Tensor) -> None:
        state.recurrent.index_copy_(0, snapshot_tiles[number], left.view(-1, *state.recurrent.shape[1:]))

    chunk_rows(q, k, v, g, beta, matrices, plan, out, leave)
    state.recurrent[tiles] = matrices.view(*tiles.shape, *state.recurrent.shape[1:])
