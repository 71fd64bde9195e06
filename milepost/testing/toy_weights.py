"""Random tensors for a config.json, under the published names, shapes and dtypes.

The scales are chosen so that nothing is degenerate: decays of KDA from almost 1 to almost 0, attention that
prefers some tokens, SiTU's caps in reach, a router whose bias changes the choice, banks of Attention
Residuals that are all read, norm weights off 1. Each tensor has its own seed, made from its name, so that a
change of one size or of one option leaves the other tensors as they were.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from milepost.kernels.mxfp4 import GROUP, dequantize
from milepost.models.mxfp4 import quantize_mxfp4

__all__ = ["toy_tensors"]

Named = Iterator[tuple[str, Tensor]]

# K3 stores 128 values of A_log for its 96 heads. What lies behind the heads must be read by nobody, so it is
# absurd.
_A_LOG_SURPLUS = 3
_A_LOG_UNREAD = 9.0


def toy_tensors(config: dict[str, Any], seed: int = 0, dtype: torch.dtype = torch.bfloat16) -> Named:
    """All tensors of a checkpoint, in layer order.

    Args:
        config: from `toy_k3_config` or `toy_kimi_linear_config`.
        seed: of all tensors.
        dtype: of what is published as BF16; what is published as F32 or packed in U8 stays that.

    Yields:
        Name and value of each tensor.
    """
    yield from _ToyWeights(config, seed, dtype).everything()


class _ToyWeights:
    def __init__(self, config: dict[str, Any], seed: int, dtype: torch.dtype) -> None:
        self._config = config
        self._text: dict[str, Any] = config.get("text_config", config)
        self._linear: dict[str, Any] = self._text["linear_attn_config"]
        self._is_k3 = config["model_type"] == "kimi_k3"
        self._is_packed = "quantization_config" in self._text
        self._prefix = "language_model." if self._is_k3 else ""
        self._hidden: int = self._text["hidden_size"]
        self._seed = seed
        self._dtype = dtype

    def everything(self) -> Named:
        model = f"{self._prefix}model."
        yield from self._plain(f"{model}embed_tokens.weight", (self._text["vocab_size"], self._hidden), 1.0)
        for layer in range(self._text["num_hidden_layers"]):
            yield from self._layer(f"{model}layers.{layer}.", layer)
        yield from self._norm(f"{model}norm.weight", self._hidden)
        if self._is_k3:
            yield from self._attn_res(f"{model}output_attn_res")
        yield from self._linear_map(f"{self._prefix}lm_head.weight", self._text["vocab_size"], self._hidden)
        if "vision_config" in self._config:
            yield from self._vision(self._config["vision_config"])

    # ---- the raw material ------------------------------------------------------------------------

    def _generator(self, name: str) -> torch.Generator:
        # Names without the family's prefix: the text model of both families draws the same numbers.
        # torch's CPU generator looks at 32 bits of its seed.
        key = f"{self._seed} {name.removeprefix(self._prefix)}"
        return torch.Generator().manual_seed(zlib.crc32(key.encode()))

    def _normal(self, name: str, shape: tuple[int, ...]) -> Tensor:
        return torch.randn(shape, generator=self._generator(name))

    def _uniform(self, name: str, shape: tuple[int, ...], low: float, high: float) -> Tensor:
        return torch.rand(shape, generator=self._generator(name)) * (high - low) + low

    def _plain(self, name: str, shape: tuple[int, ...], std: float) -> Named:
        yield name, (self._normal(name, shape) * std).to(self._dtype)

    def _linear_map(self, name: str, out_dim: int, in_dim: int, gain: float = 1.0) -> Named:
        """A matrix that turns inputs of unit variance into outputs of standard deviation ``gain``."""
        yield from self._plain(name, (out_dim, in_dim), gain * in_dim**-0.5)

    def _norm(self, name: str, width: int, dtype: torch.dtype | None = None) -> Named:
        yield name, self._uniform(name, (width,), 0.4, 1.6).to(dtype or self._dtype)

    # ---- layers ----------------------------------------------------------------------------------

    def _layer(self, prefix: str, layer: int) -> Named:
        yield from self._norm(f"{prefix}input_layernorm.weight", self._hidden)
        yield from self._norm(f"{prefix}post_attention_layernorm.weight", self._hidden)
        if self._is_k3:
            # Layer 0's self_attention_res has no bank to read: published, and dead.
            yield from self._attn_res(f"{prefix}self_attention_res")
            yield from self._attn_res(f"{prefix}mlp_res")
        is_mla = layer + 1 in self._linear["full_attn_layers"]
        yield from (self._mla if is_mla else self._kda)(f"{prefix}self_attn.")
        is_dense = layer < self._text["first_k_dense_replace"]
        if is_dense:
            yield from self._mlp(f"{prefix}mlp.", self._text["intermediate_size"])
        else:
            yield from self._moe(f"{prefix}block_sparse_moe.")

    def _attn_res(self, site: str) -> Named:
        yield from self._norm(f"{site}_norm.weight", self._hidden)
        yield from self._linear_map(f"{site}_proj.weight", 1, self._hidden, gain=1.5)

    def _kda(self, prefix: str) -> Named:
        heads, head_dim = self._linear["num_heads"], self._linear["head_dim"]
        channels = heads * head_dim
        for part in "qkv":
            yield from self._linear_map(f"{prefix}{part}_proj.weight", channels, self._hidden)
        # The dtypes that K3 publishes; Kimi-Linear's are not published anywhere we know, BF16 is a guess.
        small = torch.float32 if self._is_k3 else self._dtype
        for part in "qkv":
            name = f"{prefix}{part}_conv1d.weight"
            shape = (channels, 1, self._linear["short_conv_kernel_size"])
            yield name, (self._normal(name, shape) * 0.6).to(small)
        yield from self._decay(prefix, heads, head_dim)
        yield from self._linear_map(f"{prefix}b_proj.weight", heads, self._hidden, gain=1.5)
        if self._is_k3:
            yield from self._linear_map(f"{prefix}g_proj.weight", channels, self._hidden, gain=1.5)
        else:
            yield from self._linear_map(f"{prefix}g_a_proj.weight", head_dim, self._hidden)
            yield from self._linear_map(f"{prefix}g_b_proj.weight", channels, head_dim, gain=1.5)
        yield from self._norm(f"{prefix}o_norm.weight", head_dim, small)
        yield from self._linear_map(f"{prefix}o_proj.weight", self._hidden, channels, gain=1.5)

    def _decay(self, prefix: str, heads: int, head_dim: int) -> Named:
        """The forget gate, spread: each head has channels that keep for long and others that forget."""
        yield from self._linear_map(f"{prefix}f_a_proj.weight", head_dim, self._hidden)
        yield from self._linear_map(f"{prefix}f_b_proj.weight", heads * head_dim, head_dim)
        bias = f"{prefix}dt_bias"
        yield bias, self._uniform(bias, (heads * head_dim,), -6.0, 0.0)
        name = f"{prefix}A_log"
        if self._is_k3:
            decay = self._uniform(name, (heads,), -0.7, 0.7)
            surplus = torch.full((_A_LOG_SURPLUS,), _A_LOG_UNREAD)
            yield name, torch.cat((decay, surplus))
        else:
            yield name, self._uniform(name, (1, 1, heads, 1), -1.5, 1.5)

    def _mla(self, prefix: str) -> Named:
        text = self._text
        heads, nope, rope, value = (
            text[key] for key in ("num_attention_heads", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
        )
        q_rank, kv_rank = text["q_lora_rank"], text["kv_lora_rank"]
        if q_rank is None:
            yield from self._linear_map(
                f"{prefix}q_proj.weight", heads * (nope + rope), self._hidden, gain=2.0
            )
        else:
            yield from self._linear_map(f"{prefix}q_a_proj.weight", q_rank, self._hidden)
            yield from self._norm(f"{prefix}q_a_layernorm.weight", q_rank)
            yield from self._linear_map(f"{prefix}q_b_proj.weight", heads * (nope + rope), q_rank, gain=2.0)
        yield from self._linear_map(f"{prefix}kv_a_proj_with_mqa.weight", kv_rank + rope, self._hidden)
        yield from self._norm(f"{prefix}kv_a_layernorm.weight", kv_rank)
        yield from self._linear_map(f"{prefix}kv_b_proj.weight", heads * (nope + value), kv_rank)
        if text.get("mla_use_output_gate"):
            yield from self._linear_map(f"{prefix}g_proj.weight", heads * value, self._hidden, gain=1.5)
        yield from self._linear_map(f"{prefix}o_proj.weight", self._hidden, heads * value, gain=1.5)

    # ---- feed-forward ----------------------------------------------------------------------------

    def _mlp(self, prefix: str, width: int) -> Named:
        # Wide enough for SiTU's caps, 4 and 25, to bend the result; harmless for SwiGLU.
        yield from self._linear_map(f"{prefix}gate_proj.weight", width, self._hidden, gain=2.0)
        yield from self._linear_map(f"{prefix}up_proj.weight", width, self._hidden, gain=6.0)
        yield from self._linear_map(f"{prefix}down_proj.weight", self._hidden, width, gain=0.2)

    def _moe(self, prefix: str) -> Named:
        text = self._text
        experts, width = text["num_experts"], text["moe_intermediate_size"]
        yield from self._linear_map(f"{prefix}gate.weight", experts, self._hidden, gain=1.5)
        bias = f"{prefix}gate.e_score_correction_bias"
        yield bias, self._uniform(bias, (experts,), -0.4, 0.4)
        inner = self._hidden
        if self._is_k3:
            inner = text["routed_expert_hidden_size"]
            yield from self._linear_map(f"{prefix}routed_expert_down_proj.weight", inner, self._hidden)
            if text["latent_moe_use_norm"]:
                yield from self._norm(f"{prefix}routed_expert_norm.weight", inner)
            yield from self._linear_map(f"{prefix}routed_expert_up_proj.weight", self._hidden, inner)
        if text["num_shared_experts"]:
            yield from self._mlp(f"{prefix}shared_experts.", width * text["num_shared_experts"])
        for expert in range(experts):
            yield from self._expert(f"{prefix}experts.{expert}.", width, inner)

    def _expert(self, prefix: str, width: int, inner: int) -> Named:
        for part, out_dim, in_dim, gain in (
            ("w1", width, inner, 2.0),
            ("w2", inner, width, 0.2),
            ("w3", width, inner, 6.0),
        ):
            name = f"{prefix}{part}.weight"
            weight = self._normal(name, (out_dim, in_dim)) * (gain * in_dim**-0.5)
            if not self._is_k3:
                yield name, weight.to(self._dtype)
                continue
            yield from self._k3_expert_matrix(name, weight)

    def _k3_expert_matrix(self, name: str, weight: Tensor) -> Named:
        """Packed, or the very same values unpacked: the two forms of a checkpoint are one model."""
        if weight.shape[-1] % GROUP:
            yield name, weight.to(self._dtype)
            return
        spread = 2.0 ** self._uniform(
            f"{name}.spread", (weight.shape[0], weight.shape[1] // GROUP), -2.0, 1.0
        )
        packed, scale = quantize_mxfp4(weight * spread.repeat_interleave(GROUP, dim=1))
        if self._is_packed:
            yield f"{name}_packed", packed
            yield f"{name}_scale", scale
        else:
            yield name, dequantize(packed, scale, self._dtype)

    # ---- what a text engine skips ----------------------------------------------------------------

    def _vision(self, vision: dict[str, Any]) -> Named:
        width, qkv, mlp = (
            vision[key] for key in ("vt_hidden_size", "qkv_hidden_size", "vt_intermediate_size")
        )
        patch, merged = vision["patch_size"], width * 4
        yield from self._plain("vision_tower.patch_embed.proj.weight", (width, 3, patch, patch), 0.05)
        yield from self._plain("vision_tower.patch_embed.pos_emb.weight", (8, 8, width), 0.05)
        for block in range(vision["vt_num_hidden_layers"]):
            prefix = f"vision_tower.encoder.blocks.{block}."
            yield from self._linear_map(f"{prefix}wqkv.weight", 3 * qkv, width)
            yield from self._linear_map(f"{prefix}wo.weight", width, qkv)
            yield from self._norm(f"{prefix}norm0.weight", width)
            yield from self._norm(f"{prefix}norm1.weight", width)
            yield from self._linear_map(f"{prefix}mlp.fc0.weight", mlp, width)
            yield from self._linear_map(f"{prefix}mlp.fc1.weight", width, mlp)
        yield from self._norm("vision_tower.encoder.final_layernorm.weight", width)
        yield from self._linear_map("mm_projector.proj.0.weight", merged, merged)
        yield from self._linear_map("mm_projector.proj.2.weight", self._hidden, merged)
        yield from self._norm("mm_projector.post_norm.weight", self._hidden)
