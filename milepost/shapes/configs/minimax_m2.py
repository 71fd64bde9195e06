"""MiniMax-M2: grouped-query attention and experts in every layer.

Norms stand on the queries and keys of all heads together. Matrices are those of the published modelling code
(``modeling_minimax_m2.py``); the sums are held to the published checkpoint by a test.
"""

from __future__ import annotations

from collections.abc import Sequence

from milepost.error_text import as_json
from milepost.shapes.configs.model_file import ModelFile, check_top_k, experts_of, layer_count, size
from milepost.shapes.projections import GroupedQuery, grouped_query
from milepost.shapes.shape import AttentionShape, ExpertsShape, ModelShape

__all__ = ["minimax_m2_shape"]


def minimax_m2_shape(file: ModelFile) -> ModelShape:
    """MiniMax-M2, M2.1, M2.5 and M2.7."""
    text = file.text
    count, hidden = layer_count(text), size(text, "hidden_size")
    kinds = text.optional("attn_type_list")
    if kinds is not None and kinds != [1] * count:
        text.problem(
            "attn_type_list", f"must be a 1 (full attention) for each layer. Given: {as_json(kinds)}"
        )
    if size(text, "shared_intermediate_size", minimum=0, default=0):
        text.problem("shared_intermediate_size", "only 0 is known")
    layers = range(count)
    return ModelShape(
        family=file.family,
        hidden_size=hidden,
        vocab_size=size(text, "vocab_size"),
        max_position=size(text, "max_position_embeddings"),
        blocks=count,
        recurrent_layers=0,
        attention_layers=count,
        moe_layers=count,
        dense_layers=0,
        recurrent=None,
        attention=_attention(file, layers, hidden),
        experts=_experts(file, layers, hidden),
        dense_parameters=0,
        norm_parameters=(2 * count + 1) * hidden,
        tied_embeddings=file.tied_embeddings,
        head_bytes_per_parameter=file.stored.of_head(),
    )


def _attention(file: ModelFile, layers: Sequence[int], hidden: int) -> AttentionShape:
    text = file.text
    heads, kv_heads = size(text, "num_attention_heads"), size(text, "num_key_value_heads")
    if heads % kv_heads:
        text.problem(
            "num_attention_heads", f"must be a multiple of the {kv_heads} key-value heads. Given: {heads}"
        )
    norms = text.boolean("use_qk_norm", default=False)
    if norms:
        text.choice("qk_norm_type", ("per_layer",))
    sizes = GroupedQuery(hidden=hidden, heads=heads, kv_heads=kv_heads, head_dim=size(text, "head_dim"))
    plain = grouped_query(sizes, whole_norms=norms)
    matrices = {f"self_attn.{name}": count for name, count in sizes.matrices.items()}
    total = plain.sharded + plain.replicated
    return grouped_query(
        sizes, whole_norms=norms, bytes_per_parameter=file.stored.mean(layers, matrices, total)
    )


def _experts(file: ModelFile, layers: Sequence[int], hidden: int) -> ExpertsShape | None:
    text = file.text
    num_experts, top_k = size(text, "num_local_experts"), size(text, "num_experts_per_tok")
    check_top_k(text, top_k, num_experts, "num_experts_per_tok")
    intermediate = size(text, "intermediate_size")
    experts = ExpertsShape(
        num_experts=num_experts,
        top_k=top_k,
        width=hidden,
        latent=False,
        intermediate=intermediate,
        matrices=3,
        bytes_per_parameter=2.0,
        shared_parameters=0,
        latent_down=0,
        latent_up=0,
        router=num_experts * (hidden + (1 if text.boolean("use_routing_bias", default=False) else 0)),
    )
    routed = {f"block_sparse_moe.experts.0.{name}": hidden * intermediate for name in ("w1", "w2", "w3")}
    return experts_of(file, layers, experts, routed=routed, shared={})
