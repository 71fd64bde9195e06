"""Layout arithmetic against the design's numbers (section 4) and the published model sizes."""

from __future__ import annotations

import msgspec
import pytest

from milepost.errors import ConfigError
from milepost.memory.layout import PagedLayout, paged_layout
from milepost.model_spec import LayerKind, ModelSpec
from tests.model_specs import K3, KIMI_LINEAR


def test_k3_has_69_kda_and_24_mla_layers_and_ends_in_two_mla_layers() -> None:
    assert (len(K3.kda_layers), len(K3.mla_layers)) == (69, 24)
    assert K3.mla_layers[-2:] == (91, 92)


@pytest.mark.parametrize(
    ("spec", "tensor_parallel", "page_bytes", "token_bytes", "state_bytes", "pages", "padding_percent"),
    [
        (K3, 1, 1_769_472, 27_648, 449_372_160, 254, 0.02),
        (K3, 8, 1_769_472, 27_648, 56_171_520, 32, 0.80),
        (KIMI_LINEAR, 1, 516_096, 8_064, 43_417_600, 85, 1.04),
    ],
)
def test_the_design_numbers(
    spec: ModelSpec,
    tensor_parallel: int,
    page_bytes: int,
    token_bytes: int,
    state_bytes: int,
    pages: int,
    padding_percent: float,
) -> None:
    layout = paged_layout(spec, tensor_parallel=tensor_parallel)
    assert layout.block_size == 64
    assert layout.page_bytes == page_bytes
    assert layout.kv_bytes_per_token == token_bytes
    assert layout.state_bytes == state_bytes
    assert layout.pages_per_state == pages
    assert layout.pages_per_block == 1
    assert round(100 * layout.state_padding_bytes / layout.state_bytes, 2) == padding_percent
    assert layout.page_bytes % layout.tile_bytes == 0


@pytest.mark.parametrize(
    ("spec", "tensor_parallel", "recurrent_bytes", "conv_bytes"),
    [(K3, 1, 6_291_456, 221_184), (K3, 8, 786_432, 27_648), (KIMI_LINEAR, 1, 2_097_152, 73_728)],
)
def test_one_layer_of_a_state(
    spec: ModelSpec, tensor_parallel: int, recurrent_bytes: int, conv_bytes: int
) -> None:
    layout = paged_layout(spec, tensor_parallel=tensor_parallel)
    assert layout.recurrent_tiles_per_layer * layout.tile_bytes == recurrent_bytes
    assert layout.conv_bytes_per_layer == conv_bytes
    assert layout.tile_rows == 16


@pytest.mark.parametrize("tensor_parallel", [1, 2, 4, 8, 16, 32])
def test_kimi_linear_splits_like_k3(tensor_parallel: int) -> None:
    layout = paged_layout(KIMI_LINEAR, tensor_parallel=tensor_parallel)
    assert layout.num_heads == 32 // tensor_parallel
    assert 0 <= layout.state_padding_bytes < 2 * layout.page_bytes


def tile_offset(layout: PagedLayout, state_table: list[int], tile: int) -> int:
    """The address formula of the layout's docstring and of the design, in bytes from the arena's start."""
    page = state_table[tile // layout.tiles_per_page]
    return page * layout.page_bytes + (tile % layout.tiles_per_page) * layout.tile_bytes


@pytest.mark.parametrize(("spec", "tensor_parallel"), [(K3, 8), (KIMI_LINEAR, 1), (KIMI_LINEAR, 8)])
def test_tiles_lie_side_by_side_inside_the_pages_of_the_table(spec: ModelSpec, tensor_parallel: int) -> None:
    layout = paged_layout(spec, tensor_parallel=tensor_parallel)
    table = [3 * page + 7 for page in range(layout.pages_per_state)][::-1]
    offsets = [tile_offset(layout, table, tile) for tile in range(layout.state_tiles)]
    assert len(set(offsets)) == layout.state_tiles
    for offset in offsets:
        page = offset // layout.page_bytes
        assert page in table
        assert (offset + layout.tile_bytes - 1) // layout.page_bytes == page


@pytest.mark.parametrize(("spec", "tensor_parallel"), [(K3, 1), (K3, 8), (KIMI_LINEAR, 1)])
def test_layers_share_no_tile_and_leave_no_gap(spec: ModelSpec, tensor_parallel: int) -> None:
    layout = paged_layout(spec, tensor_parallel=tensor_parallel)
    layers = range(layout.num_recurrent_layers)
    starts = [(layout.first_recurrent_tile(i), layout.recurrent_tiles_per_layer) for i in layers]
    starts += [(layout.first_conv_tile(i), layout.conv_tiles_per_layer) for i in layers]
    tile = 0
    for start, count in starts:
        assert start == tile
        tile += count
    assert tile == layout.state_tiles


@pytest.mark.parametrize(("tokens", "blocks"), [(0, 0), (1, 1), (63, 1), (64, 1), (65, 2), (128, 2)])
def test_blocks_for(tokens: int, blocks: int) -> None:
    assert paged_layout(K3).blocks_for(tokens) == blocks


@pytest.mark.parametrize("block_size", [4, 16, 64, 100, 256])
def test_tiles_divide_the_page_and_the_head_at_any_block_size_that_is_taken(block_size: int) -> None:
    layout = paged_layout(KIMI_LINEAR, block_size=block_size)
    assert layout.page_bytes % layout.tile_bytes == 0
    assert layout.head_dim % layout.tile_rows == 0
    assert layout.pages_per_state * layout.tiles_per_page >= layout.state_tiles


def test_what_can_not_be_laid_out_is_refused_with_the_limit() -> None:
    with pytest.raises(ConfigError, match=r"block_size must be at least 1\. Given: 0"):
        paged_layout(K3, block_size=0)
    with pytest.raises(ConfigError, match=r"tensor_parallel must be at least 1\. Given: 0"):
        paged_layout(K3, tensor_parallel=0)
    with pytest.raises(ConfigError, match=r"must divide the 96 KDA heads\. Given: 5"):
        paged_layout(K3, tensor_parallel=5)
    only_kda = msgspec.structs.replace(K3, layers=(LayerKind.KDA,))
    with pytest.raises(ConfigError, match="at least one MLA and one KDA layer"):
        paged_layout(only_kda)
    odd = msgspec.structs.replace(K3, mla=msgspec.structs.replace(K3.mla, kv_lora_rank=1, rope_head_dim=0))
    with pytest.raises(ConfigError, match=r"multiple of 32 for this model.*Given: 1, pages of 48 bytes"):
        paged_layout(odd, block_size=1)
    for block_size in (1, 2, 3, 63):
        with pytest.raises(ConfigError, match=r"multiple of 4 for this model"):
            paged_layout(KIMI_LINEAR, block_size=block_size)
