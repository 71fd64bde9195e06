"""Feed-forward networks: a dense gated MLP, and the mixture of experts with or without a latent.

Kimi K3 technical report, equations 11-13 (LatentMoE); DeepSeek-V3 technical report, section 2.1.2.
"""

from __future__ import annotations

import torch
from torch import Tensor

from milepost.kernels.matrix import Matrix
from milepost.kernels.ops import Ops
from milepost.model_spec import Activation, ModelSpec, MoeSpec
from milepost.models import parts
from milepost.models.weights import WeightReader

__all__ = ["FeedForward", "GatedMlp", "MixtureOfExperts", "build_feed_forward"]

_SHARED = "shared_experts."


class GatedMlp:
    """down(activation(gate x, up x)), with gate and up as one matrix."""

    def __init__(
        self, width: int, intermediate: int, activation: Activation, reader: WeightReader, ops: Ops
    ) -> None:
        self._activation = activation
        self._ops = ops
        outputs = {"gate_proj.weight": intermediate, "up_proj.weight": intermediate}
        self._gate_up = reader.fused(outputs, width)
        self._down = reader.matrix("down_proj.weight", width, intermediate)

    def forward(self, x: Tensor) -> Tensor:
        """[tokens, width] -> [tokens, width]."""
        self._ops.part(parts.DENSE)
        gate, up = self._ops.linear(x, self._gate_up).chunk(2, dim=-1)
        act = self._activation
        hidden = self._ops.gated_activation(gate, up, act.name, act.gate_cap, act.up_cap)
        return self._ops.linear(hidden, self._down)


class MixtureOfExperts:
    """Routed experts plus a shared one; K3's experts work in a latent of the hidden state.

    The router and the shared expert read the full hidden state. The latent's norm sits on the
    weighted sum over experts, before the up-projection.
    """

    def __init__(self, spec: ModelSpec, reader: WeightReader, ops: Ops) -> None:
        moe, hidden = spec.moe, spec.hidden_size
        self._moe = moe
        self._activation = spec.activation
        self._norm_eps = spec.norm_eps
        self._ops = ops
        width = moe.latent_dim or hidden
        # The router decides by small differences, so its weights are never below float32.
        self._gate = reader.matrix("gate.weight", moe.num_experts, hidden, dtype=reader.wide)
        self._bias = reader.tensor("gate.e_score_correction_bias", moe.num_experts, dtype=reader.wide)
        inputs = _inputs(moe)
        self._input_widths = list(inputs.values())
        self._inputs = reader.fused(inputs, hidden) if inputs else None
        self._latent_norm: Tensor | None = None
        self._latent_up: Matrix | None = None
        if moe.latent_dim is not None:
            if moe.latent_norm:
                self._latent_norm = reader.tensor("routed_expert_norm.weight", width, dtype=reader.wide)
            self._latent_up = reader.matrix("routed_expert_up_proj.weight", hidden, width)
        self._w1 = _experts(reader, "w1", moe.num_experts, moe.intermediate, width)
        self._w3 = _experts(reader, "w3", moe.num_experts, moe.intermediate, width)
        self._w2 = _experts(reader, "w2", moe.num_experts, width, moe.intermediate)
        self._shared_down: Matrix | None = None
        if moe.shared_intermediate:
            self._shared_down = reader.matrix(f"{_SHARED}down_proj.weight", hidden, moe.shared_intermediate)

    def forward(self, x: Tensor) -> Tensor:
        """[tokens, hidden] -> [tokens, hidden]."""
        moe, act, part = self._moe, self._activation, self._ops.part
        part(parts.MIXTURE)
        ids, weights = self._ops.route(
            x, self._gate, self._bias, moe.top_k, moe.renormalize, moe.routed_scaling_factor
        )
        inputs: list[Tensor] = []
        if self._inputs is not None:
            inputs = list(torch.split(self._ops.linear(x, self._inputs), self._input_widths, dim=-1))
        latent = x if self._latent_up is None else inputs.pop(0)
        part(parts.EXPERTS)
        out = self._ops.grouped_experts(
            latent, ids, weights, self._w1, self._w3, self._w2, act.name, act.gate_cap, act.up_cap
        )
        part(parts.MIXTURE)
        if self._latent_norm is not None:
            out = self._ops.rms_norm(out, self._latent_norm, self._norm_eps)
        if self._latent_up is not None:
            out = self._ops.linear(out, self._latent_up)
        if self._shared_down is None:
            return out
        gate, up = inputs
        hidden = self._ops.gated_activation(gate, up, act.name, act.gate_cap, act.up_cap)
        return self._ops.linear(hidden, self._shared_down, out)


FeedForward = GatedMlp | MixtureOfExperts


def build_feed_forward(spec: ModelSpec, index: int, reader: WeightReader, ops: Ops) -> FeedForward:
    """The feed-forward network of layer `index`; `reader` is scoped to the layer."""
    experts = reader.scope("block_sparse_moe.")
    if index >= spec.first_dense:
        return MixtureOfExperts(spec, experts, ops)
    # Official checkpoints call a dense layer's network mlp; transformers saves it under the mixture's name.
    dense = experts if experts.has("gate_proj.weight") else reader.scope("mlp.")
    return GatedMlp(spec.hidden_size, spec.dense_intermediate, spec.activation, dense, ops)


def _inputs(moe: MoeSpec) -> dict[str, int]:
    """What the full hidden state is projected to besides the router: latent, then the shared gate and up."""
    outputs = {} if moe.latent_dim is None else {"routed_expert_down_proj.weight": moe.latent_dim}
    if moe.shared_intermediate:
        outputs |= {f"{_SHARED}{name}_proj.weight": moe.shared_intermediate for name in ("gate", "up")}
    return outputs


def _experts(reader: WeightReader, name: str, count: int, outputs: int, inputs: int) -> Matrix:
    return reader.batch([f"experts.{expert}.{name}.weight" for expert in range(count)], outputs, inputs)
