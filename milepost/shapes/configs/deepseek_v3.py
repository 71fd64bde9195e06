"""DeepSeek-V3 and Kimi K2: latent attention in every layer, experts in all but the first ones.

Matrices are those of the published modelling code (``modeling_deepseek.py``); the sums are held to the
published checkpoints by a test.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from milepost.shapes.configs.model_file import ModelFile, layer_count, size
from milepost.shapes.configs.parts import experts, gated, gated_networks
from milepost.shapes.projections import LatentAttention, latent_attention
from milepost.shapes.shape import AttentionShape, ExpertsShape, ModelShape

__all__ = ["deepseek_v3_shape"]


def deepseek_v3_shape(file: ModelFile) -> ModelShape:
    """DeepSeek-V3 and R1, Kimi K2."""
    text = file.text
    count, hidden = layer_count(text), size(text, "hidden_size")
    first = size(text, "first_k_dense_replace", minimum=0)
    if first > count == text.optional("num_hidden_layers"):
        text.problem("first_k_dense_replace", f"must be at most {count} layers. Given: {first}")
    step = size(text, "moe_layer_freq", default=1)
    sparse = [layer for layer in range(first, count) if layer % step == 0]
    networks = gated_networks(file, count, sparse, hidden)
    return ModelShape(
        family=file.family,
        hidden_size=hidden,
        vocab_size=size(text, "vocab_size"),
        max_position=size(text, "max_position_embeddings"),
        blocks=count,
        recurrent_layers=0,
        attention_layers=count,
        moe_layers=len(sparse),
        dense_layers=networks.layers,
        recurrent=None,
        attention=_attention(file, range(count), hidden),
        experts=_experts(file, sparse, hidden) if sparse else None,
        dense_parameters=networks.parameters,
        norm_parameters=(2 * count + 1) * hidden,
        tied_embeddings=file.tied_embeddings,
        dense_bytes_per_parameter=networks.bytes_per_parameter,
        head_bytes_per_parameter=file.stored.of_head(),
    )


def _attention(file: ModelFile, layers: Sequence[int], hidden: int) -> AttentionShape:
    text = file.text
    if text.optional("index_topk", "index_head_dim", "index_n_heads") is not None:
        text.problem("index_topk", "is of sparse attention with an indexer, which is not known here")
    if text.boolean("attention_bias", default=False):
        text.problem("attention_bias", "only false is known")
    sizes = LatentAttention(
        hidden=hidden,
        heads=size(text, "num_attention_heads"),
        q_lora_rank=size(text, "q_lora_rank", minimum=0, default=0) or None,
        kv_lora_rank=size(text, "kv_lora_rank"),
        nope_head_dim=size(text, "qk_nope_head_dim"),
        rope_head_dim=size(text, "qk_rope_head_dim", minimum=0),
        v_head_dim=size(text, "v_head_dim"),
    )
    shape = latent_attention(sizes)
    named = sizes.sharded_matrices | sizes.replicated_matrices
    matrices = {f"self_attn.{name}": count for name, count in named.items()}
    mean = file.stored.mean(layers, matrices, shape.sharded + shape.replicated)
    return msgspec.structs.replace(shape, bytes_per_parameter=mean)


def _experts(file: ModelFile, layers: Sequence[int], hidden: int) -> ExpertsShape:
    """The router has a bias for each expert (``noaux_tc``)."""
    intermediate = size(file.text, "moe_intermediate_size")
    shared = size(file.text, "n_shared_experts", minimum=0, default=0) * intermediate
    return experts(
        file,
        layers,
        count_field="n_routed_experts",
        width=hidden,
        intermediate=intermediate,
        routed=tuple(gated("mlp.experts.0", hidden, intermediate)),
        shared=gated("mlp.shared_experts", hidden, shared),
        router=size(file.text, "n_routed_experts") * (hidden + 1),
    )
