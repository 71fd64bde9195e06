"""Nemotron-H: blocks that are a Mamba2 mixer, grouped-query attention, experts or a feed-forward network.

Every block has one norm. Feed-forward networks have two matrices (squared ReLU, no gate). Nemotron 3 Super
and Ultra have LatentMoE. Matrices are those of the modelling code that comes with the checkpoints
(``modeling_nemotron_h.py``); the sums are held to the published checkpoints by a test.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from milepost.error_text import as_json
from milepost.json_fields import JsonFields
from milepost.shapes.configs.model_file import (
    MAX_LAYERS,
    ModelFile,
    check_multiple,
    layer_count,
    layer_kinds,
    size,
)
from milepost.shapes.configs.parts import dense_networks, experts, grouped_query_layers
from milepost.shapes.shape import ExpertsShape, ModelShape, RecurrentKind, RecurrentShape

__all__ = ["nemotron_h_shape"]

MAMBA, ATTENTION, EXPERTS, FEED_FORWARD = "mamba", "attention", "experts", "feed-forward"
LETTERS = {"M": MAMBA, "*": ATTENTION, "E": EXPERTS, "-": FEED_FORWARD}
WORDS = {"mamba": MAMBA, "attention": ATTENTION, "moe": EXPERTS, "mlp": FEED_FORWARD}


def nemotron_h_shape(file: ModelFile) -> ModelShape:
    """Nemotron-H, Nemotron 3 Nano, Super and Ultra."""
    text = file.text
    kinds = _kinds(text)
    at = {kind: [layer for layer, given in enumerate(kinds) if given == kind] for kind in LETTERS.values()}
    hidden = size(text, "hidden_size")
    dense = at[FEED_FORWARD]
    network = _two_matrices("mixer", hidden, size(text, "intermediate_size")) if dense else {}
    networks = dense_networks(file, dense, network)
    if text.boolean("mlp_bias", default=False):
        text.problem("mlp_bias", "only false is known")
    return ModelShape(
        family=file.family,
        hidden_size=hidden,
        vocab_size=size(text, "vocab_size"),
        max_position=size(text, "max_position_embeddings"),
        blocks=len(kinds),
        recurrent_layers=len(at[MAMBA]),
        attention_layers=len(at[ATTENTION]),
        moe_layers=len(at[EXPERTS]),
        dense_layers=networks.layers,
        recurrent=_mamba(file, at[MAMBA], hidden) if at[MAMBA] else None,
        attention=grouped_query_layers(file, at[ATTENTION], "mixer"),
        experts=_experts(file, at[EXPERTS], hidden) if at[EXPERTS] else None,
        dense_parameters=networks.parameters,
        norm_parameters=(len(kinds) + 1) * hidden,
        tied_embeddings=file.tied_embeddings,
        dense_bytes_per_parameter=networks.bytes_per_parameter,
        head_bytes_per_parameter=file.stored.of_head(),
    )


def _kinds(text: JsonFields) -> list[str]:
    """Of every block, from a pattern of letters or a list of words; given twice, they must agree."""
    pattern, words = text.optional("hybrid_override_pattern"), layer_kinds(text, "layers_block_type", WORDS)
    if pattern is None and words is None:
        text.problem("hybrid_override_pattern or layers_block_type", "is missing")
        return []
    kinds = words or []
    if pattern is not None:
        kinds = _of_letters(text, pattern)
        if words and kinds and words != kinds:
            text.problem("layers_block_type", "contradicts hybrid_override_pattern")
    if kinds and text.optional("num_hidden_layers") is not None:
        count = layer_count(text)
        if count != len(kinds):
            text.problem("num_hidden_layers", f"must be the {len(kinds)} that are named. Given: {count}")
    return kinds


def _of_letters(text: JsonFields, pattern: object) -> list[str]:
    if not isinstance(pattern, str) or not 0 < len(pattern) <= MAX_LAYERS:
        text.problem(
            "hybrid_override_pattern", f"must be 1 to {MAX_LAYERS} letters. Given: {as_json(pattern)}"
        )
        return []
    unknown = next((letter for letter in pattern if letter not in LETTERS), None)
    if unknown is not None:
        known = ", ".join(f"{letter} ({kind})" for letter, kind in LETTERS.items())
        text.problem("hybrid_override_pattern", f"holds {as_json(unknown)}; known letters are {known}")
        return []
    return [LETTERS[letter] for letter in pattern]


def _mamba(file: ModelFile, layers: Sequence[int], hidden: int) -> RecurrentShape:
    """One projection to gate, inputs, B, C and steps; the convolution runs over inputs, B and C."""
    text = file.text
    heads, head_dim = size(text, "mamba_num_heads"), size(text, "mamba_head_dim")
    groups, state = size(text, "n_groups"), size(text, "ssm_state_size")
    taps = size(text, "conv_kernel")
    check_multiple(text, "mamba_num_heads", "n_groups")
    inner = heads * head_dim
    channels = inner + 2 * groups * state
    matrices = {"mixer.in_proj": hidden * (inner + channels + heads), "mixer.out_proj": inner * hidden}
    # With the convolution, A_log, D and dt_bias of each head, and a norm over all heads.
    sharded = sum(matrices.values()) + channels * taps + 3 * heads + inner
    if text.boolean("use_conv_bias", default=True):
        sharded += channels
    replicated = 0
    if text.boolean("use_bias", default=False):
        sharded += inner + channels + heads
        replicated += hidden
    return RecurrentShape(
        kind=RecurrentKind.MAMBA2,
        heads=heads,
        rows=head_dim,
        row_dim=state,
        key_heads=groups,
        conv_window=taps - 1,
        sharded=sharded,
        replicated=replicated,
        bytes_per_parameter=file.stored.mean(layers, matrices, sharded + replicated),
    )


def _experts(file: ModelFile, layers: Sequence[int], hidden: int) -> ExpertsShape:
    """The router has a bias for each expert; LatentMoE's experts work at a width of their own."""
    text = file.text
    latent = size(text, "moe_latent_size", minimum=0, default=0)
    shared = text.integer("n_shared_experts", minimum=0, maximum=1, default=0)
    if shared:
        shared = size(text, "moe_shared_expert_intermediate_size")
    shape = experts(
        file,
        layers,
        count_field="n_routed_experts",
        width=latent or hidden,
        intermediate=size(text, "moe_intermediate_size"),
        routed=tuple(_two_matrices("mixer.experts.0", 1, 1)),
        shared=_two_matrices("mixer.shared_experts", hidden, shared),
        router=size(text, "n_routed_experts") * (hidden + 1),
    )
    if not latent:
        return shape
    down, up = hidden * latent, latent * hidden
    projections = {"mixer.fc1_latent_proj": down, "mixer.fc2_latent_proj": up}
    return msgspec.structs.replace(
        shape,
        latent=True,
        latent_down=down,
        latent_up=up,
        latent_bytes_per_parameter=file.stored.mean(layers, projections, down + up),
    )


def _two_matrices(place: str, width: int, intermediate: int) -> dict[str, int]:
    return {f"{place}.up_proj": width * intermediate, f"{place}.down_proj": intermediate * width}
