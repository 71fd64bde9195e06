"""The layers of the reference model: each reads its tensors by their published names, and maps one token."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch
from torch import Tensor

from milepost.testing.reference import maths
from milepost.testing.reference.files import CheckpointFiles

__all__ = [
    "DenseFfn",
    "KdaLayer",
    "KdaState",
    "MlaLayer",
    "MlaState",
    "MoeFfn",
    "Numerics",
    "Observer",
    "dense_ffn",
]

Observer = Callable[[str, int, Tensor], None]
"""Called with a quantity's name, its layer and its value at one token."""


def _unchanged(x: Tensor) -> Tensor:
    return x


@dataclasses.dataclass(frozen=True)
class Numerics:
    """What implementations do differently in the last digits.

    The defaults are Hugging Face's, which is the truth.

    Attributes:
        l2_eps: of the normalised q and k of KDA.
        mla_norm_eps: of the two norms inside MLA (the class default there, unlike rms_norm_eps elsewhere).
        cache_row: rounding of MLA's cached row, for a cache of lower precision.
        expert_input: rounding of what the routed experts' matrices multiply, for quantised activations.
        observe: told of inner quantities, see `Observer`.
    """

    l2_eps: float = 1e-6
    mla_norm_eps: float = 1e-6
    cache_row: Callable[[Tensor], Tensor] = _unchanged
    expert_input: Callable[[Tensor], Tensor] = _unchanged
    observe: Observer | None = None

    def tell(self, name: str, layer: int, value: Tensor) -> None:
        """Pass a quantity to the observer, if there is one."""
        if self.observe is not None:
            self.observe(name, layer, value)


@dataclasses.dataclass
class KdaState:
    """A KDA layer's memory: ``matrix`` [heads, key, value], ``window`` [taps - 1, q|k|v] of past inputs."""

    matrix: Tensor
    window: Tensor

    def copy(self) -> KdaState:
        """An independent copy."""
        return KdaState(self.matrix.clone(), self.window.clone())


@dataclasses.dataclass
class MlaState:
    """An MLA layer's memory, a list entry a token.

    Attributes:
        rows: [kv_rank + rope], normed latent and shared key, as an engine caches them.
        keys: [heads, nope + rope].
        values: [heads, v].
    """

    rows: list[Tensor]
    keys: list[Tensor]
    values: list[Tensor]

    def copy(self) -> MlaState:
        """An independent copy (past tokens are never changed, so the lists are what needs copying)."""
        return MlaState(list(self.rows), list(self.keys), list(self.values))


class KdaLayer:
    """Kimi Delta Attention: a short convolution, a gated delta rule, a gated norm."""

    def __init__(self, files: CheckpointFiles, prefix: str, layer: int, numerics: Numerics) -> None:
        linear = files.text["linear_attn_config"]
        self._layer, self._numerics = layer, numerics
        self.heads: int = linear["num_heads"]
        self.head_dim: int = linear["head_dim"]
        self.taps: int = linear["short_conv_kernel_size"]
        self._bound: float | None = linear.get("gate_lower_bound")
        self._eps: float = files.text["rms_norm_eps"]
        self._qkv = torch.cat([files.tensor(f"{prefix}{part}_proj.weight") for part in "qkv"])
        conv = [files.tensor(f"{prefix}{part}_conv1d.weight") for part in "qkv"]
        self._conv = torch.cat(conv).squeeze(1)  # [q|k|v, taps]
        self._f_a = files.tensor(f"{prefix}f_a_proj.weight")
        self._f_b = files.tensor(f"{prefix}f_b_proj.weight")
        self._dt_bias = files.tensor(f"{prefix}dt_bias")
        # K3 stores more values than it has heads, Kimi-Linear stores [1, 1, heads, 1].
        self._a_log = files.tensor(f"{prefix}A_log").flatten()[: self.heads]
        self._b = files.tensor(f"{prefix}b_proj.weight")
        if linear.get("use_full_rank_gate"):
            self._gate = files.tensor(f"{prefix}g_proj.weight")
        else:
            self._gate = files.tensor(f"{prefix}g_b_proj.weight") @ files.tensor(f"{prefix}g_a_proj.weight")
        self._o_norm = files.tensor(f"{prefix}o_norm.weight")
        self._o = files.tensor(f"{prefix}o_proj.weight")

    def fresh_state(self) -> KdaState:
        """The memory before the first token: zeros."""
        matrix = self._qkv.new_zeros(self.heads, self.head_dim, self.head_dim)
        return KdaState(matrix, self._qkv.new_zeros(self.taps - 1, 3 * self.heads * self.head_dim))

    def __call__(self, x: Tensor, state: KdaState) -> Tensor:
        """[hidden] -> [hidden]; advances the state."""
        window = torch.cat((state.window, (self._qkv @ x)[None]))
        mixed = maths.silu(maths.causal_conv(window, self._conv))
        q, k, v = mixed.view(3, self.heads, self.head_dim)
        q = maths.l2_normalise(q, self._numerics.l2_eps) * self.head_dim**-0.5
        k = maths.l2_normalise(k, self._numerics.l2_eps)
        z = (self._f_b @ (self._f_a @ x) + self._dt_bias).view(self.heads, self.head_dim)
        g = maths.forget_gate(z, self._a_log, self._bound)
        self._numerics.tell("log decay", self._layer, g)
        beta = torch.sigmoid(self._b @ x)
        out, state.matrix = maths.delta_rule(state.matrix, q, k, v, g, beta)
        state.window = window[1:]
        gate = torch.sigmoid(self._gate @ x).view(self.heads, self.head_dim)
        return self._o @ (maths.rms_norm(out, self._o_norm, self._eps) * gate).flatten()


class MlaLayer:
    """Multi-head latent attention, not absorbed: each head's key and value are written out, unrotated."""

    def __init__(self, files: CheckpointFiles, prefix: str, layer: int, numerics: Numerics) -> None:
        text = files.text
        self._layer, self._numerics = layer, numerics
        self._heads: int = text["num_attention_heads"]
        self._nope: int = text["qk_nope_head_dim"]
        self._rope: int = text["qk_rope_head_dim"]
        self._value: int = text["v_head_dim"]
        self._rank: int = text["kv_lora_rank"]
        self._has_q_rank = text["q_lora_rank"] is not None
        if self._has_q_rank:
            self._q_a = files.tensor(f"{prefix}q_a_proj.weight")
            self._q_a_norm = files.tensor(f"{prefix}q_a_layernorm.weight")
            self._q_b = files.tensor(f"{prefix}q_b_proj.weight")
        else:
            self._q = files.tensor(f"{prefix}q_proj.weight")
        self._kv_a = files.tensor(f"{prefix}kv_a_proj_with_mqa.weight")
        self._kv_a_norm = files.tensor(f"{prefix}kv_a_layernorm.weight")
        self._kv_b = files.tensor(f"{prefix}kv_b_proj.weight")
        self._gate = files.tensor(f"{prefix}g_proj.weight") if text.get("mla_use_output_gate") else None
        self._o = files.tensor(f"{prefix}o_proj.weight")

    def fresh_state(self) -> MlaState:
        """The memory before the first token: empty."""
        return MlaState([], [], [])

    def __call__(self, x: Tensor, state: MlaState) -> Tensor:
        """[hidden] -> [hidden]; appends one token to the state."""
        q = self._query(x)  # [heads, nope + rope]
        self._append(x, state)
        keys = torch.stack(state.keys)  # [tokens, heads, nope + rope]
        values = torch.stack(state.values)  # [tokens, heads, value]
        scores = (keys * q).sum(dim=-1) * (self._nope + self._rope) ** -0.5  # [tokens, heads]
        weights = torch.softmax(scores, dim=0)
        self._numerics.tell("attention weights", self._layer, weights)
        out = (weights[:, :, None] * values).sum(dim=0).flatten()
        if self._gate is not None:
            out = out * torch.sigmoid(self._gate @ x)
        return self._o @ out

    def _query(self, x: Tensor) -> Tensor:
        if self._has_q_rank:
            inner = maths.rms_norm(self._q_a @ x, self._q_a_norm, self._numerics.mla_norm_eps)
            return (self._q_b @ inner).view(self._heads, self._nope + self._rope)
        return (self._q @ x).view(self._heads, self._nope + self._rope)

    def _append(self, x: Tensor, state: MlaState) -> None:
        compressed = self._kv_a @ x  # [kv_rank + rope]
        latent = maths.rms_norm(compressed[: self._rank], self._kv_a_norm, self._numerics.mla_norm_eps)
        row = self._numerics.cache_row(torch.cat((latent, compressed[self._rank :])))
        latent, shared_key = row[: self._rank], row[self._rank :]
        expanded = (self._kv_b @ latent).view(self._heads, self._nope + self._value)
        key, value = expanded[:, : self._nope], expanded[:, self._nope :]
        state.rows.append(row)
        state.keys.append(torch.cat((key, shared_key.expand(self._heads, -1)), dim=-1))
        state.values.append(value)


class DenseFfn:
    """A gated feed-forward network: SiTU in K3, SwiGLU in Kimi-Linear."""

    def __init__(self, files: CheckpointFiles, names: tuple[str, str, str]) -> None:
        """``names`` are those of the gate, up and down matrices, which may be packed."""
        self._gate, self._up, self._down = (files.matrix(f"{name}.weight") for name in names)
        self._is_situ = files.text["hidden_act"] == "situ"
        if self._is_situ:
            self._gate_cap: float = files.text["activation_situ_beta"]
            self._up_cap: float = files.text["activation_situ_linear_beta"]

    def __call__(self, x: Tensor, rounding: Callable[[Tensor], Tensor] = _unchanged) -> Tensor:
        """[width in] -> [width in]; ``rounding`` falls on what the matrices multiply."""
        x = rounding(x)
        gate, up = self._gate @ x, self._up @ x
        inner = maths.situ(gate, up, self._gate_cap, self._up_cap) if self._is_situ else maths.silu(gate) * up
        return self._down @ rounding(inner)


class MoeFfn:
    """Mixture of experts; K3's routed experts live in a latent space, between two projections."""

    def __init__(self, files: CheckpointFiles, prefix: str, layer: int, numerics: Numerics) -> None:
        text = files.text
        self._layer, self._numerics = layer, numerics
        self._top_k: int = text["num_experts_per_token"]
        self._scaling: float = text["routed_scaling_factor"]
        self._renormalise: bool = text["moe_renormalize"]
        self._eps: float = text["rms_norm_eps"]
        if text["num_expert_group"] != 1 or text["moe_router_activation_func"] != "sigmoid":
            raise NotImplementedError("the reference routes by sigmoids, in one group")
        self._router = files.tensor(f"{prefix}gate.weight")
        self._bias = files.tensor(f"{prefix}gate.e_score_correction_bias")
        self._has_latent = "routed_expert_hidden_size" in text
        if self._has_latent:
            self._latent_down = files.tensor(f"{prefix}routed_expert_down_proj.weight")
            self._latent_up = files.tensor(f"{prefix}routed_expert_up_proj.weight")
        self._has_latent_norm = bool(text.get("latent_moe_use_norm"))
        if self._has_latent_norm:
            self._latent_norm = files.tensor(f"{prefix}routed_expert_norm.weight")
        self._shared = None
        if text["num_shared_experts"]:
            self._shared = DenseFfn(files, _mlp_names(f"{prefix}shared_experts."))
        self._experts = [
            DenseFfn(files, (f"{prefix}experts.{e}.w1", f"{prefix}experts.{e}.w3", f"{prefix}experts.{e}.w2"))
            for e in range(text["num_experts"])
        ]

    def __call__(self, x: Tensor) -> Tensor:
        """[hidden] -> [hidden]."""
        scores = torch.sigmoid(self._router @ x)
        chosen = maths.router_choice(scores, self._bias, self._top_k)
        self._numerics.tell("router choice scores", self._layer, scores + self._bias)
        self._numerics.tell("router scores", self._layer, scores)
        weights = scores[chosen]
        if self._renormalise:
            weights = weights / (weights.sum() + 1e-20)
        weights = weights * self._scaling
        inner = self._latent_down @ x if self._has_latent else x
        routed = torch.zeros_like(inner)
        for expert, weight in zip(chosen.tolist(), weights, strict=True):
            routed = routed + weight * self._experts[expert](inner, self._numerics.expert_input)
        if self._has_latent_norm:
            routed = maths.rms_norm(routed, self._latent_norm, self._eps)
        if self._has_latent:
            routed = self._latent_up @ routed
        return routed if self._shared is None else routed + self._shared(x)


def _mlp_names(prefix: str) -> tuple[str, str, str]:
    return f"{prefix}gate_proj", f"{prefix}up_proj", f"{prefix}down_proj"


def dense_ffn(files: CheckpointFiles, prefix: str) -> DenseFfn:
    """The feed-forward network of a layer without experts."""
    return DenseFfn(files, _mlp_names(prefix))
