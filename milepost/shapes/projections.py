"""Attention layers by their matrices: grouped-query attention and latent attention (MLA)."""

from __future__ import annotations

import msgspec

from milepost.shapes.shape import AttentionKind, AttentionShape

__all__ = ["GroupedQuery", "LatentAttention", "grouped_query", "latent_attention"]


class GroupedQuery(msgspec.Struct, frozen=True, kw_only=True):
    """One layer of grouped-query attention.

    Attributes:
        hidden: width of a token.
        heads: query heads.
        kv_heads: heads of keys and values.
        head_dim: width of a head's query, key and value.
        output_gate: whether the query projection makes a gate beside each query, as in Qwen3-Next.
        bias: whether the four projections have one.
    """

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    output_gate: bool = False
    bias: bool = False

    @property
    def matrices(self) -> dict[str, int]:
        """Parameters of each projection, its bias aside, by its usual name."""
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        return {
            "q_proj": self.hidden * queries * (2 if self.output_gate else 1),
            "k_proj": self.hidden * keys,
            "v_proj": self.hidden * keys,
            "o_proj": queries * self.hidden,
        }


def grouped_query(
    sizes: GroupedQuery,
    *,
    head_norms: bool = False,
    whole_norms: bool = False,
) -> AttentionShape:
    """The shape of a layer of grouped-query attention.

    Args:
        sizes: of the layer.
        head_norms: whether norms of one head's width, shared by all heads, stand on queries and keys.
        whole_norms: whether norms over all heads stand there (MiniMax-M2).
    """
    queries, keys = sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim
    sharded, replicated = sum(sizes.matrices.values()), 0
    if sizes.bias:
        sharded += queries * (2 if sizes.output_gate else 1) + 2 * keys
        replicated += sizes.hidden  # of the output, which every rank adds to the same sum
    if head_norms:
        replicated += 2 * sizes.head_dim
    if whole_norms:
        sharded += queries + keys
    return AttentionShape(
        kind=AttentionKind.GQA,
        heads=sizes.heads,
        kv_heads=sizes.kv_heads,
        row_dim=2 * keys,
        qk_head_dim=sizes.head_dim,
        v_head_dim=sizes.head_dim,
        sharded=sharded,
        replicated=replicated,
    )


class LatentAttention(msgspec.Struct, frozen=True, kw_only=True):
    """One layer of multi-head latent attention.

    Attributes:
        hidden: width of a token.
        heads: query heads.
        q_lora_rank: width that queries are made through; None for one matrix.
        kv_lora_rank: width of the cached latent.
        nope_head_dim: of a head's query and key, the width that comes out of the latent.
        rope_head_dim: of a head's query and key, the width that all heads' keys share.
        v_head_dim: width of a head's value.
        output_gate: whether values are gated before the output, as in Kimi K3.
    """

    hidden: int
    heads: int
    q_lora_rank: int | None
    kv_lora_rank: int
    nope_head_dim: int
    rope_head_dim: int
    v_head_dim: int
    output_gate: bool = False

    @property
    def row_dim(self) -> int:
        """Elements that a token caches: latent and shared key."""
        return self.kv_lora_rank + self.rope_head_dim

    @property
    def qk_head_dim(self) -> int:
        """Width of a head's query and key."""
        return self.nope_head_dim + self.rope_head_dim

    @property
    def sharded_matrices(self) -> dict[str, int]:
        """Parameters of the projections that ranks divide by heads, by their usual names."""
        queries, values = self.heads * self.qk_head_dim, self.heads * self.v_head_dim
        matrices = {
            "kv_b_proj": self.kv_lora_rank * self.heads * (self.nope_head_dim + self.v_head_dim),
            "o_proj": values * self.hidden,
        }
        if self.q_lora_rank is None:
            matrices["q_proj"] = self.hidden * queries
        else:
            matrices["q_b_proj"] = self.q_lora_rank * queries
        if self.output_gate:
            matrices["g_proj"] = self.hidden * values
        return matrices

    @property
    def replicated_matrices(self) -> dict[str, int]:
        """Parameters of the projections that every rank holds whole, by their usual names."""
        matrices = {"kv_a_proj_with_mqa": self.hidden * self.row_dim}
        if self.q_lora_rank is not None:
            matrices["q_a_proj"] = self.hidden * self.q_lora_rank
        return matrices


def latent_attention(sizes: LatentAttention) -> AttentionShape:
    """The shape of a layer of multi-head latent attention; norms stand inside, on latent and low rank."""
    norms = sizes.kv_lora_rank + (sizes.q_lora_rank or 0)
    return AttentionShape(
        kind=AttentionKind.MLA,
        heads=sizes.heads,
        kv_heads=1,
        row_dim=sizes.row_dim,
        qk_head_dim=sizes.qk_head_dim,
        v_head_dim=sizes.v_head_dim,
        latent_dim=sizes.kv_lora_rank,
        sharded=sum(sizes.sharded_matrices.values()),
        replicated=sum(sizes.replicated_matrices.values()) + norms,
        kv_up=sizes.sharded_matrices["kv_b_proj"],
    )
