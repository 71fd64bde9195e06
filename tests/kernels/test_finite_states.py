"""Which states are finite: every target and thread count against the layer-by-layer check."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from milepost.kernels.finite_states import cpu, finite_states, reference
from milepost.kernels.paging import PagedState
from tests.kernels.targets import TARGETS, using

TILES, WINDOW = (
    3,
    41,
)  # of a layer; the window fills two tiles of 24 and some of a third, in bf16 less than one


def states(rows: int, window_dtype: torch.dtype) -> PagedState:
    """Finite states of two layers in an arena of NaN."""
    pages, per_page = 4, 4
    recurrent = torch.full(((rows * pages + 2) * per_page, 2, 12), float("nan"))
    conv = recurrent.flatten(1).view(window_dtype)
    table = (torch.randperm(rows * pages) + 1).view(rows, pages)
    state = PagedState(recurrent, conv, table, per_page, recurrent_tiles=(0, 7), conv_tiles=(3, 12))
    for row in range(rows):
        for first in state.recurrent_tiles:
            recurrent[state.tile_ids(first, TILES)[row]] = 1e38  # their sum is infinite, they aren't
        for first in state.conv_tiles:
            left = WINDOW
            for tile in state.tile_ids(first, -(-WINDOW // conv.shape[1]))[row].tolist():
                conv[tile, : min(left, conv.shape[1])] = -1e38
                left -= conv.shape[1]
    return state


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("window_dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("bad", ["nan", "inf", "-inf"])
def test_any_number_that_is_not_finite_is_found(
    target: str, threads: int, window_dtype: torch.dtype, bad: str
) -> None:
    state = states(7, window_dtype)
    places = torch.randint(12, (2, 3)).tolist()
    matrix = state.tile_ids(state.recurrent_tiles[1], TILES)
    window = state.tile_ids(state.conv_tiles[0], 1)
    with using(target, threads):
        assert cpu.finite_states(state, TILES, WINDOW).tolist() == [True] * 7
        state.recurrent[matrix[2, 2], 1, places[0][0]] = float(bad)
        state.recurrent[matrix[4, 0], 0, places[0][1]] = float(bad)
        state.conv[window[5, 0], places[0][2]] = float(bad)
        got = cpu.finite_states(state, TILES, WINDOW)
    assert got.tolist() == [True, True, False, True, False, False, True]
    assert reference.finite_states(state, TILES, WINDOW).tolist() == got.tolist()


def test_states_that_the_compiled_kernel_does_not_read_are_looked_at_too() -> None:
    state = states(2, torch.float32)
    wide = replace(state, recurrent=state.recurrent.double(), conv=state.conv.double())
    assert finite_states(wide, TILES, WINDOW).tolist() == [True, True]
    wide.conv[wide.tile_ids(3, 1)[1], 0] = float("nan")
    assert finite_states(wide, TILES, WINDOW).tolist() == [True, False]
