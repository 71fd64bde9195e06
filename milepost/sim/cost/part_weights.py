"""Weights of a model by the part that uses them, and how tensor and expert parallelism divide them.

    sharded      each of the tensor-parallel ranks has its share of the heads or columns
    replicated   every rank has all of it (low-rank inputs, router, the latent down-projection)
    routed       each of all ranks has its share of the experts

Shapes are those of the published checkpoints (see `milepost.models`); the sum over all parts is the model's
number of parameters, and what one token multiplies with is that of the Kimi K3 technical report.
"""

from __future__ import annotations

import msgspec

from milepost.model_spec import ModelSpec

__all__ = [
    "DENSE",
    "EMBEDDING",
    "EXPERTS",
    "HEAD",
    "KDA",
    "MLA",
    "NORMS",
    "ROUTER",
    "SHARED",
    "PartWeights",
    "expert_parameters",
    "rank_weight_bytes",
    "weights_of",
]

KDA = "KDA projections"
MLA = "MLA projections"
ROUTER = "router and latent projections"
EXPERTS = "routed experts"
SHARED = "shared experts"
DENSE = "dense feed-forward"
NORMS = "norms and residual reads"
EMBEDDING = "embedding"
HEAD = "output head"

BF16_BYTES = 2.0


class PartWeights(msgspec.Struct, frozen=True, kw_only=True):
    """Parameters of one part, over all its layers.

    Attributes:
        sharded: divided among the tensor-parallel ranks.
        replicated: whole on every rank.
        routed: divided among all ranks, as experts are.
        activated: what one token multiplies with.
        bytes_per_parameter: as stored and read.
    """

    sharded: int = 0
    replicated: int = 0
    routed: int = 0
    activated: int = 0
    bytes_per_parameter: float = BF16_BYTES

    @property
    def parameters(self) -> int:
        """All of them."""
        return self.sharded + self.replicated + self.routed


def weights_of(spec: ModelSpec) -> dict[str, PartWeights]:
    """Every part's weights; each parameter is in exactly one part.

    Packed experts (``mxfp4_group``) take half a byte a parameter and a byte of scale a group; everything else
    is taken as bf16, small float32 tensors too.
    """
    num_moe = len(spec.layers) - spec.first_dense
    hidden = spec.hidden_size
    table = spec.vocab_size * hidden
    routed = num_moe * spec.moe.num_experts * expert_parameters(spec)
    parts = {
        EMBEDDING: PartWeights(sharded=table),
        KDA: _kda(spec),
        MLA: _mla(spec),
        DENSE: _always(sharded=spec.first_dense * 3 * hidden * spec.dense_intermediate),
        EXPERTS: PartWeights(
            routed=routed,
            activated=routed // spec.moe.num_experts * spec.moe.top_k,
            bytes_per_parameter=_expert_bytes(spec),
        ),
        SHARED: _always(sharded=num_moe * 3 * hidden * spec.moe.shared_intermediate),
        ROUTER: _router(spec, num_moe),
        NORMS: _always(replicated=_norm_parameters(spec, num_moe)),
        HEAD: _always(sharded=table),
    }
    return {name: part for name, part in parts.items() if part.parameters}


def expert_parameters(spec: ModelSpec) -> int:
    """Parameters of one routed expert of one layer: gate, up and down."""
    return 3 * (spec.moe.latent_dim or spec.hidden_size) * spec.moe.intermediate


def rank_weight_bytes(spec: ModelSpec, tensor_parallel: int, ranks: int) -> float:
    """Bytes of weights on one of `ranks` devices; groups of `tensor_parallel` share the heads."""
    return sum(
        (part.sharded / tensor_parallel + part.replicated + part.routed / ranks) * part.bytes_per_parameter
        for part in weights_of(spec).values()
    )


def _always(*, sharded: int = 0, replicated: int = 0) -> PartWeights:
    """Weights that every token multiplies with."""
    return PartWeights(sharded=sharded, replicated=replicated, activated=sharded + replicated)


def _expert_bytes(spec: ModelSpec) -> float:
    return BF16_BYTES if spec.mxfp4_group is None else 0.5 + 1.0 / spec.mxfp4_group


def _kda(spec: ModelSpec) -> PartWeights:
    """q, k, v, their convolutions, decay (rank head_dim), beta, output gate, norm of a head, and o."""
    kda, hidden, layers = spec.kda, spec.hidden_size, len(spec.kda_layers)
    channels, width = kda.channels, kda.head_dim
    sharded = 3 * hidden * channels + 3 * channels * kda.conv_size
    sharded += width * channels + channels  # W_fb and dt_bias
    sharded += hidden * kda.num_heads + channels * hidden  # W_b and W_o
    replicated = hidden * width + width  # W_fa and the norm that all heads share
    # K3 stores A_log for 128 heads and uses the first 96; what is not used is not counted.
    sharded += kda.num_heads
    if kda.full_rank_gate:
        sharded += hidden * channels
    else:
        sharded += width * channels
        replicated += hidden * width
    return _always(sharded=layers * sharded, replicated=layers * replicated)


def _mla(spec: ModelSpec) -> PartWeights:
    """Queries (through a low rank in K3), the latent row, keys and values out of it, output gate, and o."""
    mla, hidden, layers = spec.mla, spec.hidden_size, len(spec.mla_layers)
    queries, values = mla.num_heads * mla.qk_head_dim, mla.num_heads * mla.v_head_dim
    replicated = hidden * mla.row_dim + mla.kv_lora_rank  # with its norm
    if mla.q_lora_rank is None:
        sharded = hidden * queries
    else:
        sharded = mla.q_lora_rank * queries
        replicated += hidden * mla.q_lora_rank + mla.q_lora_rank
    sharded += mla.kv_lora_rank * mla.num_heads * (mla.nope_head_dim + mla.v_head_dim)
    sharded += values * hidden * (2 if mla.output_gate else 1)
    return _always(sharded=layers * sharded, replicated=layers * replicated)


def _router(spec: ModelSpec, num_moe: int) -> PartWeights:
    """Router with its bias, and LatentMoE's two projections.

    As engines run it (two of the three tails in use): the down-projection is whole on every rank, the
    up-projection's columns are divided.
    """
    moe, hidden = spec.moe, spec.hidden_size
    latent = (moe.latent_dim or 0) * hidden
    return _always(
        sharded=num_moe * latent, replicated=num_moe * (latent + moe.num_experts * hidden + moe.num_experts)
    )


def _norm_parameters(spec: ModelSpec, num_moe: int) -> int:
    """Two norms a layer and the last one; with Attention Residuals two vectors at each read."""
    hidden, layers = spec.hidden_size, len(spec.layers)
    count = (2 * layers + 1) * hidden
    if spec.attn_res_block is not None:
        count += 2 * (2 * layers + 1) * hidden
    if spec.moe.latent_norm:
        count += num_moe * (spec.moe.latent_dim or hidden)
    return count
