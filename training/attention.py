"""The two attention kinds of Kimi K3: KDA with a full-rank output gate, and gated MLA without positions."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from training import fused
from training.config import ToyConfig
from training.kda import chunk_kda
from training.layers import Linear, RMSNorm, multiply

_INNER_EPS = 1e-6
"""K3's MLA norms and its l2norm use this one, everything else ``rms_norm_eps``."""
_WRITE_OUT_UP_TO = 512


class ShortConv(nn.Module):
    """The weight of a causal depthwise convolution; the last tap weighs the current token."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(channels, 1, width).uniform_(-0.5, 0.5))


class KimiDeltaAttention(nn.Module):
    """KDA: short convolutions, a per-channel decay bounded below, the delta rule, a gated norm."""

    def __init__(self, config: ToyConfig) -> None:
        super().__init__()
        self.heads, self.head_dim = config.kda_num_heads, config.kda_head_dim
        self.lower_bound = config.gate_lower_bound
        hidden, width = config.hidden_size, self.heads * self.head_dim
        self._widths = [3 * width, width, self.head_dim, self.heads]
        self.q_proj, self.k_proj, self.v_proj = (Linear(hidden, width) for _ in range(3))
        self.q_conv1d, self.k_conv1d, self.v_conv1d = (
            ShortConv(width, config.short_conv_kernel_size) for _ in range(3)
        )
        self.f_a_proj, self.f_b_proj = Linear(hidden, self.head_dim), Linear(self.head_dim, width)
        self.b_proj = Linear(hidden, self.heads)
        self.A_log = nn.Parameter(torch.zeros(config.a_log_size))
        self.dt_bias = nn.Parameter(self._initial_decay_bias(width))
        self.g_proj = Linear(hidden, width)
        self.o_norm = RMSNorm(self.head_dim, config.rms_norm_eps)
        self.o_proj = Linear(width, hidden)

    def _initial_decay_bias(self, width: int) -> Tensor:
        """Biases that make the decay of a token about -0.0003 to -0.1, evenly in the logarithm."""
        decay = torch.exp(torch.empty(width).uniform_(math.log(0.0003), math.log(0.1)))
        return torch.logit(decay / -self.lower_bound)

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, D] -> [B, T, D]."""
        projections = (self.q_proj, self.k_proj, self.v_proj, self.g_proj, self.f_a_proj, self.b_proj)
        weights: list[Tensor] = [projection.weight for projection in projections]
        qkv, gate, decay, beta = torch.split(multiply(x, torch.cat(weights)), self._widths, -1)
        taps = torch.cat([conv.weight[:, 0] for conv in (self.q_conv1d, self.k_conv1d, self.v_conv1d)])
        q, k, v = (self._by_head(part) for part in fused.short_conv(qkv, taps).chunk(3, -1))
        q, k = _l2norm(q) * self.head_dim**-0.5, _l2norm(k)
        rate = self.A_log[: self.heads].exp().unsqueeze(-1)
        g = self.lower_bound * torch.sigmoid(rate * self._by_head(self.f_b_proj(decay) + self.dt_bias))
        out = self.o_norm(chunk_kda(q, k, v, g, torch.sigmoid(beta)))
        gated: Tensor = out.flatten(-2) * torch.sigmoid(gate)
        result: Tensor = self.o_proj(gated)
        return result

    def _by_head(self, x: Tensor) -> Tensor:
        """[B, T, H * K] -> [B, T, H, K]."""
        return x.view(*x.shape[:-1], self.heads, self.head_dim)


def _l2norm(x: Tensor) -> Tensor:
    """Scale the last dimension to length one."""
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + _INNER_EPS)


class GatedMLA(nn.Module):
    """Multi-head latent attention whose "rope" dimensions stay unrotated, with an output gate."""

    def __init__(self, config: ToyConfig) -> None:
        super().__init__()
        self.config = config
        heads, hidden = config.num_attention_heads, config.hidden_size
        self.query_dim = config.qk_nope_head_dim + config.qk_rope_head_dim
        self.q_a_proj = Linear(hidden, config.q_lora_rank)
        self.q_a_layernorm = RMSNorm(config.q_lora_rank, _INNER_EPS)
        self.q_b_proj = Linear(config.q_lora_rank, heads * self.query_dim)
        self.kv_a_proj_with_mqa = Linear(hidden, config.kv_lora_rank + config.qk_rope_head_dim)
        self.kv_a_layernorm = RMSNorm(config.kv_lora_rank, _INNER_EPS)
        self.kv_b_proj = Linear(config.kv_lora_rank, heads * (config.qk_nope_head_dim + config.v_head_dim))
        self.g_proj = Linear(hidden, heads * config.v_head_dim)
        self.o_proj = Linear(heads * config.v_head_dim, hidden)

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, D] -> [B, T, D]."""
        q, k, v = self._queries_keys_values(x)
        out = _causal_attention(q * self.query_dim**-0.5, k, v).transpose(1, 2).flatten(-2)
        result: Tensor = self.o_proj(out * torch.sigmoid(self.g_proj(x)))
        return result

    def _queries_keys_values(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Expand the latent: q and k [B, H, T, nope + rope], v [B, H, T, V]."""
        config = self.config
        heads = config.num_attention_heads
        q = self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x))).unflatten(-1, (heads, self.query_dim))
        latent, k_rot = self.kv_a_proj_with_mqa(x).split([config.kv_lora_rank, config.qk_rope_head_dim], -1)
        expanded = self.kv_b_proj(self.kv_a_layernorm(latent)).unflatten(-1, (heads, -1))
        k_nope, v = expanded.split([config.qk_nope_head_dim, config.v_head_dim], -1)
        k = torch.cat((k_nope, k_rot.unsqueeze(-2).expand(-1, -1, heads, -1)), -1)
        return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)


def _causal_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Softmax attention; short sequences write the scores out, which is several times faster on a CPU."""
    length = q.shape[-2]
    if length > _WRITE_OUT_UP_TO:
        v_dim = v.shape[-1]
        v = functional.pad(v, (0, q.shape[-1] - v_dim))  # torch's fused kernel wants one head size
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=1.0)[..., :v_dim]
    mask = torch.full((length, length), -math.inf, dtype=q.dtype).triu(1)
    return (q @ k.mT + mask).softmax(-1) @ v
