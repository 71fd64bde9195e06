"""MLA attention for CPUs: rows in their cached form or expanded, whichever needs fewer products.

Per query, cached token and head the absorbed form costs row_dim + lora products; the expanded one
nope + rope + v, plus lora * (nope + v) once per cached token and head. So short rows attend to the
rows as they are cached, and long ones expand them. Both walk the cache with an online softmax: scratch
memory doesn't grow with the context. How a row is computed is decided by its own length and position.
"""

from __future__ import annotations

import itertools

from torch import Tensor

from milepost.errors import InvariantError
from milepost.kernels.matrix import Matrix
from milepost.kernels.mla_attention import MlaDims, check
from milepost.kernels.native import empty, floats, native
from milepost.kernels.native.packed import PackedMatrix, pack
from milepost.kernels.native.views import kv_view, rows_view
from milepost.kernels.paging import PagedKv, Ragged

__all__ = ["mla_attention"]

_PASS = 4096
"""(token, head) pairs in the absorbed form whose latents are held at a time."""
_MAX_PARTS = 256
"""Partial softmaxes held at a time, of QUERY_LANES queries each."""
_NO_LIMIT = 1 << 40


def mla_attention(
    q: Tensor, k_b: Matrix, v_b: Matrix, gate: Tensor | None, kv: PagedKv, layer: int, ragged: Ragged
) -> Tensor:
    """See `milepost.kernels.mla_attention.MlaAttention`; q and gate are float32."""
    dims = check(q, k_b, v_b, gate, kv, layer, ragged)
    if q.stride(1) != q.shape[2]:
        raise InvariantError(f"mla_attention: a token's heads must be contiguous. Given: {q.stride()}.")
    to_latent, to_values = _up_projection(k_b), _up_projection(v_b)  # kept until the call has read them
    up_to = _absorbed_up_to(dims)
    short = [n for n in (end - begin for begin, end in itertools.pairwise(ragged.offsets)) if n <= up_to]
    tokens = min(sum(short), max(1, _PASS // dims.heads))
    latent, mixed = empty(tokens, dims.heads, dims.lora), empty(tokens, dims.heads, dims.lora)
    num_parts = min(_MAX_PARTS, len(short) * native.MOST_PARTS)
    parts = empty(num_parts, native.QUERY_LANES * (-(-dims.lora // 16) * 16 + 2))
    out = empty(q.shape[0], dims.heads * dims.v)
    native.mla_attention(
        floats("mla_attention", "q", q),
        q.stride(0),
        to_latent.handle,
        to_values.handle,
        0 if gate is None else floats("mla_attention", "gate", gate),
        0 if gate is None else gate.stride(0),
        kv_view(kv),
        layer,
        rows_view(ragged),
        out.data_ptr(),
        up_to,
        max(1, tokens),
        latent.data_ptr(),
        mixed.data_ptr(),
        parts.data_ptr(),
        num_parts,
    )
    return out


def _absorbed_up_to(dims: MlaDims) -> int:
    """Longest row for which the absorbed form needs no more products than the expanded one."""
    saved = (2 * dims.lora + dims.rope) - (dims.nope + dims.rope + dims.v)  # per query, key and head
    return max(1, dims.lora * (dims.nope + dims.v) // saved) if saved > 0 else _NO_LIMIT


def _up_projection(matrix: Matrix) -> PackedMatrix:
    packed = pack(matrix)
    if packed.format not in {"f32", "bf16"}:
        raise InvariantError(f"mla_attention: k_b and v_b must be f32 or bf16. Given: {packed.format}.")
    return packed
