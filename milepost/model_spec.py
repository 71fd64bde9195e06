"""What a model is made of: layer kinds and sizes, as plain data.

`milepost.model_spec` knows no tensors. `parse_config` (in `milepost.config_json`) reads it from a
checkpoint's config.json; `memory` sizes pages from it, `models` builds layers from it.
"""

from __future__ import annotations

import enum

import msgspec

__all__ = [
    "Activation",
    "KdaSpec",
    "LayerKind",
    "MlaSpec",
    "ModelFamily",
    "ModelSpec",
    "MoeSpec",
]


class ModelFamily(enum.Enum):
    """Model families by the name that config.json gives them."""

    KIMI_K3 = "kimi_k3"
    KIMI_LINEAR = "kimi_linear"


class LayerKind(enum.Enum):
    """What mixes tokens in a layer: a recurrent state (KDA) or an append-only cache (MLA)."""

    KDA = "kda"
    MLA = "mla"


class Activation(msgspec.Struct, frozen=True):
    """Gated activation of every feed-forward network of a model.

    ``name`` is "silu" (SwiGLU: silu(g) * u) or "situ" (K3: [cap_gate*tanh(g/cap_gate)*sigmoid(g)]
    * [cap_up*tanh(u/cap_up)]); the caps are config.json's beta and linear_beta.
    """

    name: str
    gate_cap: float = 0.0
    up_cap: float = 0.0


class KdaSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Kimi Delta Attention of one model.

    Attributes:
        num_heads: heads, each with a [head_dim, head_dim] recurrent matrix (key and value widths are equal).
        head_dim: width of a head's key and value.
        conv_size: taps of the causal depthwise convolution; conv_size - 1 inputs are kept as its window.
        gate_lower_bound: K3's bounded gate g = bound * sigmoid(exp(A) * z); None for Kimi-Linear's
            g = -exp(A) * softplus(z).
        full_rank_gate: output gate W_g (K3), else the low-rank pair W_gb W_ga (Kimi-Linear).
    """

    num_heads: int
    head_dim: int
    conv_size: int
    gate_lower_bound: float | None
    full_rank_gate: bool

    @property
    def channels(self) -> int:
        """Channels of q, of k and of v each; the convolution runs over 3 * channels (q|k|v)."""
        return self.num_heads * self.head_dim

    @property
    def conv_window(self) -> int:
        """Past inputs that the convolution keeps per channel."""
        return self.conv_size - 1


class MlaSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Multi-head latent attention of one model, NoPE: the ``rope_head_dim`` dims stay unrotated."""

    num_heads: int
    q_lora_rank: int | None
    kv_lora_rank: int
    nope_head_dim: int
    rope_head_dim: int
    v_head_dim: int
    output_gate: bool

    @property
    def qk_head_dim(self) -> int:
        """Width of a head's query and key; the softmax scale is its -0.5th power."""
        return self.nope_head_dim + self.rope_head_dim

    @property
    def row_dim(self) -> int:
        """Elements of one cached token of one layer: normed latent | shared k_pe."""
        return self.kv_lora_rank + self.rope_head_dim


class MoeSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Mixture of experts of one model.

    ``latent_dim`` is LatentMoE's width of the routed experts' input and output (None: hidden size);
    ``latent_norm`` says whether an RMSNorm sits on the weighted sum in latent space.
    ``shared_intermediate`` is the width of the fused shared expert (0: none).
    """

    num_experts: int
    top_k: int
    intermediate: int
    shared_intermediate: int
    renormalize: bool
    routed_scaling_factor: float
    latent_dim: int | None
    latent_norm: bool


class ModelSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A whole model. Layer indices are 0-based here, whatever config.json counts from.

    Attributes:
        layers: kind of each layer, in order.
        first_dense: layers [0, first_dense) have a dense feed-forward network of width
            `dense_intermediate`, the others a mixture of experts.
        attn_res_block: Attention Residuals bank the running sum each so many layers; None: plain residuals.
        mla_norm_eps: epsilon of MLA's two inner norms (1e-6 in both families).
        stop_token_ids: tokens that end a reply (config.json's and generation_config.json's eos).
        weight_prefix: what the checkpoint's text tensor names start with ("language_model." or "").
        mxfp4_group: inputs per shared scale of packed expert weights; None when nothing is packed.
    """

    family: ModelFamily
    hidden_size: int
    vocab_size: int
    layers: tuple[LayerKind, ...]
    kda: KdaSpec
    mla: MlaSpec
    moe: MoeSpec
    dense_intermediate: int
    first_dense: int
    activation: Activation
    attn_res_block: int | None
    norm_eps: float
    mla_norm_eps: float
    max_position: int
    bos_token_id: int
    pad_token_id: int
    stop_token_ids: tuple[int, ...]
    weight_prefix: str
    mxfp4_group: int | None

    @property
    def kda_layers(self) -> tuple[int, ...]:
        """Indices of the KDA layers, ascending."""
        return tuple(i for i, kind in enumerate(self.layers) if kind is LayerKind.KDA)

    @property
    def mla_layers(self) -> tuple[int, ...]:
        """Indices of the MLA layers, ascending."""
        return tuple(i for i, kind in enumerate(self.layers) if kind is LayerKind.MLA)
