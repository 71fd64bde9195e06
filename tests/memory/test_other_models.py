"""Layouts of models that the engine does not run: they are the same arithmetic over other numbers."""

from __future__ import annotations

import msgspec
import pytest

from milepost.errors import ConfigError
from milepost.memory.aligned import aligned_layout
from milepost.memory.layout import paged_layout
from milepost.memory.lcm import lcm_layout
from milepost.shapes.of_spec import shape_of
from tests.model_shapes import MAMBA, model
from tests.model_specs import K3


def test_a_spec_and_its_shape_are_laid_out_alike() -> None:
    for lay_out in (paged_layout, aligned_layout, lcm_layout):
        assert lay_out(K3, tensor_parallel=8) == lay_out(shape_of(K3), tensor_parallel=8)


def test_a_head_of_unequal_widths() -> None:
    layout = paged_layout(model(MAMBA), block_size=64)
    assert layout.page_bytes == 64 * 2 * 1_024 * 2
    assert (layout.head_rows, layout.head_dim, layout.tile_rows) == (64, 128, 16)
    assert layout.state_bytes == 6 * (64 * 64 * 128 * 4 + 3 * (64 * 64 + 2 * 8 * 128) * 2)
    assert layout.state_tiles * layout.tile_bytes >= layout.state_bytes


def test_ranks_beyond_the_key_heads_keep_one_each() -> None:
    layouts = [paged_layout(model(MAMBA), tensor_parallel=ranks) for ranks in (1, 2, 8)]
    assert [layout.kv_bytes_per_token for layout in layouts] == [2 * 1_024 * 2, 2 * 512 * 2, 2 * 512 * 2]


def test_aligned_blocks_hold_a_layer_of_a_state() -> None:
    steps = aligned_layout(model(MAMBA), kernel_alignment=16, kv_itemsize=1).steps
    assert steps.block_size * steps.token_bytes >= steps.layer_state_bytes
    assert (steps.block_size - 16) * steps.token_bytes < steps.layer_state_bytes


def test_a_model_without_a_state_has_no_layout() -> None:
    with pytest.raises(ConfigError, match="2 that keep rows, 0 that keep a state"):
        paged_layout(model(None))
    with pytest.raises(ConfigError, match=r"must divide the 64 Mamba2 heads. Given: 3"):
        paged_layout(model(MAMBA), tensor_parallel=3)
    odd = msgspec.structs.replace(model(MAMBA), recurrent_layers=0)
    with pytest.raises(ConfigError, match="0 that keep a state"):
        paged_layout(odd)
