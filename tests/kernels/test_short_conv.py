"""Short convolution: the blocked form and its window in the state against the token loop."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import ModuleType

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from milepost.errors import InvariantError
from milepost.kernels.paging import PagedState, Ragged, StateSnapshots
from milepost.kernels.short_conv import cpu, reference, window_tiles
from tests.kernels.arenas import LENGTHS, STARTS, assert_near, ragged, ulps
from tests.kernels.targets import TARGETS, using

FIRST_TILE = 4


@dataclass(frozen=True)
class Case:
    """One convolution over rows whose windows lie on shuffled pages of a poisoned arena."""

    u: Tensor
    weight: Tensor
    state: PagedState
    rows: Ragged

    @classmethod
    def random(cls, lengths: list[int], starts: list[int], channels: int, taps: int, width: int) -> Case:
        rows = ragged(lengths, starts)
        tiles = -(-(taps - 1) * channels // width)
        pages = -(-(FIRST_TILE + tiles) // 3)
        table = (torch.randperm(len(lengths) * pages + 2) + 1)[: len(lengths) * pages].view(-1, pages)
        conv = torch.full(((len(lengths) * pages + 3) * 3, width), float("nan"), dtype=torch.float64)
        case = cls(
            u=torch.randn(sum(lengths), channels, dtype=torch.float64),
            weight=torch.randn(taps, channels, dtype=torch.float64),
            state=PagedState(recurrent=conv[:, None], conv=conv, table=table, tiles_per_page=3),
            rows=rows,
        )
        mask = case.written()
        for row, start in enumerate(starts):
            if start > 0:
                tile_ids = case.state.tile_ids(FIRST_TILE, tiles)[row]
                own = torch.zeros_like(mask)
                own[tile_ids] = mask[tile_ids]
                conv[own] = torch.randn(int(own.sum()), dtype=torch.float64)
        return case

    def to(self, dtype: torch.dtype, window_dtype: torch.dtype | None = None) -> Case:
        """A copy, with inputs of one dtype and windows of another, or the same."""
        conv = self.state.conv.to(window_dtype or dtype, copy=True)
        state = replace(self.state, conv=conv, recurrent=conv[:, None])
        return replace(self, u=self.u.to(dtype), weight=self.weight.to(dtype), state=state)

    def written(self) -> Tensor:
        """Mask over conv's elements: the windows, without the rest of their last tiles."""
        taps, channels = self.weight.shape
        size = (taps - 1) * channels
        tiles = self.state.tile_ids(FIRST_TILE, window_tiles(self.state, taps - 1, channels))
        mask = torch.zeros(self.state.conv.shape, dtype=torch.bool)
        for row in tiles.tolist():
            for i, tile in enumerate(row):
                mask[tile, : size - i * mask.shape[1]] = True
        return mask


def check_against_reference(case: Case, window_dtype: torch.dtype = torch.float32) -> None:
    start = case.to(torch.float32, window_dtype)
    exact = start.to(torch.float64)
    mask = case.written()
    outside = start.state.conv[~mask]
    want = reference.short_conv(exact.u, exact.weight, exact.state, FIRST_TILE, exact.rows)
    for target in TARGETS:
        for threads in (1, 3):
            fast = start.to(torch.float32, window_dtype)
            with using(target, threads):
                got = cpu.short_conv(fast.u, fast.weight, fast.state, FIRST_TILE, fast.rows)
            assert_near(got, want, ulps(torch.float32))
            # The window is a copy of inputs, so it is exact to the rounding that its dtype asks for.
            assert torch.equal(fast.state.conv[mask], exact.state.conv[mask].float().to(window_dtype))
            assert torch.equal(fast.state.conv[~mask].view(torch.uint8), outside.view(torch.uint8))


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("start", STARTS)
def test_one_row_of_any_length_from_any_start(length: int, start: int) -> None:
    check_against_reference(Case.random([length], [start], 10, 4, 16))


@pytest.mark.parametrize(
    ("channels", "taps", "width"), [(6, 4, 16), (8, 2, 8), (5, 3, 4), (7, 5, 100), (4, 4, 12)]
)
def test_mixed_rows_and_tile_widths(channels: int, taps: int, width: int) -> None:
    check_against_reference(Case.random([1, 3, 2, 66, 1, 4], [0, 1, 0, 64, 7, 2], channels, taps, width))


def test_all_rows_one_token() -> None:
    check_against_reference(Case.random([1] * 4, [0, 1, 2, 100], 6, 4, 5))


def test_rows_shorter_than_the_window_keep_the_older_inputs() -> None:
    case = Case.random([1, 2], [0, 5], 3, 4, 9).to(torch.float32)
    before = case.state.conv[case.state.tile_ids(FIRST_TILE, 1)[1, 0]].view(3, 3).clone()
    cpu.short_conv(case.u, case.weight, case.state, FIRST_TILE, case.rows)
    after = case.state.conv[case.state.tile_ids(FIRST_TILE, 1)[:, 0]].view(2, 3, 3)
    assert torch.equal(after[0], torch.stack([torch.zeros(3), torch.zeros(3), case.u[0]]))
    assert torch.equal(after[1], torch.stack([before[2], case.u[1], case.u[2]]))


def leaving(case: Case, marks: list[tuple[int, int]]) -> Case:
    """The case with snapshots after (row, tokens of it), on new pages of NaN."""
    tiles, width = case.state.conv.shape
    pages = case.state.table.shape[1]
    table = tiles // 3 + torch.randperm(len(marks) * pages).view(-1, pages)
    conv = torch.cat(
        [case.state.conv, torch.full((table.numel() * 3, width), float("nan"), dtype=case.state.conv.dtype)]
    )
    ends = torch.tensor([case.rows.offsets[row] + seen for row, seen in marks])
    snapshots = StateSnapshots(torch.tensor([row for row, _ in marks]), ends, table)
    return replace(case, state=replace(case.state, conv=conv, recurrent=conv[:, None], snapshots=snapshots))


@pytest.mark.parametrize("taps", [2, 4])
@pytest.mark.parametrize("kernel", [reference, cpu])
def test_windows_of_snapshots_are_those_of_a_run_cut_there(kernel: ModuleType, taps: int) -> None:
    """R33, R34; young rows' windows still hold zeros, or inputs of the steps before."""
    lengths, starts = [1, 3, 2, 66, 1, 5], [0, 1, 0, 64, 7, 200]
    marks = [(row, seen) for row, length in enumerate(lengths) for seen in range(1, length + 1)]
    case = Case.random(lengths, starts, 5, taps, 4).to(torch.float32)
    full = leaving(case, marks)
    before = full.state.conv.clone()
    y = kernel.short_conv(full.u, full.weight, full.state, FIRST_TILE, full.rows)
    size = (taps - 1) * 5
    num_tiles = window_tiles(full.state, taps - 1, 5)
    tiles = full.state.snapshot_tile_ids(FIRST_TILE, num_tiles)
    got = full.state.conv[tiles].flatten(1)  # [snapshots, elements of their tiles]
    for number, (row, seen) in enumerate(marks):
        table = case.state.table[row : row + 1]
        cut = replace(case.state, conv=case.state.conv.clone(), table=table)
        begin = case.rows.offsets[row]
        one = ragged([seen], [starts[row]])
        reference.short_conv(case.u[begin : begin + seen], case.weight, cut, FIRST_TILE, one)
        want = cut.conv[cut.tile_ids(FIRST_TILE, num_tiles)[0]].flatten()[:size]
        assert torch.equal(got[number, :size], want)
        assert bool(got[number, size:].isnan().all())
    want_y = reference.short_conv(case.u, case.weight, case.state, FIRST_TILE, case.rows)
    assert_near(y, want_y, ulps(torch.float32))
    own = full.state.tile_ids(FIRST_TILE, num_tiles)
    assert torch.equal(full.state.conv[own].nan_to_num(), case.state.conv[own].nan_to_num())
    others = torch.ones(before.shape[0], dtype=torch.bool)
    others[torch.cat([own.flatten(), tiles.flatten()])] = False
    assert torch.equal(full.state.conv[others].view(torch.uint8), before[others].view(torch.uint8))


@pytest.mark.parametrize("width", [10, 40])
def test_windows_in_bfloat16(width: int) -> None:
    check_against_reference(Case.random([1, 20, 3, 2], [0, 9, 64, 0], 20, 4, width), torch.bfloat16)


@pytest.mark.parametrize("channels", [512, 1030])
def test_more_channels_than_a_block(channels: int) -> None:
    check_against_reference(Case.random([1, 3, 30, 1], [0, 9, 2, 70], channels, 4, 300))


@pytest.mark.parametrize("target", TARGETS)
def test_a_row_is_the_same_alone_and_in_company(target: str) -> None:
    """Bit for bit, on any number of threads."""
    case = Case.random([5, 1, 20, 3], [0, 9, 64, 2], 20, 4, 10).to(torch.float32)
    whole = case.to(torch.float32)
    with using(target, 3):
        want = cpu.short_conv(whole.u, whole.weight, whole.state, FIRST_TILE, whole.rows)
    for row, begin in enumerate(case.rows.offsets[:-1]):
        end = case.rows.offsets[row + 1]
        alone = replace(case.state, table=case.state.table[row : row + 1])
        rows = ragged([end - begin], [case.rows.start_list[row]])
        with using(target, 1):
            got = cpu.short_conv(case.u[begin:end], case.weight, alone, FIRST_TILE, rows)
        assert torch.equal(got, want[begin:end])
    written = case.written()
    assert torch.equal(case.state.conv[written], whole.state.conv[written])


@pytest.mark.parametrize("split", [1, 2, 3, 4, 64, 65, 69])
def test_one_shot_equals_split(split: int) -> None:
    whole = Case.random([70], [0], 6, 4, 16).to(torch.float32)
    parts = Case.random([70], [0], 6, 4, 16).to(torch.float32)
    want = cpu.short_conv(whole.u, whole.weight, whole.state, FIRST_TILE, whole.rows)
    first = cpu.short_conv(whole.u[:split], whole.weight, parts.state, FIRST_TILE, ragged([split]))
    rest = ragged([70 - split], [split])
    second = cpu.short_conv(whole.u[split:], whole.weight, parts.state, FIRST_TILE, rest)
    assert_near(torch.cat([first, second]), want, 1e-6)
    assert torch.equal(whole.state.conv[whole.written()], parts.state.conv[parts.written()])


@settings(max_examples=30, deadline=None)
@given(
    rows=st.lists(st.tuples(st.integers(1, 70), st.integers(0, 3)), min_size=1, max_size=6),
    channels=st.integers(1, 9),
    taps=st.integers(2, 5),
    width=st.integers(1, 40),
)
def test_fuzz(rows: list[tuple[int, int]], channels: int, taps: int, width: int) -> None:
    lengths, starts = [length for length, _ in rows], [start for _, start in rows]
    check_against_reference(Case.random(lengths, starts, channels, taps, width))


def test_wrong_shapes_are_named() -> None:
    case = Case.random([2], [0], 6, 4, 16)
    with pytest.raises(InvariantError, match=r"weight must have shape \[\*, 6\]"):
        reference.short_conv(case.u, case.weight[:, :5], case.state, FIRST_TILE, case.rows)
    with pytest.raises(InvariantError, match="needs tiles up to 103"):
        cpu.short_conv(case.u, case.weight, case.state, 101, case.rows)
    case = case.to(torch.float32)
    with pytest.raises(InvariantError, match=r"at most 16 taps\. Given: 17"):
        cpu.short_conv(case.u, torch.zeros(17, 6), case.state, 0, case.rows)
    with pytest.raises(InvariantError, match="weight must be contiguous"):
        cpu.short_conv(case.u, torch.zeros(6, 4).T, case.state, FIRST_TILE, case.rows)
