"""config.json of small random models, field for field as the published ones, with sizes as parameters.

No two widths are equal by default, and KDA and MLA have different head counts, so that code which takes one
axis for another fails instead of agreeing by luck. Layer lists count from 1, as published.
"""

from __future__ import annotations

from typing import Any

from milepost.errors import ConfigError

__all__ = ["REAL_BASE_VOCAB", "SPECIAL_TOKENS", "toy_k3_config", "toy_kimi_linear_config"]

Config = dict[str, Any]

REAL_BASE_VOCAB = 163_584
"""Ordinary tokens of the published vocabulary; the specials follow it."""
SPECIAL_TOKENS = 256
"""Ids kept for special tokens behind the ordinary ones."""

_BOS, _STOP, _MEDIA, _PAD = 163_584, 163_586, 163_605, 163_839
_MAX_POSITION = 1_048_576


def toy_k3_config(  # noqa: PLR0913 - every size of the model is an argument
    *,
    base_vocab: int = 320,
    hidden_size: int = 80,
    num_layers: int = 9,
    full_attn_layers: list[int] | None = None,
    dense_intermediate: int = 112,
    kda_heads: int = 5,
    kda_head_dim: int = 32,
    conv_size: int = 4,
    gate_lower_bound: float = -5.0,
    mla_heads: int = 3,
    q_lora_rank: int = 56,
    kv_lora_rank: int = 48,
    nope_head_dim: int = 24,
    rope_head_dim: int = 16,
    v_head_dim: int = 40,
    num_experts: int = 16,
    top_k: int = 4,
    moe_intermediate: int = 96,
    latent_size: int = 64,
    latent_norm: bool = True,
    num_shared_experts: int = 2,
    routed_scaling_factor: float = 1.0,
    attn_res_block: int = 4,
    first_dense: int = 1,
    packed_experts: bool = True,
    vision: bool = True,
) -> Config:
    """config.json of a small Kimi K3.

    The default 9 layers have two MLA layers at their end (1-based 8 and 9), as the published 92 and 93, and
    three Attention Residuals banks. ``packed_experts`` False leaves the quantization_config out.

    Raises:
        ConfigError: packed experts whose widths aren't multiples of the MXFP4 group, 32.
    """
    if packed_experts and (latent_size % 32 or moe_intermediate % 32):
        raise ConfigError(
            f"Packed experts need widths that are multiples of 32. Given: latent_size {latent_size} and "
            f"moe_intermediate {moe_intermediate}."
        )
    text: Config = {
        "activation_situ_beta": 4.0,
        "activation_situ_linear_beta": 25.0,
        "architectures": ["KimiLinearForCausalLM"],
        "attn_res_block_size": attn_res_block,
        **_token_ids(base_vocab),
        "dtype": "bfloat16",
        "first_k_dense_replace": first_dense,
        "hidden_act": "situ",
        "hidden_size": hidden_size,
        "initializer_range": 0.02,
        "intermediate_size": dense_intermediate,
        "kv_lora_rank": kv_lora_rank,
        "latent_moe_use_norm": latent_norm,
        "linear_attn_config": {
            **_layer_lists(num_layers, full_attn_layers),
            "gate_lower_bound": gate_lower_bound,
            "head_dim": kda_head_dim,
            "num_heads": kda_heads,
            "short_conv_kernel_size": conv_size,
            "use_full_rank_gate": True,
        },
        "max_position_embeddings": _MAX_POSITION,
        "mla_use_nope": True,
        "mla_use_output_gate": True,
        "model_type": "kimi_linear",
        "q_lora_rank": q_lora_rank,
        "qk_nope_head_dim": nope_head_dim,
        "qk_rope_head_dim": rope_head_dim,
        "rms_norm_eps": 1e-05,
        "routed_expert_hidden_size": latent_size,
        "tie_word_embeddings": False,
        "v_head_dim": v_head_dim,
        "vocab_size": base_vocab + SPECIAL_TOKENS,
        **_attention_fields(num_layers, mla_heads),
        **_moe_fields(num_experts, top_k, moe_intermediate, num_shared_experts, routed_scaling_factor),
        "topk_method": "noaux_tc",
    }
    if packed_experts:
        text["quantization_config"] = _mxfp4_quantization()
    config: Config = {
        "architectures": ["KimiK3ForConditionalGeneration"],
        **_token_ids(base_vocab),
        "dtype": "bfloat16",
        "media_placeholder_token_id": _toy_id(base_vocab, _MEDIA),
        "model_type": "kimi_k3",
        "text_config": text,
        "tie_word_embeddings": False,
    }
    if vision:
        config["vision_config"] = _vision_config(hidden_size)
    return config


def toy_kimi_linear_config(  # noqa: PLR0913 - every size of the model is an argument
    *,
    base_vocab: int = 320,
    hidden_size: int = 80,
    num_layers: int = 7,
    full_attn_layers: list[int] | None = None,
    dense_intermediate: int = 112,
    kda_heads: int = 5,
    kda_head_dim: int = 32,
    conv_size: int = 4,
    mla_heads: int = 3,
    kv_lora_rank: int = 48,
    nope_head_dim: int = 24,
    rope_head_dim: int = 16,
    v_head_dim: int = 40,
    num_experts: int = 12,
    top_k: int = 3,
    moe_intermediate: int = 64,
    num_shared_experts: int = 1,
    routed_scaling_factor: float = 2.446,
    first_dense: int = 1,
) -> Config:
    """config.json of a small Kimi-Linear; its last layer is MLA, off the stride, as the published one."""
    return {
        "architectures": ["KimiLinearForCausalLM"],
        **_token_ids(base_vocab),
        "dtype": "bfloat16",
        "first_k_dense_replace": first_dense,
        "head_dim": 72,  # published, read by nothing
        "hidden_act": "silu",
        "hidden_size": hidden_size,
        "initializer_range": 0.02,
        "intermediate_size": dense_intermediate,
        "kv_lora_rank": kv_lora_rank,
        "linear_attn_config": {
            **_layer_lists(num_layers, full_attn_layers),
            "head_dim": kda_head_dim,
            "num_heads": kda_heads,
            "short_conv_kernel_size": conv_size,
        },
        "mla_use_nope": True,
        "model_max_length": _MAX_POSITION,
        "model_type": "kimi_linear",
        "q_lora_rank": None,
        "qk_nope_head_dim": nope_head_dim,
        "qk_rope_head_dim": rope_head_dim,
        "rms_norm_eps": 1e-05,
        "rope_scaling": None,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "use_cache": True,
        "v_head_dim": v_head_dim,
        "vocab_size": base_vocab + SPECIAL_TOKENS,
        **_attention_fields(num_layers, mla_heads),
        **_moe_fields(num_experts, top_k, moe_intermediate, num_shared_experts, routed_scaling_factor),
    }


def _toy_id(base_vocab: int, real_id: int) -> int:
    return base_vocab + real_id - REAL_BASE_VOCAB


def _token_ids(base_vocab: int) -> Config:
    return {
        "bos_token_id": _toy_id(base_vocab, _BOS),
        "eos_token_id": _toy_id(base_vocab, _STOP),
        "pad_token_id": _toy_id(base_vocab, _PAD),
    }


def _layer_lists(num_layers: int, full_attn_layers: list[int] | None) -> Config:
    """The published rule by default: every fourth layer is MLA, and so is the last one."""
    every = range(1, num_layers + 1)
    full = (
        full_attn_layers
        if full_attn_layers is not None
        else [n for n in every if n % 4 == 0 or n == num_layers]
    )
    return {"full_attn_layers": full, "kda_layers": [n for n in every if n not in full]}


def _attention_fields(num_layers: int, mla_heads: int) -> Config:
    return {
        "num_attention_heads": mla_heads,
        "num_hidden_layers": num_layers,
        "num_key_value_heads": mla_heads,
        "num_nextn_predict_layers": 0,
    }


def _moe_fields(experts: int, top_k: int, intermediate: int, shared: int, scaling: float) -> Config:
    return {
        "moe_intermediate_size": intermediate,
        "moe_layer_freq": 1,
        "moe_renormalize": True,
        "moe_router_activation_func": "sigmoid",
        "num_expert_group": 1,
        "num_experts": experts,
        "num_experts_per_token": top_k,
        "num_shared_experts": shared,
        "routed_scaling_factor": scaling,
        "topk_group": 1,
        "use_grouped_topk": True,
    }


def _mxfp4_quantization() -> Config:
    """As published: ``ignore`` names neither router nor latent projections, which are BF16 all the same."""
    weights: Config = {
        "actorder": None,
        "block_structure": None,
        "dynamic": False,
        "group_size": 32,
        "num_bits": 4,
        "observer": "minmax",
        "observer_kwargs": {},
        "scale_dtype": "torch.uint8",
        "strategy": "group",
        "symmetric": True,
        "type": "float",
        "zp_dtype": None,
    }
    group: Config = {
        "format": "mxfp4-pack-quantized",
        "input_activations": None,
        "output_activations": None,
        "targets": ["Linear"],
        "weights": weights,
    }
    ignore = ["self_attn", "shared_experts", r"mlp\.(gate|up|gate_up|down)_proj", "lm_head", "vision_tower"]
    return {
        "config_groups": {"group_0": group},
        "format": "mxfp4-pack-quantized",
        "global_compression_ratio": None,
        "ignore": [f"re:.*{name}.*" for name in [*ignore, "mm_projector"]],
        "kv_cache_scheme": None,
        "quant_method": "compressed-tensors",
        "quantization_status": "compressed",
    }


def _vision_config(hidden_size: int) -> Config:
    return {
        "merge_kernel_size": [2, 2],
        "mm_hidden_size": 12,
        "mm_projector_type": "patchmergerv2",
        "norm_type": "rmsnorm",
        "patch_size": 14,
        "qkv_hidden_size": 24,
        "text_hidden_size": hidden_size,
        "vt_hidden_size": 12,
        "vt_intermediate_size": 20,
        "vt_num_attention_heads": 2,
        "vt_num_hidden_layers": 1,
    }
