"""Small models and layouts that the runtime's tests share."""

from __future__ import annotations

import pytest
import torch

from milepost.memory.layout import PagedLayout, paged_layout
from milepost.model_spec import (
    Activation,
    KdaSpec,
    LayerKind,
    MlaSpec,
    ModelFamily,
    ModelSpec,
    MoeSpec,
)

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def spec() -> ModelSpec:
    """Three KDA and one MLA layer; sizes small and unequal, so that a mix-up shows."""
    return ModelSpec(
        family=ModelFamily.KIMI_LINEAR,
        hidden_size=32,
        vocab_size=50,
        layers=(LayerKind.KDA, LayerKind.KDA, LayerKind.KDA, LayerKind.MLA),
        kda=KdaSpec(num_heads=2, head_dim=16, conv_size=4, gate_lower_bound=None, full_rank_gate=False),
        mla=MlaSpec(
            num_heads=2,
            q_lora_rank=None,
            kv_lora_rank=24,
            nope_head_dim=16,
            rope_head_dim=8,
            v_head_dim=16,
            output_gate=False,
        ),
        moe=MoeSpec(
            num_experts=4,
            top_k=2,
            intermediate=16,
            shared_intermediate=16,
            renormalize=True,
            routed_scaling_factor=1.0,
            latent_dim=None,
            latent_norm=False,
        ),
        dense_intermediate=48,
        first_dense=1,
        activation=Activation("silu"),
        attn_res_block=None,
        norm_eps=1e-5,
        mla_norm_eps=1e-6,
        max_position=4096,
        bos_token_id=1,
        pad_token_id=0,
        stop_token_ids=(2,),
        weight_prefix="",
        mxfp4_group=None,
    )


@pytest.fixture(scope="session")
def layout(spec: ModelSpec) -> PagedLayout:
    """Pages of 16 tokens in float32."""
    return paged_layout(spec, block_size=16, kv_itemsize=4, conv_itemsize=4)
