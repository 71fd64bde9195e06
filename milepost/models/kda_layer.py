"""The KDA layer: short convolution, gated delta rule over paged states, gated output norm.

Kimi K3 technical report, section 2.1.1; Kimi Linear technical report, section 3.
"""

from __future__ import annotations

import torch
from torch import Tensor

from milepost.kernels.ops import Ops
from milepost.model_spec import ModelSpec
from milepost.models import parts
from milepost.models.inputs import StepInputs
from milepost.models.weights import WeightReader

__all__ = ["KdaLayer"]


class KdaLayer:
    """Kimi Delta Attention of one layer.

    Args:
        spec: the model.
        kda_index: number of this layer among the KDA layers; the step's inputs say where its state lies.
        reader: scoped to the layer's ``self_attn.``.
        ops: the kernels.
    """

    def __init__(self, spec: ModelSpec, kda_index: int, reader: WeightReader, ops: Ops) -> None:
        kda, hidden = spec.kda, spec.hidden_size
        heads, dim, channels = kda.num_heads, kda.head_dim, kda.channels
        self._spec = spec
        self._kda_index = kda_index
        self._ops = ops
        # Everything that reads x is one product. The low ranks of f and g are head_dim in both families.
        gate_name, gate_rows = ("g_proj", channels) if kda.full_rank_gate else ("g_a_proj", dim)
        outputs = {f"{name}_proj.weight": channels for name in ("q", "k", "v")}
        outputs |= {"f_a_proj.weight": dim, "b_proj.weight": heads, f"{gate_name}.weight": gate_rows}
        self._in_proj = reader.fused(outputs, hidden)
        self._in_sizes = [3 * channels, dim, heads, gate_rows]
        conv = {f"{name}_conv1d.weight": channels for name in ("q", "k", "v")}
        taps = reader.rows(conv, 1, kda.conv_size, dtype=reader.wide)  # [3 * channels, 1, taps]
        self._conv = taps.squeeze(1).T.contiguous()  # [taps, 3 * channels]
        self._f_b = reader.matrix("f_b_proj.weight", channels, dim)
        self._dt_bias = reader.tensor("dt_bias", channels, dtype=reader.wide)
        # K3 stores one value per 128 although it has 96 heads; Kimi-Linear stores [1, 1, heads, 1].
        self._a_log = reader.vector("A_log", heads)
        self._g_b = None if kda.full_rank_gate else reader.matrix("g_b_proj.weight", channels, dim)
        self._o_norm = reader.tensor("o_norm.weight", dim, dtype=reader.wide)
        self._o_proj = reader.matrix("o_proj.weight", hidden, channels)

    def forward(self, x: Tensor, inputs: StepInputs) -> Tensor:
        """Advance the rows' states over their tokens: [tokens, hidden] -> [tokens, hidden]."""
        kda, ops, state, ragged = self._spec.kda, self._ops, inputs.state, inputs.ragged
        heads = (-1, kda.num_heads, kda.head_dim)
        ops.part(parts.KDA_PROJECTIONS)
        u, f, b, gate = torch.split(ops.linear(x, self._in_proj), self._in_sizes, dim=-1)
        z = ops.linear(f, self._f_b).view(heads)
        if self._g_b is not None:
            gate = ops.linear(gate, self._g_b)
        ops.part(parts.KDA_RECURRENCE)
        conv_tile = state.conv_tiles[self._kda_index]
        qkv = ops.short_conv(u, self._conv, state, conv_tile, ragged)  # [tokens, 3 * channels]
        q, k, v = (part.view(heads) for part in qkv.chunk(3, dim=-1))  # [tokens, heads, dim]
        g, beta = ops.kda_gate(z, b, self._dt_bias, self._a_log, kda.gate_lower_bound)
        tile = state.recurrent_tiles[self._kda_index]
        o = ops.kda(q, k, v, g, beta, state, tile, ragged)
        y = ops.gated_head_norm(o, gate.view(heads), self._o_norm, self._spec.norm_eps)
        ops.part(parts.KDA_PROJECTIONS)
        return ops.linear(y.flatten(1), self._o_proj)
