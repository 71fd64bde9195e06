"""Causal latent attention over paged rows (MLA, NoPE).

A cached row is [c | k_pe]: the normed latent, and a key part shared by all heads and not rotated. Per head:

    [k_nope | v] = kv_b c ;  k = [k_nope | k_pe]
    o = softmax(q k^T * (nope + rope)^-0.5) v           over positions 0 .. the query's own

Absorbed form: q_nope k_nope^T = (q_nope kv_b_k) c^T and p v = (p c) kv_b_v^T, so a decode reads rows as
they are cached. As in DeepSeek-V2 (arXiv:2405.04434), without rotation.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from torch import Tensor

from milepost.errors import InvariantError
from milepost.kernels.checks import check_kv, check_ragged, check_shape
from milepost.kernels.paging import PagedKv, Ragged

__all__ = ["MlaAttention", "MlaDims", "check"]


class MlaAttention(Protocol):
    """Attend from a step's tokens to all rows of their sequences up to themselves."""

    def __call__(self, q: Tensor, kv_b: Tensor, kv: PagedKv, layer: int, ragged: Ragged) -> Tensor:
        """Run one layer's attention, after `mla_write` of the same tokens.

        Args:
            q: [tokens, heads, nope + rope].
            kv_b: [heads, nope + v, lora], the up-projection of the latent to k_nope and v.
            kv: the cache and the rows' blocks. Positions past a row's last token are never used.
            layer: index among the MLA layers.
            ragged: the rows.

        Returns:
            [tokens, heads, v] in q's dtype, computed in at least float32.
        """
        ...


class MlaDims(NamedTuple):
    """Widths of one layer, read off the operands."""

    heads: int
    lora: int
    rope: int
    nope: int
    v: int

    @classmethod
    def of(cls, q: Tensor, kv_b: Tensor, kv: PagedKv) -> MlaDims:
        """Widths that make the operands fit: rope = row_dim - lora and so on."""
        heads, nope_v, lora = kv_b.shape
        rope = kv.row_dim - lora
        nope = q.shape[2] - rope
        return cls(heads=heads, lora=lora, rope=rope, nope=nope, v=nope_v - nope)


def check(q: Tensor, kv_b: Tensor, kv: PagedKv, layer: int, ragged: Ragged) -> MlaDims:
    """Check shapes and return the widths; see `MlaAttention`.

    Raises:
        InvariantError: the shapes don't fit each other, or the block table is too short.
    """
    check_shape("mla_attention", "kv_b", kv_b, None, None, None)
    check_shape("mla_attention", "q", q, None, kv_b.shape[0], None)
    check_ragged("mla_attention", q.shape[0], ragged)
    check_kv("mla_attention", kv, layer, ragged)
    dims = MlaDims.of(q, kv_b, kv)
    if min(dims) < 0 or dims.v == 0 or dims.lora == 0:
        raise InvariantError(
            f"mla_attention: q {list(q.shape)}, kv_b {list(kv_b.shape)} and rows of {kv.row_dim} don't fit. "
            f"Given: {dims}."
        )
    return dims
