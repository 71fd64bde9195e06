"""MiniMax-M2: grouped-query attention and experts in every layer.

Norms stand on the queries and keys of all heads together. Matrices are those of the published modelling code
(``modeling_minimax_m2.py``); the sums are held to the published checkpoint by a test.
"""

from __future__ import annotations

from collections.abc import Sequence

from milepost.error_text import as_json
from milepost.json_fields import JsonFields
from milepost.shapes.configs.model_file import ModelFile, layer_count, size
from milepost.shapes.configs.parts import experts, grouped_query_layers
from milepost.shapes.shape import ExpertsShape, ModelShape

__all__ = ["minimax_m2_shape"]


def minimax_m2_shape(file: ModelFile) -> ModelShape:
    """MiniMax-M2, M2.1, M2.5 and M2.7."""
    text = file.text
    count, hidden = layer_count(text), size(text, "hidden_size")
    kinds = text.optional("attn_type_list")
    if kinds is not None and kinds != [1] * count:
        text.problem(
            "attn_type_list", f"must be a 1 (full attention) for each layer. Given: {as_json(kinds)}"
        )
    if size(text, "shared_intermediate_size", minimum=0, default=0):
        text.problem("shared_intermediate_size", "only 0 is known")
    layers = range(count)
    return ModelShape(
        family=file.family,
        hidden_size=hidden,
        vocab_size=size(text, "vocab_size"),
        max_position=size(text, "max_position_embeddings"),
        blocks=count,
        recurrent_layers=0,
        attention_layers=count,
        moe_layers=count,
        dense_layers=0,
        recurrent=None,
        attention=grouped_query_layers(file, layers, "self_attn", whole_norms=_norms(text)),
        experts=_experts(file, layers, hidden),
        dense_parameters=0,
        norm_parameters=(2 * count + 1) * hidden,
        tied_embeddings=file.tied_embeddings,
        head_bytes_per_parameter=file.stored.of_head(),
    )


def _norms(text: JsonFields) -> bool:
    """Whether norms over all heads stand on queries and keys."""
    if not text.boolean("use_qk_norm", default=False):
        return False
    text.choice("qk_norm_type", ("per_layer",))
    return True


def _experts(file: ModelFile, layers: Sequence[int], hidden: int) -> ExpertsShape:
    text = file.text
    bias = 1 if text.boolean("use_routing_bias", default=False) else 0
    return experts(
        file,
        layers,
        count_field="num_local_experts",
        width=hidden,
        intermediate=size(text, "intermediate_size"),
        routed=[f"block_sparse_moe.experts.0.{name}" for name in ("w1", "w2", "w3")],
        shared={},
        router=size(text, "num_local_experts") * (hidden + bias),
    )
