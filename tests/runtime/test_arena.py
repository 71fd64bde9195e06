"""The arena's views alias one buffer, poison is NaN everywhere, and memory is taken when used."""

from __future__ import annotations

import resource

import pytest
import torch

from milepost.errors import ConfigError, InvariantError
from milepost.memory.layout import PagedLayout, paged_layout
from milepost.model_spec import ModelSpec
from milepost.runtime.arena import Arena
from milepost.runtime.dtypes import torch_dtype


@pytest.fixture
def arena(layout: PagedLayout) -> Arena:
    return Arena(layout, 24, kv_dtype=torch.float32, conv_dtype=torch.float32)


def test_views_share_one_buffer_of_zeros(arena: Arena, layout: PagedLayout) -> None:
    assert arena.kv.shape == (24, 1, 16, 32)
    assert arena.recurrent.shape == (24 * layout.tiles_per_page, layout.tile_rows, 16)
    assert arena.conv.shape == (24 * layout.tiles_per_page, layout.tile_bytes // 4)
    assert not arena.bytes.any()
    assert arena.bytes.data_ptr() % 4096 == 0
    tile = 7 * layout.tiles_per_page + 1
    arena.recurrent[tile] = 3.0
    assert torch.equal(arena.conv[tile], torch.full((layout.tile_bytes // 4,), 3.0))
    assert int(arena.kv[7].count_nonzero()) == layout.tile_bytes // 4
    assert not arena.kv[:7].any()
    assert not arena.kv[8:].any()


@pytest.mark.parametrize("kv_dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("recurrent_dtype", [torch.float32, torch.float64])
def test_poison_is_nan_in_every_view(
    spec: ModelSpec, kv_dtype: torch.dtype, recurrent_dtype: torch.dtype
) -> None:
    layout = paged_layout(
        spec,
        block_size=16,
        kv_itemsize=kv_dtype.itemsize,
        conv_itemsize=2,
        recurrent_itemsize=recurrent_dtype.itemsize,
    )
    arena = Arena(layout, 5, kv_dtype=kv_dtype, conv_dtype=torch.bfloat16, recurrent_dtype=recurrent_dtype)
    arena.poison([1, 3])
    tiles = layout.tiles_per_page
    for page in range(5):
        for view in (arena.kv[page], arena.recurrent[page * tiles : (page + 1) * tiles]):
            assert bool(view.isnan().all()) == (page in (1, 3))
    assert arena.conv[tiles : 2 * tiles].isnan().all()
    assert arena.poisoned([1, 3])
    assert arena.poisoned([])
    assert not arena.poisoned([1, 2])
    arena.scrub([3])
    assert not arena.kv[3].any()
    assert arena.kv[1].isnan().all()
    arena.poison_all()
    assert arena.kv.isnan().all()


def test_pages_outside_the_arena_are_an_error(arena: Arena) -> None:
    for pages in ([24], [-1]):
        with pytest.raises(InvariantError, match="24 pages"):
            arena.scrub(pages)


def test_pages_share_the_buffer(arena: Arena, layout: PagedLayout) -> None:
    pages = arena.pages()
    assert pages.shape == (24, layout.page_bytes)
    arena.kv[5] = 1.0
    pages[7] = pages[5]
    assert torch.equal(arena.kv[7], torch.ones_like(arena.kv[7]))


def test_copies_are_whole_pages_and_leave_the_others(arena: Arena) -> None:
    arena.bytes.copy_(torch.randint(0, 256, arena.bytes.shape, dtype=torch.uint8))
    before = arena.pages().copy()
    arena.copy_pages([])
    arena.copy_pages([(3, 9), (3, 1), (23, 2)])
    expected = before.copy()
    expected[[9, 1, 2]] = before[[3, 3, 23]]
    assert (arena.pages() == expected).all()


def test_tails_are_scrubbed_behind_what_stays(arena: Arena) -> None:
    arena.poison_all()
    arena.scrub_tails([])
    arena.scrub_tails([(3, 5), (4, 0)])
    assert arena.kv[3, :, :5].isnan().all()
    assert not arena.kv[3, :, 5:].any()
    assert not arena.kv[4].any()
    assert arena.poisoned([2, 5])
    with pytest.raises(InvariantError, match="24 pages"):
        arena.scrub_tails([(3, 5), (24, 1)])


def test_copies_that_cannot_be_are_refused(arena: Arena) -> None:
    before = arena.pages().copy()
    for pairs, message in (
        ([(1, 2), (24, 3)], "24 pages"),
        ([(1, 2), (3, -1)], "24 pages"),
        ([(1, 2), (0, 3)], "dummy page"),
        ([(1, 2), (3, 0)], "dummy page"),
        ([(1, 2), (3, 2)], "depend on their order"),
        ([(1, 2), (2, 3)], "depend on their order"),
        ([(2, 2)], "depend on their order"),
    ):
        with pytest.raises(InvariantError, match=message):
            arena.copy_pages(pairs)
    assert (arena.pages() == before).all()


def test_sizes_must_be_the_layouts(layout: PagedLayout) -> None:
    with pytest.raises(InvariantError, match=r"4-byte kv elements, the arena got torch.bfloat16"):
        Arena(layout, 3, kv_dtype=torch.bfloat16, conv_dtype=torch.float32)


def test_a_large_arena_costs_what_is_used_of_it(layout: PagedLayout) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # kB
    num_pages = (16 << 30) // layout.page_bytes
    arena = Arena(layout, num_pages, kv_dtype=torch.float32, conv_dtype=torch.float32)
    arena.scrub([1, num_pages - 1])
    arena.kv[num_pages // 2] = 1.0
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 16 << 10


def test_an_arena_that_cannot_be_mapped_is_a_config_error(layout: PagedLayout) -> None:
    with pytest.raises(ConfigError, match=r"refuses to map an arena of .* Choose less memory"):
        Arena(layout, 1 << 46, kv_dtype=torch.float32, conv_dtype=torch.float32)


def test_finite_states_looks_at_the_state_and_nothing_else(spec: ModelSpec) -> None:
    layout = paged_layout(spec, block_size=16, kv_itemsize=2, conv_itemsize=2)
    assert layout.state_padding_bytes > 0
    pages = layout.pages_per_state
    arena = Arena(layout, 1 + 3 * pages, kv_dtype=torch.bfloat16, conv_dtype=torch.bfloat16)
    tables = torch.arange(1, 1 + 3 * pages).view(3, pages)
    arena.poison_all()
    per_page = layout.tiles_per_page

    def tile(row: int, index: int) -> int:
        return int(tables[row, index // per_page]) * per_page + index % per_page

    for row in range(3):
        for index in range(layout.num_recurrent_layers * layout.recurrent_tiles_per_layer):
            arena.recurrent[tile(row, index)] = 0.5
        for layer in range(layout.num_recurrent_layers):
            rest = layout.conv_window * layout.conv_channels
            for index in range(layout.conv_tiles_per_layer):
                width = min(rest, arena.conv.shape[1])
                arena.conv[tile(row, layout.first_conv_tile(layer) + index), :width] = 0.5
                rest -= width
    assert arena.finite_states(arena.states(tables)).tolist() == [True, True, True]
    arena.recurrent[tile(1, layout.first_recurrent_tile(2)), -1, -1] = float("inf")
    arena.conv[tile(2, layout.first_conv_tile(2)), 0] = float("nan")
    assert arena.finite_states(arena.states(tables)).tolist() == [True, False, False]


def test_dtype_names() -> None:
    assert torch_dtype("bfloat16") is torch.bfloat16
    with pytest.raises(ConfigError, match=r"Given: 'float23'. Did you mean 'float32'"):
        torch_dtype("float23")
