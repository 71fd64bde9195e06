"""KDA over chunks: everything inside a chunk as matrix products, one state update per chunk.

With a_t = exp(g_t), P_i the product of a over tokens 0..i of a chunk and S the state before it
([k, v] here), the recurrence of `milepost.kernels.kda` unrolls to

    L_ij = beta_i sum_d k_i k_j a_{j+1}..a_i      i > j
    A_ij =        sum_d q_i k_j a_{j+1}..a_i      i >= j
    C    = (I + L)^-1 diag(beta) (V - (P K) S)    the corrections
    O    = (P Q) S + A C
    S'   = diag(P_last) S + (K a_{j+1}..a_last)^T C

(Kimi K3 technical report, section 2.1.1; C is the report's U - W S, solved for once S is known.)
What doesn't depend on S is computed for many chunks at once, in `milepost.kernels.kda.cpu_inner`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from milepost.kernels.jit import arrays
from milepost.kernels.kda import L2_EPS
from milepost.kernels.kda.cpu_inner import inner
from milepost.kernels.kda.cpu_plan import Bucket, Plan

__all__ = ["chunk_rows"]


@dataclass(frozen=True)
class _Pieces:
    """The state-free part of a bucket's pieces; c = the bucket's size."""

    kq_in: Tensor  # [pieces, heads, 2 * c, dim] P K above P Q
    k_out: Tensor  # [pieces, heads, c, dim] K a_{j+1}..a_last
    values: Tensor  # [pieces, heads, c, dim]
    mixed: Tensor  # [pieces, heads, c, c] A
    solve: Tensor  # [pieces, heads, c, c] (I + L)^-1 diag(beta)
    across: Tensor  # [pieces, heads, dim] P_last


def chunk_rows(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    state: Tensor,
    plan: Plan,
    out: Tensor,
    leave: Callable[[int, Tensor], None],
) -> None:
    """Advance the plan's chunked rows.

    Args:
        q: [tokens, heads, dim]; normed and scaled in here.
        k: [tokens, heads, dim]; normed in here.
        v: [tokens, heads, dim].
        g: [tokens, heads, dim].
        beta: [tokens, heads].
        state: [chunked rows, heads, v, k], updated in place; its dtype is the one computed in.
        plan: the batch's cut.
        out: [tokens, heads, dim], written at the chunked rows' tokens.
        leave: takes a snapshot's number and its matrices [heads, v, k], which it must copy.
    """
    dtype = state.dtype
    operands = [x.to(dtype).contiguous() for x in (q, k, v, g.to(dtype).exp(), beta)]
    for slab in plan.slabs:
        pieces = [_prepare(operands, bucket) for bucket in slab.buckets]
        for scan in slab.scans:
            o = _advance(pieces[scan.bucket], scan.begin, scan.end, state, scan.rows)
            _scatter(o, slab.buckets[scan.bucket], scan.begin, scan.end, out)
            for row, number in scan.leaves:
                leave(number, state[row])


def _prepare(operands: list[Tensor], bucket: Bucket) -> _Pieces:
    """A bucket's pieces, from q, k, v, exp(g) and beta."""
    like = operands[0]
    _, heads, dim = like.shape
    count, size = bucket.begins.shape[0], bucket.size
    pieces = _Pieces(
        kq_in=like.new_empty(count, heads, 2 * size, dim),
        k_out=like.new_empty(count, heads, size, dim),
        values=like.new_empty(count, heads, size, dim),
        mixed=like.new_empty(count, heads, size, size),
        solve=like.new_empty(count, heads, size, size),
        across=like.new_empty(count, heads, dim),
    )
    inner(
        count * heads * size * dim,
        *arrays(bucket.begins, bucket.lengths, *operands),
        L2_EPS,
        *arrays(pieces.kq_in, pieces.k_out, pieces.values, pieces.mixed, pieces.solve, pieces.across),
    )
    return pieces


def _advance(pieces: _Pieces, begin: int, end: int, state: Tensor, rows: Tensor | None) -> Tensor:
    """Pass the states of `rows` (None: all) through pieces begin..end - 1; o [pieces * heads, c, dim]."""
    picked = state if rows is None else state[rows]
    s = picked.flatten(0, 1)  # [pieces * heads, v, k]
    kq_in, k_out, values, mixed, solve, across = (
        x[begin:end].flatten(0, 1)
        for x in (pieces.kq_in, pieces.k_out, pieces.values, pieces.mixed, pieces.solve, pieces.across)
    )
    c = values.shape[1]
    read = torch.bmm(kq_in, s.mT)  # [pieces * heads, 2 * c, v]
    corrections = torch.bmm(solve, values - read[:, :c])
    o = torch.baddbmm(read[:, c:], mixed, corrections)
    s.mul_(across[:, None]).baddbmm_(corrections.mT, k_out)
    if rows is not None:
        state[rows] = picked
    return o


def _scatter(o: Tensor, bucket: Bucket, begin: int, end: int, out: Tensor) -> None:
    """Write [pieces * heads, size, dim] to the pieces' tokens of out [tokens, heads, dim]."""
    tokens = o.view(end - begin, -1, *o.shape[1:]).transpose(1, 2)  # [pieces, size, heads, dim]
    spans = zip(bucket.spans[begin:end], tokens, strict=True)
    for (first, length), piece in spans:
        out[first : first + length] = piece[:length]
