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
    check_top_k,
    experts_of,
    layer_count,
    layer_kinds,
    size,
)
from milepost.shapes.projections import GroupedQuery, grouped_query
from milepost.shapes.shape import AttentionShape, ExpertsShape, ModelShape, RecurrentKind, RecurrentShape

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
    dense = {}
    if at[FEED_FORWARD]:
        dense = _two_matrices("mixer", hidden, size(text, "intermediate_size"))
    dense_total = sum(dense.values())
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
        dense_layers=len(at[FEED_FORWARD]),
        recurrent=_mamba(file, at[MAMBA], hidden) if at[MAMBA] else None,
        attention=_attention(file, at[ATTENTION], hidden) if at[ATTENTION] else None,
        experts=_experts(file, at[EXPERTS], hidden) if at[EXPERTS] else None,
        dense_parameters=dense_total,
        norm_parameters=(len(kinds) + 1) * hidden,
        tied_embeddings=file.tied_embeddings,
        dense_bytes_per_parameter=file.stored.mean(at[FEED_FORWARD], dense, dense_total),
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
    if heads % groups:
        text.problem("mamba_num_heads", f"must be a multiple of the {groups} groups. Given: {heads}")
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
        conv_channels=channels,
        conv_window=taps - 1,
        sharded=sharded,
        replicated=replicated,
        bytes_per_parameter=file.stored.mean(layers, matrices, sharded + replicated),
    )


def _attention(file: ModelFile, layers: Sequence[int], hidden: int) -> AttentionShape:
    text = file.text
    heads, kv_heads = size(text, "num_attention_heads"), size(text, "num_key_value_heads")
    if heads % kv_heads:
        text.problem(
            "num_attention_heads", f"must be a multiple of the {kv_heads} key-value heads. Given: {heads}"
        )
    if text.optional("sliding_window") is not None:
        text.problem("sliding_window", "only null is known: a window would bound what a token keeps")
    sizes = GroupedQuery(
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=size(text, "head_dim", "attention_head_dim"),
        bias=text.boolean("attention_bias", default=False),
    )
    matrices = {f"mixer.{name}": count for name, count in sizes.matrices.items()}
    total = sum(sizes.matrices.values())
    return grouped_query(sizes, bytes_per_parameter=file.stored.mean(layers, matrices, total))


def _experts(file: ModelFile, layers: Sequence[int], hidden: int) -> ExpertsShape | None:
    text = file.text
    num_experts, top_k = size(text, "n_routed_experts"), size(text, "num_experts_per_tok")
    check_top_k(text, top_k, num_experts, "num_experts_per_tok")
    latent = size(text, "moe_latent_size", minimum=0, default=0)
    width, intermediate = latent or hidden, size(text, "moe_intermediate_size")
    shared = 0
    if size(text, "n_shared_experts", minimum=0, default=0):
        shared = size(text, "moe_shared_expert_intermediate_size")
    if size(text, "n_shared_experts", minimum=0, default=0) > 1:
        text.problem("n_shared_experts", "only 0 or 1 is known")
    experts = ExpertsShape(
        num_experts=num_experts,
        top_k=top_k,
        width=width,
        latent=latent > 0,
        intermediate=intermediate,
        matrices=2,
        bytes_per_parameter=2.0,
        shared_parameters=2 * hidden * shared,
        latent_down=hidden * latent,
        latent_up=latent * hidden,
        router=num_experts * hidden + num_experts,
    )
    projections = {"mixer.fc1_latent_proj": hidden * latent, "mixer.fc2_latent_proj": latent * hidden}
    stored = experts_of(
        file,
        layers,
        experts,
        routed=_two_matrices("mixer.experts.0", width, intermediate),
        shared=_two_matrices("mixer.shared_experts", hidden, shared),
    )
    latent_bytes = file.stored.mean(layers, projections, 2 * hidden * latent)
    return stored and msgspec.structs.replace(stored, latent_bytes_per_parameter=latent_bytes)


def _two_matrices(place: str, width: int, intermediate: int) -> dict[str, int]:
    return {f"{place}.up_proj": width * intermediate, f"{place}.down_proj": intermediate * width}
