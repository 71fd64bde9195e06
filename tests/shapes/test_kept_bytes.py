"""What a sequence keeps: states and rows, by model, against sizes that engines log or papers state."""

from __future__ import annotations

import pytest

from milepost.memory.aligned import aligned_layout
from milepost.shapes.names import SHAPES, find_shape
from milepost.shapes.shape import AttentionKind, RecurrentKind

# Layers; of a layer: heads, rows and row width of the state, channels and past inputs of the convolution.
STATES = {
    "kimi-k3": (RecurrentKind.KDA, 69, 96, 128, 128, 3 * 96 * 128, 3),
    "kimi-linear": (RecurrentKind.KDA, 20, 32, 128, 128, 3 * 32 * 128, 3),
    "qwen3-next-80b-a3b": (RecurrentKind.GATED_DELTA_NET, 36, 32, 128, 128, 8_192, 3),
    "qwen3.5-4b": (RecurrentKind.GATED_DELTA_NET, 24, 32, 128, 128, 8_192, 3),
    "qwen3.5-27b": (RecurrentKind.GATED_DELTA_NET, 48, 48, 128, 128, 10_240, 3),
    "qwen3.8-27b": (RecurrentKind.GATED_DELTA_NET, 48, 48, 128, 128, 10_240, 3),
    "qwen3.5-397b-a17b": (RecurrentKind.GATED_DELTA_NET, 45, 64, 128, 128, 12_288, 3),
    "nemotron-3-nano": (RecurrentKind.MAMBA2, 23, 64, 64, 128, 6_144, 3),
    "nemotron-3-super": (RecurrentKind.MAMBA2, 40, 128, 64, 128, 10_240, 3),
}

# Layers, heads of keys and values, elements of a token's row.
ROWS = {
    "kimi-k3": (AttentionKind.MLA, 24, 1, 576),
    "kimi-linear": (AttentionKind.MLA, 7, 1, 576),
    "deepseek-v3": (AttentionKind.MLA, 61, 1, 576),
    "kimi-k2": (AttentionKind.MLA, 61, 1, 576),
    "qwen3-next-80b-a3b": (AttentionKind.GQA, 12, 2, 2 * 2 * 256),
    "qwen3.5-4b": (AttentionKind.GQA, 8, 4, 2 * 4 * 256),
    "qwen3.5-27b": (AttentionKind.GQA, 16, 4, 2 * 4 * 256),
    "qwen3.8-27b": (AttentionKind.GQA, 16, 4, 2 * 4 * 256),
    "qwen3.5-397b-a17b": (AttentionKind.GQA, 15, 2, 2 * 2 * 256),
    "qwen3-235b-a22b": (AttentionKind.GQA, 94, 4, 2 * 4 * 128),
    "minimax-m2.5": (AttentionKind.GQA, 62, 8, 2 * 8 * 128),
    "nemotron-3-nano": (AttentionKind.GQA, 6, 2, 2 * 2 * 128),
    "nemotron-3-super": (AttentionKind.GQA, 8, 2, 2 * 2 * 128),
}


@pytest.mark.parametrize("name", sorted(set(SHAPES) - {"milepost-toy-k3"}))
def test_states_and_rows(name: str) -> None:
    model = find_shape(name)[1]
    state, attention = model.recurrent, model.attention
    assert (state is None) == (name not in STATES)
    if state is not None:
        found = (state.kind, model.recurrent_layers, state.heads, state.rows, state.row_dim)
        assert (*found, state.conv_channels(), state.conv_window) == STATES[name]
    assert attention is not None
    assert (attention.kind, model.attention_layers, attention.kv_heads, attention.row_dim) == ROWS[name]


@pytest.mark.parametrize(
    ("name", "state_bytes", "kv_bytes"),
    [
        ("kimi-k3", 449_372_160, 27_648),  # reference figures of both Kimi models: 449.37 MB, 43.4 MB
        ("kimi-linear", 43_417_600, 8_064),
        ("qwen3-next-80b-a3b", 36 * (2_097_152 + 49_152), 24_576),
        ("qwen3.5-397b-a17b", 45 * (4_194_304 + 73_728), 30_720),
        ("nemotron-3-nano", 23 * (2_097_152 + 36_864), 6_144),
        ("deepseek-v3", 0, 70_272),  # 70 KB a token (DeepSeek-V3's hardware paper, arXiv 2505.09343)
        ("qwen3-235b-a22b", 0, 192_512),
        ("minimax-m2.5", 0, 253_952),
    ],
)
def test_bytes_of_a_sequence(name: str, state_bytes: int, kv_bytes: int) -> None:
    """A float32 state, bf16 convolution windows and rows."""
    model = find_shape(name)[1]
    state, attention = model.recurrent, model.attention
    kept = 0
    if state is not None:
        matrices = state.matrix_elements * 4
        kept = model.recurrent_layers * (matrices + state.conv_channels() * state.conv_window * 2)
    assert kept == state_bytes
    assert attention is not None
    assert model.attention_layers * attention.row_dim * 2 == kv_bytes


@pytest.mark.parametrize(
    ("name", "alignment", "kv_itemsize", "ranks", "logged"),
    [
        ("qwen3.5-4b", 16, 2, 1, 528),
        ("qwen3-next-80b-a3b", 16, 2, 1, 1_056),
        ("nemotron-3-nano", 64, 1, 1, 4_224),
        ("kimi-k3", 128, 1, 8, 1_536),
    ],
)
def test_blocks_that_vllm_logs(name: str, alignment: int, kv_itemsize: int, ranks: int, logged: int) -> None:
    """From a config.json to the block (`tests/memory/test_aligned.py` has more, with drafts and paddings)."""
    layout = aligned_layout(
        find_shape(name)[1], kernel_alignment=alignment, kv_itemsize=kv_itemsize, tensor_parallel=ranks
    )
    assert layout.block_size == logged
