"""The shape of a model that the engine runs: KDA and MLA, by the tensors of the published checkpoints."""

from __future__ import annotations

from milepost.model_spec import ModelSpec
from milepost.shapes.projections import LatentAttention, latent_attention
from milepost.shapes.shape import (
    BF16_BYTES,
    AttentionShape,
    ExpertsShape,
    ModelShape,
    RecurrentKind,
    RecurrentShape,
)

__all__ = ["shape_of"]


def shape_of(model: ModelSpec | ModelShape) -> ModelShape:
    """The numbers of a model; those of a `ModelShape` are itself.

    Packed experts (``mxfp4_group``) take half a byte a parameter and a byte of scale a group.
    """
    if isinstance(model, ModelShape):
        return model
    num_moe = len(model.layers) - model.first_dense
    return ModelShape(
        family=model.family.value,
        hidden_size=model.hidden_size,
        vocab_size=model.vocab_size,
        max_position=model.max_position,
        blocks=len(model.layers),
        recurrent_layers=len(model.kda_layers),
        attention_layers=len(model.mla_layers),
        moe_layers=num_moe,
        dense_layers=model.first_dense,
        recurrent=_kda(model),
        attention=_mla(model),
        experts=_experts(model),
        dense_parameters=3 * model.hidden_size * model.dense_intermediate,
        norm_parameters=_norm_parameters(model, num_moe),
        attn_res_block=model.attn_res_block,
    )


def _kda(model: ModelSpec) -> RecurrentShape:
    """q, k, v, their convolutions, decay (rank head_dim), beta, output gate, norm of a head, and o."""
    kda, hidden = model.kda, model.hidden_size
    channels, width = kda.channels, kda.head_dim
    sharded = 3 * hidden * channels + 3 * channels * kda.conv_size
    sharded += width * channels + channels  # W_fb and dt_bias
    sharded += hidden * kda.num_heads + channels * hidden  # W_b and W_o
    replicated = hidden * width + width  # W_fa and the norm that all heads share
    # K3 stores A_log for 128 heads and uses the first 96; what is not used is not counted.
    sharded += kda.num_heads
    if kda.full_rank_gate:
        sharded += hidden * channels
    else:
        sharded += width * channels
        replicated += hidden * width
    return RecurrentShape(
        kind=RecurrentKind.KDA,
        heads=kda.num_heads,
        rows=width,
        row_dim=width,
        key_heads=kda.num_heads,
        conv_window=kda.conv_window,
        sharded=sharded,
        replicated=replicated,
    )


def _mla(model: ModelSpec) -> AttentionShape:
    """Queries (through a low rank in K3), the latent row, keys and values out of it, output gate, and o."""
    mla = model.mla
    return latent_attention(
        LatentAttention(
            hidden=model.hidden_size,
            heads=mla.num_heads,
            q_lora_rank=mla.q_lora_rank,
            kv_lora_rank=mla.kv_lora_rank,
            nope_head_dim=mla.nope_head_dim,
            rope_head_dim=mla.rope_head_dim,
            v_head_dim=mla.v_head_dim,
            output_gate=mla.output_gate,
        )
    )


def _experts(model: ModelSpec) -> ExpertsShape:
    """Router with its bias, LatentMoE's two projections, routed and shared experts.

    As engines run the latent (two of the three tails in use): the down-projection is whole on every rank,
    the up-projection's columns are divided.
    """
    moe, hidden = model.moe, model.hidden_size
    latent = (moe.latent_dim or 0) * hidden
    return ExpertsShape(
        num_experts=moe.num_experts,
        top_k=moe.top_k,
        width=moe.latent_dim or hidden,
        latent=moe.latent_dim is not None,
        intermediate=moe.intermediate,
        matrices=3,
        bytes_per_parameter=BF16_BYTES if model.mxfp4_group is None else 0.5 + 1.0 / model.mxfp4_group,
        shared_parameters=3 * hidden * moe.shared_intermediate,
        latent_down=latent,
        latent_up=latent,
        router=moe.num_experts * hidden + moe.num_experts,
    )


def _norm_parameters(model: ModelSpec, num_moe: int) -> int:
    """Two norms a layer and the last one; with Attention Residuals two vectors at each read."""
    hidden, layers = model.hidden_size, len(model.layers)
    count = (2 * layers + 1) * hidden
    if model.attn_res_block is not None:
        count += 2 * (2 * layers + 1) * hidden
    if model.moe.latent_norm:
        count += num_moe * (model.moe.latent_dim or hidden)
    return count
