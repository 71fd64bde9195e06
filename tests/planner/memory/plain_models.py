"""Models in numbers with one kind of layer only, which layouts have nothing to do with."""

from __future__ import annotations

import msgspec

from milepost.shapes.names import find_shape
from milepost.shapes.shape import ModelShape, RecurrentKind, RecurrentShape

__all__ = ["ATTENTION_ONLY", "STATES_OF_1_MB", "STATES_ONLY"]

K3 = find_shape("kimi-k3")[1]

ATTENTION_ONLY: ModelShape = msgspec.structs.replace(
    K3, recurrent_layers=0, attention_layers=93, recurrent=None
)
"""K3 with MLA in every layer."""

STATES_ONLY: ModelShape = msgspec.structs.replace(K3, recurrent_layers=93, attention_layers=0, attention=None)
"""K3 with KDA in every layer."""

STATES_OF_1_MB: ModelShape = ModelShape(
    family="states of 1 MB",
    hidden_size=10,
    vocab_size=10,
    max_position=1_000,
    blocks=1,
    recurrent_layers=1,
    attention_layers=0,
    moe_layers=0,
    dense_layers=0,
    recurrent=RecurrentShape(
        kind=RecurrentKind.KDA,
        heads=1,
        rows=2_500,
        row_dim=100,
        key_heads=1,
        conv_window=0,
        sharded=100,
        replicated=0,
    ),
    attention=None,
    experts=None,
    dense_parameters=0,
    norm_parameters=0,
)
"""A state of 1,000,000 bytes and nothing else."""
