"""Models as plain data: the two published ones as their pages see them, and a small one."""

from __future__ import annotations

import msgspec

from milepost.model_spec import Activation, KdaSpec, LayerKind, MlaSpec, ModelFamily, ModelSpec, MoeSpec


def model(
    family: ModelFamily, *, mla_layers: set[int], num_layers: int, heads: int, head_dim: int = 128
) -> ModelSpec:
    """A model as its pages see it: `mla_layers` are 1-based, as in config.json."""
    k3 = family is ModelFamily.KIMI_K3
    return ModelSpec(
        family=family,
        hidden_size=7168 if k3 else 2304,
        vocab_size=163840,
        layers=tuple(
            LayerKind.MLA if layer in mla_layers else LayerKind.KDA for layer in range(1, num_layers + 1)
        ),
        kda=KdaSpec(
            num_heads=heads,
            head_dim=head_dim,
            conv_size=4,
            gate_lower_bound=-5.0 if k3 else None,
            full_rank_gate=k3,
        ),
        mla=MlaSpec(
            num_heads=heads,
            q_lora_rank=1536 if k3 else None,
            kv_lora_rank=512,
            nope_head_dim=128,
            rope_head_dim=64,
            v_head_dim=128,
            output_gate=k3,
        ),
        moe=MoeSpec(
            num_experts=8,
            top_k=2,
            intermediate=64,
            shared_intermediate=64,
            renormalize=True,
            routed_scaling_factor=1.0,
            latent_dim=None,
            latent_norm=False,
        ),
        dense_intermediate=64,
        first_dense=1,
        activation=Activation("silu"),
        attn_res_block=None,
        norm_eps=1e-5,
        mla_norm_eps=1e-6,
        max_position=1 << 20,
        bos_token_id=0,
        pad_token_id=0,
        stop_token_ids=(0,),
        weight_prefix="",
        mxfp4_group=None,
    )


K3 = model(ModelFamily.KIMI_K3, mla_layers={*range(4, 89, 4), 92, 93}, num_layers=93, heads=96)
KIMI_LINEAR = model(ModelFamily.KIMI_LINEAR, mla_layers={4, 8, 12, 16, 20, 24, 27}, num_layers=27, heads=32)

# Three KDA and one MLA layer; sizes small and unequal, so that a mix-up shows.
SMALL = msgspec.structs.replace(
    KIMI_LINEAR,
    vocab_size=50,
    layers=(LayerKind.KDA, LayerKind.KDA, LayerKind.KDA, LayerKind.MLA),
    kda=KdaSpec(num_heads=2, head_dim=16, conv_size=4, gate_lower_bound=None, full_rank_gate=False),
    mla=msgspec.structs.replace(KIMI_LINEAR.mla, kv_lora_rank=24, rope_head_dim=8),
    max_position=4096,
)
