"""Weights of a model by the part that uses them, and how tensor and expert parallelism divide them.

    sharded      each of the tensor-parallel ranks has its share of the heads or columns
    replicated   every rank has all of it (low-rank inputs, router, the latent down-projection)
    routed       each of the expert-parallel ranks has its share of the experts

`milepost.shapes` counts a layer's parameters from a config.json; the sum over all parts is the model's number
of parameters, and what one token multiplies with is that of the Kimi K3 technical report.
"""

from __future__ import annotations

import msgspec

from milepost.model_spec import ModelSpec
from milepost.shapes.of_spec import shape_of
from milepost.shapes.shape import BF16_BYTES, AttentionShape, ExpertsShape, ModelShape, RecurrentShape

__all__ = [
    "DENSE",
    "EMBEDDING",
    "EXPERTS",
    "HEAD",
    "NORMS",
    "ROUTER",
    "SHARED",
    "PartWeights",
    "attention_projections",
    "rank_weight_bytes",
    "recurrent_projections",
    "weights_of",
]

ROUTER = "router and latent projections"
EXPERTS = "routed experts"
SHARED = "shared experts"
DENSE = "dense feed-forward"
NORMS = "norms and residual reads"
EMBEDDING = "embedding"
HEAD = "output head"


class PartWeights(msgspec.Struct, frozen=True, kw_only=True):
    """Parameters of one part, over all its layers.

    Attributes:
        sharded: divided among the tensor-parallel ranks.
        replicated: whole on every rank.
        routed: divided among the expert-parallel ranks.
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


def recurrent_projections(shape: ModelShape) -> str:
    """What the projections of recurrent layers are called: "KDA projections"."""
    return f"{shape.recurrent.kind.value} projections" if shape.recurrent else "recurrent projections"


def attention_projections(shape: ModelShape) -> str:
    """What the projections of attention layers are called: "MLA projections"."""
    return f"{shape.attention.kind.value} projections" if shape.attention else "attention projections"


def weights_of(model: ModelSpec | ModelShape) -> dict[str, PartWeights]:
    """Every part's weights; each parameter is in exactly one part.

    Each takes the bytes that the shape says; what no checkpoint packs (embedding, norms, routers) is taken as
    bf16, small float32 tensors too.
    """
    shape = shape_of(model)
    table = shape.vocab_size * shape.hidden_size
    # A tied table is held once; the head multiplies with it all the same.
    tied = PartWeights(activated=table)
    head = tied if shape.tied_embeddings else _always(sharded=table, size=shape.head_bytes_per_parameter)
    parts = {
        EMBEDDING: PartWeights(sharded=table),
        recurrent_projections(shape): _layers(shape.recurrent_layers, shape.recurrent),
        attention_projections(shape): _layers(shape.attention_layers, shape.attention),
        DENSE: _always(
            sharded=shape.dense_layers * shape.dense_parameters, size=shape.dense_bytes_per_parameter
        ),
        **_experts(shape),
        NORMS: _always(replicated=shape.norm_parameters),
        HEAD: head,
    }
    return {name: part for name, part in parts.items() if part.parameters or part.activated}


def rank_weight_bytes(
    model: ModelSpec | ModelShape, tensor_parallel: int, ranks: int, *, expert_parallel: int = 0
) -> float:
    """Bytes of weights on one of `ranks` devices.

    Args:
        model: the model.
        tensor_parallel: ranks that share the heads.
        ranks: all of them.
        expert_parallel: ranks that one copy of the experts is divided among; 0 for all.
    """
    sharing = expert_parallel or ranks
    return sum(
        (part.sharded / tensor_parallel + part.replicated + part.routed / sharing) * part.bytes_per_parameter
        for part in weights_of(model).values()
    )


def _layers(count: int, layer: RecurrentShape | AttentionShape | None) -> PartWeights:
    if layer is None:
        return PartWeights()
    return _always(
        sharded=count * layer.sharded, replicated=count * layer.replicated, size=layer.bytes_per_parameter
    )


def _always(*, sharded: int = 0, replicated: int = 0, size: float = BF16_BYTES) -> PartWeights:
    """Weights that every token multiplies with, of `size` bytes a parameter."""
    activated = sharded + replicated
    return PartWeights(sharded=sharded, replicated=replicated, activated=activated, bytes_per_parameter=size)


def _experts(shape: ModelShape) -> dict[str, PartWeights]:
    experts, layers = shape.experts, shape.moe_layers
    if experts is None:
        return {}
    routed = layers * experts.expert_parameters
    return {
        EXPERTS: PartWeights(
            routed=routed * experts.num_experts,
            activated=routed * experts.top_k,
            bytes_per_parameter=experts.bytes_per_parameter,
        ),
        SHARED: _always(sharded=layers * experts.shared_parameters, size=experts.shared_bytes_per_parameter),
        ROUTER: _always(
            sharded=layers * experts.latent_up,
            replicated=layers * (experts.latent_down + experts.router),
            size=_router_bytes(experts),
        ),
    }


def _router_bytes(experts: ExpertsShape) -> float:
    """Bytes a parameter of router (bf16) and latent projections together."""
    latent = experts.latent_down + experts.latent_up
    packed = latent * experts.latent_bytes_per_parameter
    return (packed + experts.router * BF16_BYTES) / (latent + experts.router)
