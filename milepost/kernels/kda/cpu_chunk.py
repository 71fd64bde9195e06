"""KDA over chunks: everything inside a chunk as matrix products, one state update per chunk.

With a_t = exp(g_t), P_i the product of a over tokens 0..i of a chunk and S the state before it
([k, v] here), the recurrence of `milepost.kernels.kda` unrolls to

    L_ij = beta_i sum_d k_i k_j a_{j+1}..a_i      i > j
    A_ij =        sum_d q_i k_j a_{j+1}..a_i      i >= j
    C    = (I + L)^-1 beta (V - (P K) S)          the corrections, by forward substitution
    O    = (P Q) S + A C
    S'   = diag(P_last) S + (K a_{j+1}..a_last)^T C

(Kimi K3 technical report, section 2.1.1; C is the report's U - W S, solved for once S is known.)

Decays are products of factors in [0, 1] and never quotients, so nothing overflows however strong
the gate. The scores of a chunk come from halving it: between the two halves of a block, a_{j+1}..a_i
splits at the border into (rest of j's half) * (i's half so far), which makes that quarter of the
block one matrix product; the diagonal blocks are halved in turn, down to single tokens. Each level
knows the products that it needs from the level below.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from milepost.kernels.kda import L2_EPS
from milepost.kernels.kda.cpu_plan import Bucket, Plan

__all__ = ["chunk_rows"]

_PAIRWISE = 2  # up to this half-block size, sums of products are faster than tiny matrix products


@dataclass(frozen=True)
class _Pieces:
    """The state-free part of a bucket's pieces; n = pieces, c = size, all [n, heads, ...]."""

    q_in: Tensor  # [n, heads, c, dim] q * product of decays up to and with its token
    k_in: Tensor  # [n, heads, c, dim] likewise k
    k_out: Tensor  # [n, heads, c, dim] k * product of the decays after its token
    v: Tensor  # [n, heads, c, dim]
    beta: Tensor  # [n, heads, c, 1]
    across: Tensor  # [n, heads, 1, dim] product of all decays
    mixed: Tensor  # [n, heads, c, c] A
    solve: Tensor  # [n, heads, c, c] I + L


def chunk_rows(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor, plan: Plan, out: Tensor
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
    """
    for slab in plan.slabs:
        pieces = [_prepare(q, k, v, g, beta, bucket, state.dtype) for bucket in slab.buckets]
        for scan in slab.scans:
            bucket = slab.buckets[scan.bucket]
            o = _advance(pieces[scan.bucket], scan.begin, scan.end, state, scan.rows)
            _scatter(o, bucket, scan.begin, scan.end, out)


def _prepare(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, bucket: Bucket, dtype: torch.dtype
) -> _Pieces:
    """Everything about a bucket's pieces that does not depend on the state."""
    q = _gather(q, bucket, dtype)
    k = _gather(k, bucket, dtype)
    q.mul_(torch.rsqrt_(q.square().sum(-1, keepdim=True).add_(L2_EPS)).mul_(q.shape[-1] ** -0.5))
    k.mul_(torch.rsqrt_(k.square().sum(-1, keepdim=True).add_(L2_EPS)))
    decay = _gather(g, bucket, dtype).exp_()
    beta = _gather(beta[..., None], bucket, dtype)
    if bucket.padding is not None:
        # Padding leaves the state as it is: no decay and no correction.
        padding = bucket.padding[:, None, :, None]
        decay = decay.masked_fill_(padding, 1.0)
        beta = beta.masked_fill_(padding, 0.0)
    mixed, overlap, after = _scores(q, k, decay)  # decay now holds the products up to each token
    solve = overlap.mul_(beta)  # the unit diagonal is implied by `unitriangular`
    across = decay[:, :, -1:].clone()
    return _Pieces(
        q_in=q.mul_(decay),
        k_in=decay.mul_(k),
        k_out=after.mul_(k),
        v=_gather(v, bucket, dtype),
        beta=beta,
        across=across,
        mixed=mixed,
        solve=solve,
    )


def _gather(x: Tensor, bucket: Bucket, dtype: torch.dtype) -> Tensor:
    """[tokens, heads, width] -> [pieces, heads, size, width], a copy."""
    pieces, size = bucket.index.shape
    picked = x[bucket.span[0] : bucket.span[1]] if bucket.span is not None else x[bucket.index.flatten()]
    laid = picked.view(pieces, size, *x.shape[1:]).transpose(1, 2)
    return laid.to(dtype, memory_format=torch.contiguous_format, copy=True)


def _scatter(o: Tensor, bucket: Bucket, begin: int, end: int, out: Tensor) -> None:
    """Write [pieces, heads, size, dim] to the pieces' tokens of out."""
    tokens = o.transpose(1, 2)  # [pieces, size, heads, dim]
    if bucket.span is not None:
        first = bucket.span[0] + begin * bucket.size
        out[first : first + (end - begin) * bucket.size].view(tokens.shape).copy_(tokens)
        return
    index = bucket.index[begin:end]
    if bucket.padding is not None:
        real = ~bucket.padding[begin:end]
        index, tokens = index[real], tokens[real]
    out[index] = tokens.to(out.dtype)


def _scores(q: Tensor, k: Tensor, upto: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Decayed scores inside each piece, by halving.

    Args:
        q: [n, heads, c, dim], c a power of two.
        k: [n, heads, c, dim].
        upto: [n, heads, c, dim], each token's decay; becomes the product of tokens 0..t.

    Returns:
        A [n, heads, c, c] (lower triangle with diagonal), sum_d k_i k_j decays [n, heads, c, c]
        (strictly lower) and the product of the decays after each token [n, heads, c, dim].
    """
    n, heads, c, dim = q.shape
    after = torch.ones_like(upto)
    mixed = q.new_zeros(n * heads, c, c)
    overlap = q.new_zeros(n * heads, c, c)
    mixed.diagonal(dim1=1, dim2=2).copy_((q * k).sum(-1).view(n * heads, c))
    half = 1
    while half < c:
        halves = (n * heads, c // (2 * half), 2, half, dim)
        upto_halves, after_halves = upto.view(halves), after.view(halves)
        early_after, late_upto = after_halves[:, :, 0], upto_halves[:, :, 1]  # [n*heads, blocks, half, dim]
        keys = k.view(halves)[:, :, 0] * early_after
        _quarter(mixed, half).copy_(_products(q.view(halves)[:, :, 1] * late_upto, keys))
        _quarter(overlap, half).copy_(_products(k.view(halves)[:, :, 1] * late_upto, keys))
        early_total = upto_halves[:, :, 0, -1:].clone()
        early_after.mul_(late_upto[:, :, -1:])
        late_upto.mul_(early_total)
        half *= 2
    return mixed.view(n, heads, c, c), overlap.view(n, heads, c, c), after


def _quarter(scores: Tensor, half: int) -> Tensor:
    """The blocks (late half, early half) of [n, c, c] scores, [n, blocks, half, half]; a view."""
    n, c, _ = scores.shape
    blocks = scores.view(n, c // (2 * half), 2 * half, c // (2 * half), 2 * half)
    return blocks.diagonal(dim1=1, dim2=3).permute(0, 3, 1, 2)[:, :, half:, :half]


def _products(late: Tensor, early: Tensor) -> Tensor:
    """All inner products of two [n, blocks, half, dim], [n, blocks, half (late), half (early)]."""
    if late.shape[2] <= _PAIRWISE:
        return (late[:, :, :, None] * early[:, :, None]).sum(-1)
    return late @ early.mT


def _advance(pieces: _Pieces, begin: int, end: int, state: Tensor, rows: Tensor) -> Tensor:
    """Pass the states of `rows` through pieces begin..end - 1; o [pieces, heads, c, dim]."""
    part = slice(begin, end)
    s = state[rows]  # [pieces, heads, v, k]
    known = pieces.k_in[part] @ s.mT  # [pieces, heads, c, v], what the state already says of v
    wanted = pieces.beta[part] * (pieces.v[part] - known)
    c: Tensor = torch.linalg.solve_triangular(pieces.solve[part], wanted, upper=False, unitriangular=True)
    o = pieces.q_in[part] @ s.mT + pieces.mixed[part] @ c
    state[rows] = s * pieces.across[part] + c.mT @ pieces.k_out[part]
    return o
