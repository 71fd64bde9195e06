"""Parts that several families share, read by the usual names of their fields and with the bytes they take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from milepost.shapes.configs.model_file import ModelFile, check_multiple, size
from milepost.shapes.projections import GroupedQuery, grouped_query
from milepost.shapes.shape import AttentionShape, ExpertsShape

__all__ = [
    "DenseNetworks",
    "dense_networks",
    "experts",
    "gated",
    "gated_networks",
    "grouped_query_layers",
]


class DenseNetworks(msgspec.Struct, frozen=True, kw_only=True):
    """Dense feed-forward networks, all of one size.

    Attributes:
        layers: how many.
        parameters: of one.
        bytes_per_parameter: as stored, their mean.
    """

    layers: int
    parameters: int
    bytes_per_parameter: float


def gated(place: str, width: int, intermediate: int) -> dict[str, int]:
    """Parameters of a gated feed-forward network's matrices by their usual names.

    Args:
        place: where it stands in a layer, such as ``mlp``.
        width: of its input and output.
        intermediate: inside.
    """
    return {f"{place}.{name}": width * intermediate for name in ("gate_proj", "up_proj", "down_proj")}


def dense_networks(file: ModelFile, layers: Sequence[int], matrices: Mapping[str, int]) -> DenseNetworks:
    """Dense networks in some layers.

    Args:
        file: the config.json.
        layers: their numbers.
        matrices: parameters of one network's matrices by their names in a layer; empty without such layers.
    """
    total = sum(matrices.values())
    return DenseNetworks(
        layers=len(layers), parameters=total, bytes_per_parameter=file.stored.mean(layers, matrices, total)
    )


def gated_networks(file: ModelFile, layers: int, sparse: Sequence[int], hidden: int) -> DenseNetworks:
    """Gated dense networks in all layers but those with experts.

    Args:
        file: the config.json.
        layers: all of them.
        sparse: numbers of those with experts.
        hidden: width of a token.
    """
    with_experts = set(sparse)
    dense = [layer for layer in range(layers) if layer not in with_experts]
    network = gated("mlp", hidden, size(file.text, "intermediate_size")) if dense else {}
    return dense_networks(file, dense, network)


def grouped_query_layers(
    file: ModelFile,
    layers: Sequence[int],
    place: str,
    *,
    output_gate: bool = False,
    head_norms: bool = False,
    whole_norms: bool = False,
) -> AttentionShape | None:
    """Grouped-query attention in some layers, None without any.

    Args:
        file: the config.json.
        layers: their numbers.
        place: where it stands in a layer, such as ``self_attn``.
        output_gate: whether queries come with a gate.
        head_norms: whether norms of a head's width stand on queries and keys.
        whole_norms: whether norms over all heads stand there.
    """
    if not layers:
        return None
    text = file.text
    window = text.optional("sliding_window") is not None
    if text.boolean("use_sliding_window", default=window):
        text.problem("sliding_window", "is not known of: a window would bound what a sequence keeps")
    sizes = GroupedQuery(
        hidden=size(text, "hidden_size"),
        heads=size(text, "num_attention_heads"),
        kv_heads=size(text, "num_key_value_heads"),
        head_dim=size(text, "head_dim"),
        output_gate=output_gate,
        bias=text.boolean("attention_bias", default=False),
    )
    check_multiple(text, "num_attention_heads", "num_key_value_heads")
    shape = grouped_query(sizes, head_norms=head_norms, whole_norms=whole_norms)
    matrices = {f"{place}.{name}": count for name, count in sizes.matrices.items()}
    mean = file.stored.mean(layers, matrices, shape.sharded + shape.replicated)
    return msgspec.structs.replace(shape, bytes_per_parameter=mean)


def experts(
    file: ModelFile,
    layers: Sequence[int],
    *,
    count_field: str,
    width: int,
    intermediate: int,
    routed: Sequence[str],
    shared: Mapping[str, int],
    router: int,
) -> ExpertsShape:
    """Experts in some layers; how many a token takes is ``num_experts_per_tok``.

    Args:
        file: the config.json.
        layers: their numbers.
        count_field: the field that says how many there are.
        width: of an expert's input and output.
        intermediate: inside an expert.
        routed: the names in a layer of the matrices of one routed expert, all of one size.
        shared: parameters of the shared experts' matrices by their names in a layer.
        router: parameters of router and its biases.
    """
    text, stored = file.text, file.stored
    num_experts, top_k = size(text, count_field), size(text, "num_experts_per_tok")
    if text.optional(count_field) == num_experts < top_k:
        text.problem("num_experts_per_tok", f"must be at most the {num_experts} experts. Given: {top_k}")
    matrix = width * intermediate
    return ExpertsShape(
        num_experts=num_experts,
        top_k=top_k,
        width=width,
        latent=False,
        intermediate=intermediate,
        matrices=len(routed),
        bytes_per_parameter=stored.mean(layers, dict.fromkeys(routed, matrix), len(routed) * matrix),
        shared_parameters=sum(shared.values()),
        latent_down=0,
        latent_up=0,
        router=router,
        shared_bytes_per_parameter=stored.mean(layers, shared, sum(shared.values())),
    )
