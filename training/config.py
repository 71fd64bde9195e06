"""The sizes of the small model, and its ``config.json`` with every field of Kimi K3's."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class ToyConfig:
    """Kimi K3's architecture at a millionth of its size; field names are mostly those of ``text_config``."""

    hidden_size: int = 128
    num_hidden_layers: int = 9
    intermediate_size: int = 384
    num_attention_heads: int = 4
    q_lora_rank: int = 96
    kv_lora_rank: int = 64
    qk_nope_head_dim: int = 32
    qk_rope_head_dim: int = 16
    v_head_dim: int = 32
    num_experts: int = 8
    num_experts_per_token: int = 2
    num_shared_experts: int = 2
    moe_intermediate_size: int = 64
    routed_expert_hidden_size: int = 64
    routed_scaling_factor: float = 1.0
    beta: float = 4.0
    linear_beta: float = 25.0
    attn_res_block_size: int = 4
    rms_norm_eps: float = 1e-5
    vocab_size: int = 1536
    max_position_embeddings: int = 8192
    kda_num_heads: int = 4
    kda_head_dim: int = 32
    a_log_size: int = 8
    """K3 stores ``A_log`` longer than its heads (128 for 96), and so does this model; the rest is unused."""
    short_conv_kernel_size: int = 4
    gate_lower_bound: float = -5.0
    full_attn_layers: tuple[int, ...] = field(default=(4, 8, 9))

    @property
    def base_vocab_size(self) -> int:
        """How many ids are byte-pair ranks; the other 256 are special tokens."""
        return self.vocab_size - 256

    def is_full_attention(self, layer: int) -> bool:
        """Whether the 0-based ``layer`` is MLA; the lists in the configuration are 1-based."""
        return layer + 1 in self.full_attn_layers

    def to_json(self) -> dict[str, Any]:
        """The contents of ``config.json``."""
        first_special = self.base_vocab_size
        return {
            "architectures": ["KimiK3ForConditionalGeneration"],
            "model_type": "kimi_k3",
            "dtype": "bfloat16",
            "bos_token_id": first_special,
            "eos_token_id": first_special + 2,
            "pad_token_id": first_special + 255,
            "media_placeholder_token_id": first_special + 21,
            "tie_word_embeddings": False,
            "text_config": self._text_config(),
        }

    def _text_config(self) -> dict[str, Any]:
        first_special = self.base_vocab_size
        layers = range(1, self.num_hidden_layers + 1)
        return {
            "model_type": "kimi_linear",
            "vocab_size": self.vocab_size,
            "hidden_size": self.hidden_size,
            "num_hidden_layers": self.num_hidden_layers,
            "intermediate_size": self.intermediate_size,
            "num_attention_heads": self.num_attention_heads,
            "num_key_value_heads": self.num_attention_heads,
            "q_lora_rank": self.q_lora_rank,
            "kv_lora_rank": self.kv_lora_rank,
            "qk_nope_head_dim": self.qk_nope_head_dim,
            "qk_rope_head_dim": self.qk_rope_head_dim,
            "v_head_dim": self.v_head_dim,
            "mla_use_nope": True,
            "mla_use_output_gate": True,
            "linear_attn_config": {
                "num_heads": self.kda_num_heads,
                "head_dim": self.kda_head_dim,
                "short_conv_kernel_size": self.short_conv_kernel_size,
                "use_full_rank_gate": True,
                "gate_lower_bound": self.gate_lower_bound,
                "full_attn_layers": list(self.full_attn_layers),
                "kda_layers": [layer for layer in layers if layer not in self.full_attn_layers],
            },
            "first_k_dense_replace": 1,
            "moe_layer_freq": 1,
            "num_experts": self.num_experts,
            "num_experts_per_token": self.num_experts_per_token,
            "num_shared_experts": self.num_shared_experts,
            "moe_intermediate_size": self.moe_intermediate_size,
            "routed_expert_hidden_size": self.routed_expert_hidden_size,
            "latent_moe_use_norm": True,
            "moe_router_activation_func": "sigmoid",
            "topk_method": "noaux_tc",
            "use_grouped_topk": True,
            "num_expert_group": 1,
            "topk_group": 1,
            "moe_renormalize": True,
            "routed_scaling_factor": self.routed_scaling_factor,
            "hidden_act": "situ",
            "activation_situ_beta": self.beta,
            "activation_situ_linear_beta": self.linear_beta,
            "attn_res_block_size": self.attn_res_block_size,
            "rms_norm_eps": self.rms_norm_eps,
            "max_position_embeddings": self.max_position_embeddings,
            "tie_word_embeddings": False,
            "num_nextn_predict_layers": 0,
            "bos_token_id": first_special,
            "eos_token_id": first_special + 2,
            "pad_token_id": first_special + 255,
            "quantization_config": _quantization_config(),
        }


def _quantization_config() -> dict[str, Any]:
    """Weight-only MXFP4 for the routed experts, in the words of compressed-tensors."""
    weights = {
        "num_bits": 4,
        "type": "float",
        "strategy": "group",
        "group_size": 32,
        "symmetric": True,
        "dynamic": False,
        "scale_dtype": "torch.uint8",
    }
    return {
        "quant_method": "compressed-tensors",
        "format": "mxfp4-pack-quantized",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": None}},
        "ignore": [
            "re:.*self_attn.*",
            "re:.*shared_experts.*",
            "re:.*mlp\\.(gate|up|gate_up|down)_proj.*",
            "re:.*lm_head.*",
            "re:.*vision_tower.*",
            "re:.*mm_projector.*",
        ],
        "quantization_status": "compressed",
    }
