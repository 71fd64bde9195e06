"""The part of a KDA chunk that doesn't depend on the state: the compiled loops.

See `milepost.kernels.kda.cpu_chunk` for what is computed. Decays are products of factors in [0, 1] and
never quotients, so nothing overflows however strong the gate, and a decay across few tokens is exact
however far the gate has fallen before them.

The scores of a chunk come from halving it. In a block of two halves, the decay from token j of the
early half to token i of the late one splits at the border: `after[j]`, the product over the rest of
j's half, times `upto[i]`, the product over i's half up to and with i. The halves are halved in turn,
down to single tokens; going up, each level extends the two products by the other half's total.
"""

from __future__ import annotations

import numpy as np
from numba import prange

from milepost.kernels.jit import Array, Kernel, subroutine

__all__ = ["inner"]


def _inner(
    begins: Array,  # [pieces] first token of each piece
    lengths: Array,  # [pieces] tokens of each piece, at most c; padding comes out as zeros
    q: Array,  # [tokens, heads, dim], not normed
    k: Array,  # [tokens, heads, dim], not normed
    v: Array,  # [tokens, heads, dim]
    decay: Array,  # [tokens, heads, dim] exp(g)
    beta: Array,  # [tokens, heads]
    l2_eps: float,
    kq_in: Array,  # [pieces, heads, 2 * c, dim], written: k^ * upto, then q^ * upto
    k_out: Array,  # [pieces, heads, c, dim], written: k^ * after
    values: Array,  # [pieces, heads, c, dim], written: v
    mixed: Array,  # [pieces, heads, c, c], written: A
    solve: Array,  # [pieces, heads, c, c], written: (I + L)^-1 diag(beta)
    across: Array,  # [pieces, heads, dim], written: product of all decays
) -> None:
    pieces, heads = values.shape[:2]
    for item in prange(pieces * heads):
        piece, head = item // heads, item % heads
        _piece(
            begins[piece],
            lengths[piece],
            head,
            q,
            k,
            v,
            decay,
            beta,
            l2_eps,
            kq_in[piece, head],
            k_out[piece, head],
            values[piece, head],
            mixed[piece, head],
            solve[piece, head],
            across[piece, head],
        )


@subroutine
def _piece(
    begin: int,
    length: int,
    head: int,
    q: Array,
    k: Array,
    v: Array,
    decay: Array,
    beta: Array,
    l2_eps: float,
    kq_in: Array,
    k_out: Array,
    values: Array,
    mixed: Array,
    solve: Array,
    across: Array,
) -> None:
    """One head of one piece; the outputs are its parts of `_inner`'s."""
    c, dim = values.shape
    keys, queries = kq_in[:c], kq_in[c:]
    upto, after = np.ones((c, dim), q.dtype), np.ones((c, dim), q.dtype)
    overlap = np.zeros((c, c), q.dtype)  # L without beta
    mixed[:] = 0
    keys[length:] = 0
    queries[length:] = 0
    values[length:] = 0
    for t in range(length):
        # A whole row of the last dim at a time: only those are known to be contiguous.
        _normed(k[begin + t, head], l2_eps, 1, keys[t])
        _normed(q[begin + t, head], l2_eps, dim, queries[t])
        upto[t] = decay[begin + t, head]
        values[t] = v[begin + t, head]
        mixed[t, t] = _dot(queries[t], keys[t])
    _scores(queries, keys, length, upto, after, mixed, overlap)
    _solve(overlap, beta[begin : begin + length, head], solve)
    across[:] = upto[c - 1]
    for t in range(c):
        for d in range(dim):
            k_out[t, d] = keys[t, d] * after[t, d]
            keys[t, d] *= upto[t, d]
            queries[t, d] *= upto[t, d]


@subroutine
def _normed(x: Array, eps: float, divisor: int, out: Array) -> None:
    """Write x [dim], l2-normed and divided by sqrt(divisor)."""
    square = x.dtype.type(0)
    for d in range(x.shape[0]):
        square += x[d] * x[d]
    norm = x.dtype.type(1 / np.sqrt((square + eps) * divisor))
    for d in range(x.shape[0]):
        out[d] = x[d] * norm


@subroutine
def _dot(x: Array, y: Array) -> float:
    """Inner product of two vectors."""
    dot: float = x.dtype.type(0)
    for d in range(x.shape[0]):
        dot += x[d] * y[d]
    return dot


@subroutine
def _scores(
    queries: Array, keys: Array, length: int, upto: Array, after: Array, mixed: Array, overlap: Array
) -> None:
    """Decayed products of queries and keys (all [c, dim]) with earlier keys, by halving.

    ``upto`` comes in as each token's decay and goes out as the product up to it, ``after`` comes in as
    ones and goes out as the product after it. Writes mixed and overlap [c, c] below their diagonals.
    """
    c, dim = keys.shape
    early = np.empty_like(keys)
    late_q, late_k = np.empty(dim, keys.dtype), np.empty(dim, keys.dtype)
    half = 1
    while half < c:
        for block in range(0, c, 2 * half):
            border, end = block + half, block + 2 * half
            for j in range(block, border):
                for d in range(dim):
                    early[j, d] = keys[j, d] * after[j, d]
                    after[j, d] *= upto[end - 1, d]
            for i in range(border, min(end, length)):
                for d in range(dim):
                    late_q[d] = queries[i, d] * upto[i, d]
                    late_k[d] = keys[i, d] * upto[i, d]
                _dots(late_q, late_k, early[block:border], mixed[i, block:border], overlap[i, block:border])
            for i in range(border, end):
                for d in range(dim):
                    upto[i, d] *= upto[border - 1, d]
        half *= 2


@subroutine
def _dots(late_q: Array, late_k: Array, early: Array, mixed: Array, overlap: Array) -> None:
    """Inner products of two vectors [dim] with each row of early [half, dim]."""
    for j in range(early.shape[0]):
        q_dot, k_dot = early.dtype.type(0), early.dtype.type(0)
        for d in range(early.shape[1]):
            q_dot += late_q[d] * early[j, d]
            k_dot += late_k[d] * early[j, d]
        mixed[j] = q_dot
        overlap[j] = k_dot


@subroutine
def _solve(overlap: Array, beta: Array, out: Array) -> None:
    """(I + diag(beta) overlap)^-1 diag(beta) for beta [length], by forward substitution; zero beyond."""
    length = beta.shape[0]
    out[:] = 0
    for i in range(length):
        out[i, i] = beta[i]
        for j in range(i):
            factor = beta[i] * overlap[i, j]
            for n in range(j + 1):
                out[i, n] -= factor * out[j, n]


inner = Kernel(_inner)
