"""Small shapes of models that the engine does not run: their numbers tell every width apart."""

from __future__ import annotations

from milepost.shapes.shape import (
    AttentionKind,
    AttentionShape,
    ExpertsShape,
    ModelShape,
    RecurrentKind,
    RecurrentShape,
)

DELTA = RecurrentShape(
    kind=RecurrentKind.GATED_DELTA_NET,
    heads=32,
    rows=128,
    row_dim=64,
    key_heads=16,
    conv_window=3,
    sharded=9_000,
    replicated=70,
)
MAMBA = RecurrentShape(
    kind=RecurrentKind.MAMBA2,
    heads=64,
    rows=64,
    row_dim=128,
    key_heads=8,
    conv_window=3,
    sharded=8_000,
    replicated=0,
)
GROUPED = AttentionShape(
    kind=AttentionKind.GQA,
    heads=16,
    kv_heads=2,
    row_dim=2 * 2 * 256,
    qk_head_dim=256,
    v_head_dim=256,
    sharded=7_000,
    replicated=50,
)
EXPERTS = ExpertsShape(
    num_experts=64,
    top_k=4,
    width=512,
    latent=False,
    intermediate=96,
    matrices=2,
    bytes_per_parameter=2.0,
    shared_parameters=600,
    latent_down=0,
    latent_up=0,
    router=512 * 64,
)


def model(
    recurrent: RecurrentShape | None = DELTA,
    attention: AttentionShape | None = GROUPED,
    experts: ExpertsShape | None = EXPERTS,
) -> ModelShape:
    return ModelShape(
        family="test",
        hidden_size=512,
        vocab_size=1_000,
        max_position=4_096,
        blocks=8,
        recurrent_layers=6 if recurrent else 0,
        attention_layers=2 if attention else 0,
        moe_layers=8 if experts else 0,
        dense_layers=0 if experts else 8,
        recurrent=recurrent,
        attention=attention,
        experts=experts,
        dense_parameters=3 * 512 * 1_024,
        norm_parameters=17 * 512,
    )
