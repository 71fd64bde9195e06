"""Causal latent attention over paged rows (MLA, NoPE), and the gate of its output.

A cached row is [c | k_pe]: the normed latent, and a key part shared by all heads and not rotated. Per head:

    k = [k_b^T c | k_pe] ;  v = v_b c
    o = softmax(q k^T * (nope + rope)^-0.5) v           over positions 0 .. the query's own
    o = o * sigmoid(gate)                               where the model has one

Absorbed form: q_nope k_nope^T = (k_b q_nope) c^T and p v = v_b (p c), so a decode reads rows as they are
cached. As in DeepSeek-V2 (arXiv:2405.04434), without rotation; the gate is Kimi K3's.

Checkpoints store both matrices as one, kv_b: per head, nope rows of k_b^T and v rows of v_b.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from torch import Tensor

from milepost.errors import InvariantError
from milepost.kernels.checks import check_kv, check_ragged, check_shape
from milepost.kernels.matrix import Matrix
from milepost.kernels.paging import PagedKv, Ragged

__all__ = ["MlaAttention", "MlaDims", "check"]


class MlaAttention(Protocol):
    """Attend from a step's tokens to all rows of their sequences up to themselves."""

    def __call__(
        self,
        q: Tensor,
        k_b: Matrix,
        v_b: Matrix,
        gate: Tensor | None,
        kv: PagedKv,
        layer: int,
        ragged: Ragged,
    ) -> Tensor:
        """Run one layer's attention, after `mla_write` of the same tokens.

        Args:
            q: [tokens, heads, nope + rope].
            k_b: [heads, lora, nope], the latent's up-projection to k_nope, transposed.
            v_b: [heads, v, lora], its up-projection to v.
            gate: [tokens, heads * v], before the sigmoid; None: the output is not gated.
            kv: the cache and the rows' blocks. Positions past a row's last token are never used.
            layer: index among the MLA layers.
            ragged: the rows.

        Returns:
            [tokens, heads * v] in q's dtype, computed in at least float32.
        """
        ...


class MlaDims(NamedTuple):
    """Widths of one layer, read off the operands."""

    heads: int
    lora: int
    rope: int
    nope: int
    v: int


def check(
    q: Tensor, k_b: Matrix, v_b: Matrix, gate: Tensor | None, kv: PagedKv, layer: int, ragged: Ragged
) -> MlaDims:
    """Check shapes and return the widths; see `MlaAttention`.

    Raises:
        InvariantError: the shapes don't fit each other, or the block table is too short.
    """
    heads, lora, nope = k_b.shape
    dims = MlaDims(heads=heads, lora=lora, rope=kv.row_dim - lora, nope=nope, v=v_b.shape[1])
    if dims.rope < 0 or v_b.shape != (heads, dims.v, lora):
        raise InvariantError(
            f"mla_attention: k_b {list(k_b.shape)}, v_b {list(v_b.shape)} and rows of {kv.row_dim} don't fit."
        )
    check_shape("mla_attention", "q", q, None, heads, nope + dims.rope)
    if gate is not None:
        check_shape("mla_attention", "gate", gate, q.shape[0], heads * dims.v)
    check_ragged("mla_attention", q.shape[0], ragged)
    check_kv("mla_attention", kv, layer, ragged)
    return dims
