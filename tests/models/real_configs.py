"""The field values of the two public config.json files, as test data.

Kimi K3: moonshotai/Kimi-K3; Kimi-Linear: moonshotai/Kimi-Linear-48B-A3B-Instruct. Lists that follow a
rule are spelled as the rule.
"""

from __future__ import annotations

import copy
from typing import Any

K3_FULL_ATTENTION = [*range(4, 93, 4), 93]
LINEAR_FULL_ATTENTION = [4, 8, 12, 16, 20, 24, 27]

_K3_QUANTIZATION: dict[str, Any] = {
    "config_groups": {
        "group_0": {
            "format": "mxfp4-pack-quantized",
            "input_activations": None,
            "output_activations": None,
            "targets": ["Linear"],
            "weights": {
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
            },
        }
    },
    "format": "mxfp4-pack-quantized",
    "global_compression_ratio": None,
    "ignore": ["re:.*self_attn.*", "re:.*shared_experts.*", "re:.*lm_head.*"],
    "kv_cache_scheme": None,
    "quant_method": "compressed-tensors",
    "quantization_status": "compressed",
}

_K3: dict[str, Any] = {
    "architectures": ["KimiK3ForConditionalGeneration"],
    "auto_map": {"AutoConfig": "configuration_kimi_k3.KimiK3Config"},
    "bos_token_id": 163584,
    "dtype": "bfloat16",
    "eos_token_id": 163586,
    "ignore_index": -100,
    "image_placeholder": "<|kimi_image_placeholder|>",
    "media_placeholder_token_id": 163605,
    "model_type": "kimi_k3",
    "pad_token_id": 163839,
    "text_config": {
        "_name_or_path": "",
        "activation_situ_beta": 4.0,
        "activation_situ_linear_beta": 25.0,
        "add_cross_attention": False,
        "architectures": ["KimiLinearForCausalLM"],
        "attn_res_block_size": 12,
        "bad_words_ids": None,
        "bos_token_id": 163584,
        "chunk_size_feed_forward": 0,
        "do_sample": False,
        "dtype": "bfloat16",
        "eos_token_id": 163586,
        "first_k_dense_replace": 1,
        "hidden_act": "situ",
        "hidden_size": 7168,
        "id2label": {"0": "LABEL_0", "1": "LABEL_1"},
        "initializer_range": 0.02,
        "intermediate_size": 33792,
        "is_decoder": False,
        "is_encoder_decoder": False,
        "kv_lora_rank": 512,
        "latent_moe_use_norm": True,
        "linear_attn_config": {
            "full_attn_layers": K3_FULL_ATTENTION,
            "gate_lower_bound": -5.0,
            "head_dim": 128,
            "kda_layers": [layer for layer in range(1, 94) if layer not in K3_FULL_ATTENTION],
            "num_heads": 96,
            "short_conv_kernel_size": 4,
            "use_full_rank_gate": True,
        },
        "max_length": 20,
        "max_position_embeddings": 1048576,
        "mla_use_nope": True,
        "mla_use_output_gate": True,
        "model_type": "kimi_linear",
        "moe_intermediate_size": 3072,
        "moe_layer_freq": 1,
        "moe_renormalize": True,
        "moe_router_activation_func": "sigmoid",
        "num_attention_heads": 96,
        "num_expert_group": 1,
        "num_experts": 896,
        "num_experts_per_token": 16,
        "num_hidden_layers": 93,
        "num_key_value_heads": 96,
        "num_nextn_predict_layers": 0,
        "num_shared_experts": 2,
        "pad_token_id": 163839,
        "prefix": None,
        "pruned_heads": {},
        "q_lora_rank": 1536,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "quantization_config": _K3_QUANTIZATION,
        "rms_norm_eps": 1e-05,
        "routed_expert_hidden_size": 3584,
        "routed_scaling_factor": 1.0,
        "tie_word_embeddings": False,
        "top_k": 50,
        "topk_group": 1,
        "topk_method": "noaux_tc",
        "transformers_version": "4.56.2",
        "use_bfloat16": False,
        "use_cache": True,
        "use_grouped_topk": True,
        "v_head_dim": 128,
        "vocab_size": 163840,
    },
    "tie_word_embeddings": False,
    "vision_config": {"vt_hidden_size": 1024, "patch_size": 14},
}

_LINEAR: dict[str, Any] = {
    "architectures": ["KimiLinearForCausalLM"],
    "bos_token_id": 163584,
    "dtype": "bfloat16",
    "eos_token_id": 163586,
    "first_k_dense_replace": 1,
    "head_dim": 72,
    "hidden_act": "silu",
    "hidden_size": 2304,
    "initializer_range": 0.02,
    "intermediate_size": 9216,
    "kv_lora_rank": 512,
    "linear_attn_config": {
        "full_attn_layers": LINEAR_FULL_ATTENTION,
        "head_dim": 128,
        "kda_layers": [layer for layer in range(1, 28) if layer not in LINEAR_FULL_ATTENTION],
        "num_heads": 32,
        "short_conv_kernel_size": 4,
    },
    "mla_use_nope": True,
    "model_max_length": 1048576,
    "model_type": "kimi_linear",
    "moe_intermediate_size": 1024,
    "moe_layer_freq": 1,
    "moe_renormalize": True,
    "moe_router_activation_func": "sigmoid",
    "num_attention_heads": 32,
    "num_expert_group": 1,
    "num_experts": 256,
    "num_experts_per_token": 8,
    "num_hidden_layers": 27,
    "num_key_value_heads": 32,
    "num_nextn_predict_layers": 0,
    "num_shared_experts": 1,
    "pad_token_id": 163839,
    "q_lora_rank": None,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "rope_theta": 10000.0,
    "routed_scaling_factor": 2.446,
    "tie_word_embeddings": False,
    "topk_group": 1,
    "transformers_version": "4.57.1",
    "use_cache": True,
    "use_grouped_topk": True,
    "v_head_dim": 128,
    "vocab_size": 163840,
}


def k3_config() -> dict[str, Any]:
    """A fresh copy of Kimi K3's config.json."""
    return copy.deepcopy(_K3)


def kimi_linear_config() -> dict[str, Any]:
    """A fresh copy of Kimi-Linear-48B-A3B's config.json."""
    return copy.deepcopy(_LINEAR)
