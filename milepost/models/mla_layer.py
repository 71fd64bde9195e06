"""The MLA layer: multi-head latent attention without rotation (NoPE), over paged latent rows.

DeepSeek-V2 technical report, section 2.1; Kimi K3 technical report (gated MLA).
"""

from __future__ import annotations

import torch
from torch import Tensor

from milepost.kernels.ops import Ops
from milepost.model_spec import ModelSpec
from milepost.models import parts
from milepost.models.inputs import StepInputs
from milepost.models.weights import WeightReader

__all__ = ["MlaLayer"]


class MlaLayer:
    """Latent attention of one layer.

    A token's cached row is ``norm(latent) | k_pe``; k_pe is shared by all heads, raw and unrotated.

    Args:
        spec: the model.
        mla_index: number of this layer among the MLA layers, which decides where its rows lie.
        reader: scoped to the layer's ``self_attn.``.
        ops: the kernels.
    """

    def __init__(self, spec: ModelSpec, mla_index: int, reader: WeightReader, ops: Ops) -> None:
        mla, hidden = spec.mla, spec.hidden_size
        self._spec = spec
        self._mla_index = mla_index
        self._ops = ops
        queries, values = mla.num_heads * mla.qk_head_dim, mla.num_heads * mla.v_head_dim
        self._q_norm: Tensor | None = None
        q_name, q_rows = ("q_proj", queries) if mla.q_lora_rank is None else ("q_a_proj", mla.q_lora_rank)
        outputs = {f"{q_name}.weight": q_rows, "kv_a_proj_with_mqa.weight": mla.row_dim}
        if mla.output_gate:
            outputs["g_proj.weight"] = values
        self._in_proj = reader.fused(outputs, hidden)
        self._in_sizes = [q_rows, mla.kv_lora_rank, mla.rope_head_dim, values if mla.output_gate else 0]
        if mla.q_lora_rank is not None:
            self._q_norm = reader.tensor("q_a_layernorm.weight", mla.q_lora_rank, dtype=reader.wide)
            self._q_b = reader.matrix("q_b_proj.weight", queries, mla.q_lora_rank)
        self._kv_norm = reader.tensor("kv_a_layernorm.weight", mla.kv_lora_rank, dtype=reader.wide)
        kv_rows = mla.nope_head_dim + mla.v_head_dim
        kv_b_shape = (mla.num_heads * kv_rows, mla.kv_lora_rank)
        self._k_b, self._v_b = reader.derived("kv_b_proj.weight", kv_b_shape, self._split_kv_b)
        self._o_proj = reader.matrix("o_proj.weight", hidden, values)

    def forward(self, x: Tensor, inputs: StepInputs) -> Tensor:
        """Append the tokens' rows to the cache and attend: [tokens, hidden] -> [tokens, hidden]."""
        mla, ops, eps = self._spec.mla, self._ops, self._spec.mla_norm_eps
        ops.part(parts.MLA_PROJECTIONS)
        q, latent, k_pe, gate = torch.split(ops.linear(x, self._in_proj), self._in_sizes, dim=-1)
        if self._q_norm is not None:
            q = ops.linear(ops.rms_norm(q, self._q_norm, eps), self._q_b)
        ops.part(parts.MLA_ATTENTION)
        kv, ragged = inputs.kv, inputs.ragged
        ops.mla_write(latent, k_pe, self._kv_norm, eps, kv, self._mla_index, ragged)
        q = q.view(-1, mla.num_heads, mla.qk_head_dim)
        out = ops.mla_attention(
            q, self._k_b, self._v_b, gate if mla.output_gate else None, kv, self._mla_index, ragged
        )
        ops.part(parts.MLA_PROJECTIONS)
        return ops.linear(out, self._o_proj)

    def _split_kv_b(self, kv_b: Tensor) -> tuple[Tensor, Tensor]:
        """[heads * (nope + v), lora] to the k_b and v_b of `MlaAttention`."""
        mla = self._spec.mla
        per_head = kv_b.view(mla.num_heads, -1, mla.kv_lora_rank)
        k_nope, v = per_head[:, : mla.nope_head_dim], per_head[:, mla.nope_head_dim :]
        return k_nope.mT, v
