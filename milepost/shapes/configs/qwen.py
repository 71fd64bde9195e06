"""Qwen's families: Qwen3-MoE (grouped-query attention), Qwen3-Next and Qwen3.5 (gated DeltaNet beside it).

The hybrids gate their attention's output (the query projection is twice as wide), and a vector of the hidden
size weighs their shared expert. Matrices are those of the published modelling code (transformers,
``models/qwen3_next`` and ``models/qwen3_5``); the sums are held to the published checkpoints by a test.
"""

from __future__ import annotations

from collections.abc import Sequence

from milepost.error_text import as_json
from milepost.json_fields import JsonFields
from milepost.shapes.configs.model_file import ModelFile, check_multiple, layer_count, layer_kinds, size
from milepost.shapes.configs.parts import experts, gated, gated_networks, grouped_query_layers
from milepost.shapes.shape import AttentionShape, ExpertsShape, ModelShape, RecurrentKind, RecurrentShape

__all__ = ["QWEN_DENSE_HYBRIDS", "qwen_hybrid_shape", "qwen_moe_shape"]

QWEN_DENSE_HYBRIDS = ("qwen3_5",)
"""Families of hybrids without experts."""

RECURRENT, ATTENTION = "recurrent", "attention"


def qwen_hybrid_shape(file: ModelFile) -> ModelShape:
    """Qwen3-Next and Qwen3.5: three gated DeltaNet layers to one of gated grouped-query attention."""
    count = layer_count(file.text)
    kinds = _kinds(file.text, count)
    recurrent = [layer for layer, kind in enumerate(kinds) if kind == RECURRENT]
    attention = [layer for layer, kind in enumerate(kinds) if kind == ATTENTION]
    gate = file.text.boolean("attn_output_gate", default=True)
    return _model(
        file,
        count,
        sparse=[] if file.family in QWEN_DENSE_HYBRIDS else _sparse_layers(file.text, count),
        recurrent_layers=len(recurrent),
        recurrent=_gated_delta_net(file, recurrent),
        attention=grouped_query_layers(file, attention, "self_attn", output_gate=gate, head_norms=True),
        shared_expert=True,
    )


def qwen_moe_shape(file: ModelFile) -> ModelShape:
    """Qwen3-MoE: grouped-query attention in every layer, no shared expert."""
    count = layer_count(file.text)
    return _model(
        file,
        count,
        sparse=_sparse_layers(file.text, count),
        recurrent_layers=0,
        recurrent=None,
        attention=grouped_query_layers(file, range(count), "self_attn", head_norms=True),
        shared_expert=False,
    )


def _model(
    file: ModelFile,
    count: int,
    *,
    sparse: Sequence[int],
    recurrent_layers: int,
    recurrent: RecurrentShape | None,
    attention: AttentionShape | None,
    shared_expert: bool,
) -> ModelShape:
    text = file.text
    hidden = size(text, "hidden_size")
    networks = gated_networks(file, count, sparse, hidden)
    return ModelShape(
        family=file.family,
        hidden_size=hidden,
        vocab_size=size(text, "vocab_size"),
        max_position=size(text, "max_position_embeddings"),
        blocks=count,
        recurrent_layers=recurrent_layers,
        attention_layers=count - recurrent_layers,
        moe_layers=len(sparse),
        dense_layers=networks.layers,
        recurrent=recurrent,
        attention=attention,
        experts=_experts(file, sparse, hidden, shared_expert=shared_expert) if sparse else None,
        dense_parameters=networks.parameters,
        norm_parameters=(2 * count + 1) * hidden,
        tied_embeddings=file.tied_embeddings,
        dense_bytes_per_parameter=networks.bytes_per_parameter,
        head_bytes_per_parameter=file.stored.of_head(),
    )


def _kinds(text: JsonFields, count: int) -> list[str]:
    """Of every layer; a list of them goes before the interval, as in the modelling code."""
    known = {"linear_attention": RECURRENT, "full_attention": ATTENTION}
    kinds = layer_kinds(text, "layer_types", known)
    if kinds is None:
        interval = size(text, "full_attention_interval")
        return [ATTENTION if (layer + 1) % interval == 0 else RECURRENT for layer in range(count)]
    if kinds and len(kinds) != count == text.optional("num_hidden_layers"):
        text.problem("layer_types", f"must name the {count} layers of num_hidden_layers. Given: {len(kinds)}")
    return kinds


def _sparse_layers(text: JsonFields, count: int) -> list[int]:
    """Layers with experts: each ``decoder_sparse_step``-th but those that ``mlp_only_layers`` names."""
    step = size(text, "decoder_sparse_step", default=1)
    dense = text.optional("mlp_only_layers") or []
    if not isinstance(dense, list) or not all(type(n) is int and 0 <= n < count for n in dense):
        text.problem(
            "mlp_only_layers",
            f"must be a list of layer numbers from 0 to {count - 1}. Given: {as_json(dense)}",
        )
        dense = []
    named = set(dense)
    return [layer for layer in range(count) if layer not in named and (layer + 1) % step == 0]


def _gated_delta_net(file: ModelFile, layers: Sequence[int]) -> RecurrentShape | None:
    """Projections to queries, keys, values and gate, to decay and beta, one convolution, and out."""
    if not layers:
        return None
    text = file.text
    hidden = size(text, "hidden_size")
    key_heads, value_heads = size(text, "linear_num_key_heads"), size(text, "linear_num_value_heads")
    key_dim, value_dim = size(text, "linear_key_head_dim"), size(text, "linear_value_head_dim")
    taps = size(text, "linear_conv_kernel_dim")
    check_multiple(text, "linear_num_value_heads", "linear_num_key_heads")
    keys, values = key_heads * key_dim, value_heads * value_dim
    channels = 2 * keys + values
    if file.family == "qwen3_next":
        inputs = {"in_proj_qkvz": hidden * (channels + values), "in_proj_ba": hidden * 2 * value_heads}
    else:
        inputs = {"in_proj_qkv": hidden * channels, "in_proj_z": hidden * values}
        inputs |= {"in_proj_a": hidden * value_heads, "in_proj_b": hidden * value_heads}
    matrices = {f"linear_attn.{name}": count for name, count in inputs.items()}
    matrices["linear_attn.out_proj"] = values * hidden
    # With the convolution, A_log and dt_bias of each head; the norm of a head is shared by all.
    sharded = sum(matrices.values()) + channels * taps + 2 * value_heads
    return RecurrentShape(
        kind=RecurrentKind.GATED_DELTA_NET,
        heads=value_heads,
        rows=value_dim,
        row_dim=key_dim,
        key_heads=key_heads,
        conv_window=taps - 1,
        sharded=sharded,
        replicated=value_dim,
        bytes_per_parameter=file.stored.mean(layers, matrices, sharded + value_dim),
    )


def _experts(file: ModelFile, layers: Sequence[int], hidden: int, *, shared_expert: bool) -> ExpertsShape:
    """The router has no bias; a vector of the hidden size weighs the shared expert."""
    text = file.text
    intermediate = size(text, "moe_intermediate_size")
    shared = size(text, "shared_expert_intermediate_size", minimum=0) if shared_expert else 0
    return experts(
        file,
        layers,
        count_field="num_experts",
        width=hidden,
        intermediate=intermediate,
        routed=tuple(gated("mlp.experts.0", hidden, intermediate)),
        shared=gated("mlp.shared_expert", hidden, shared),
        router=size(text, "num_experts") * hidden + (hidden if shared else 0),
    )
