"""KDA leaves the state after any token of a step, and what else it computes is what it was."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from milepost.errors import InvariantError
from milepost.kernels.kda import Kda, cpu, reference
from milepost.kernels.native import native
from milepost.kernels.paging import PagedState, Ragged, StateSnapshots
from tests.kernels.arenas import StateArena, assert_near, kda_arena, ragged, ulps
from tests.kernels.kda_cases import Inputs, fill, make_inputs

KERNELS: dict[str, Kda] = {"reference": reference.kda, "cpu": cpu.kda}
HEADS, DIM, TILE_ROWS = 2, 16, 4
CHUNK = native.KDA_CHUNK
Marks = Sequence[tuple[int, int]]  # (row, tokens of the row that the snapshot has seen)


def every_token(lengths: Sequence[int]) -> Marks:
    return [(row, seen) for row, length in enumerate(lengths) for seen in range(1, length + 1)]


def leaving(rows: Ragged, marks: Marks, dtype: torch.dtype) -> StateArena:
    """An arena whose rows have their own states, and pages for the snapshots, all else NaN."""
    arena = kda_arena(rows.num_rows + len(marks), HEADS, DIM, TILE_ROWS)
    table = arena.state.table
    live = replace(arena, state=replace(arena.state, table=table[: rows.num_rows]))
    fill(live, rows)
    snapshots = None
    if marks:
        ends = [rows.offsets[row] + seen for row, seen in marks]
        snapshots = StateSnapshots(
            torch.tensor([row for row, _ in marks]), torch.tensor(ends), table[rows.num_rows :]
        )
    return replace(live, state=replace(live.state, snapshots=snapshots)).as_dtype(dtype)


def without(arena: StateArena) -> StateArena:
    """A copy that leaves nothing."""
    return replace(arena, state=replace(arena.state, recurrent=arena.state.recurrent.clone(), snapshots=None))


def live(arena: StateArena) -> Tensor:
    """The rows' states, [rows, tiles, tile_rows, dim]."""
    return arena.state.recurrent[arena.state.tile_ids(arena.first_tile, arena.tiles)]


def left(arena: StateArena) -> Tensor:
    """The snapshots, [snapshots, tiles, tile_rows, dim]."""
    return arena.state.recurrent[arena.state.snapshot_tile_ids(arena.first_tile, arena.tiles)]


def state_of_a_run_cut_there(
    inputs: Inputs, rows: Ragged, arena: StateArena, row: int, seen: int, dtype: torch.dtype
) -> Tensor:
    """The reference's state of one row that stops after `seen` tokens, computed alone."""
    alone = without(arena).as_dtype(dtype)
    alone = replace(alone, state=replace(alone.state, table=arena.state.table[row : row + 1]))
    tokens = torch.arange(rows.offsets[row], rows.offsets[row] + seen)
    part = inputs.part(tokens)
    reference.kda(*part.all(), alone.state, alone.first_tile, ragged([seen], [rows.start_list[row]]))
    return live(alone)[0]


def check_every_snapshot(kernel: Kda, rows: Ragged, marks: Marks, dtype: torch.dtype, gate: str) -> None:
    inputs = make_inputs(rows.num_tokens, HEADS, DIM, gate).to(dtype)
    arena = leaving(rows, marks, dtype)
    want = [
        state_of_a_run_cut_there(inputs.to(torch.float64), rows, arena, row, seen, torch.float64)
        for row, seen in marks
    ]
    kernel(*inputs.all(), arena.state, arena.first_tile, rows)
    for got, expected in zip(left(arena), want, strict=True):
        assert_near(got, expected, ulps(dtype))


@pytest.mark.parametrize(("kernel", "dtype"), [("reference", torch.float64), ("cpu", torch.float32)])
def test_a_snapshot_after_every_token_of_a_mixed_batch(kernel: str, dtype: torch.dtype) -> None:
    """R33, R34: prefills beside decodes leave what they are asked for; R37: the states aren't symmetric."""
    lengths, starts = [1, 17, 70, 1, 2, 131, 1], [0, 63, 0, 64, 100, 1, 5]
    rows, marks = ragged(lengths, starts), every_token(lengths)
    check_every_snapshot(KERNELS[kernel], rows, marks, dtype, "bounded")


@pytest.mark.parametrize("kernel", KERNELS)
def test_only_some_rows_of_one_token_leave_one(kernel: str) -> None:
    rows = ragged([1] * 5, [0, 9, 64, 0, 1])
    check_every_snapshot(KERNELS[kernel], rows, [(0, 1), (2, 1), (4, 1)], torch.float32, "bounded")


@settings(max_examples=25, deadline=None)
@given(data=st.data(), gate=st.sampled_from(["bounded", "unbounded", "sudden"]))
def test_fuzz(data: st.DataObject, gate: str) -> None:
    lengths = data.draw(st.lists(st.sampled_from([1, 2, 63, 64, 65, 129, 200]), min_size=1, max_size=4))
    starts = [data.draw(st.sampled_from([0, 1, 63, 64, 100])) for _ in lengths]
    marks = data.draw(st.sets(st.sampled_from(every_token(lengths)), max_size=8))
    rows = ragged(lengths, starts)
    check_every_snapshot(cpu.kda, rows, sorted(marks), torch.float32, gate)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("start", [0, 37, 64])
def test_snapshots_on_the_grid_change_no_bit(kernel: str, start: int) -> None:
    """Nothing is cut that is not cut anyway, so a request's answer can't depend on its snapshots."""
    lengths, starts = [200, 1, 70], [start, 7, 0]
    rows = ragged(lengths, starts)
    marks = [
        (row, seen)
        for row, seen in every_token(lengths)
        if (starts[row] + seen) % CHUNK == 0 or seen == lengths[row]
    ]
    assert len(marks) >= 6
    inputs = make_inputs(rows.num_tokens, HEADS, DIM).to(torch.float32)
    arena = leaving(rows, marks, torch.float32)
    plain = without(arena)
    run = KERNELS[kernel]
    got = run(*inputs.all(), arena.state, arena.first_tile, rows)
    want = run(*inputs.all(), plain.state, plain.first_tile, rows)
    assert torch.equal(got, want)
    assert torch.equal(live(arena), live(plain))
    last = [number for number, (row, seen) in enumerate(marks) if seen == lengths[row]]
    assert torch.equal(left(arena)[last], live(arena))


@pytest.mark.parametrize("kernel", KERNELS)
def test_snapshots_off_the_grid_change_no_more_than_rounding(kernel: str) -> None:
    lengths = [150, 1, 33]
    rows, marks = ragged(lengths), every_token(lengths)[::7]
    inputs = make_inputs(rows.num_tokens, HEADS, DIM).to(torch.float32)
    arena = leaving(rows, marks, torch.float32)
    plain = without(arena)
    run = KERNELS[kernel]
    got = run(*inputs.all(), arena.state, arena.first_tile, rows)
    assert_near(got, run(*inputs.all(), plain.state, plain.first_tile, rows), 1e-5)
    assert_near(live(arena), live(plain), 1e-5)


@pytest.mark.parametrize("kernel", KERNELS)
def test_nothing_else_is_written(kernel: str) -> None:
    rows = ragged([1, 70, 3], [0, 5, 64])
    arena = leaving(rows, [(0, 1), (1, 13), (1, 70)], torch.float32)
    inputs = make_inputs(rows.num_tokens, HEADS, DIM).to(torch.float32)
    others = ~arena.written()
    others[arena.state.snapshot_tile_ids(arena.first_tile, arena.tiles).flatten()] = False
    before = arena.state.recurrent[others].clone()
    KERNELS[kernel](*inputs.all(), arena.state, arena.first_tile, rows)
    assert torch.equal(arena.state.recurrent[others].view(torch.uint8), before.view(torch.uint8))


def with_ends(state: PagedState, rows: Sequence[int], ends: Sequence[int]) -> PagedState:
    table = state.table[:1].expand(len(rows), -1)
    snapshots = StateSnapshots(torch.tensor(rows), torch.tensor(ends), table)
    return replace(state, snapshots=snapshots)


@pytest.mark.parametrize(
    ("rows", "ends"),
    [([0], [0]), ([0], [5]), ([1], [4]), ([1], [8]), ([2], [8]), ([0, 0], [3, 3]), ([0, 0], [3, 2])],
)
def test_a_snapshot_must_fit_its_row(rows: list[int], ends: list[int]) -> None:
    inputs = make_inputs(7, HEADS, DIM)
    arena = kda_arena(2, HEADS, DIM, TILE_ROWS)
    with pytest.raises(InvariantError, match=r"a snapshot of row \d must come after one of the row's tokens"):
        cpu.kda(*inputs.all(), with_ends(arena.state, rows, ends), arena.first_tile, ragged([4, 3]))


def test_snapshots_must_be_whole() -> None:
    ints = torch.tensor([0])
    with pytest.raises(InvariantError, match="must be int64"):
        StateSnapshots(ints, ints.int(), ints[:, None])
    with pytest.raises(InvariantError, match=r"n at least 1.*Given: \[\[0\], \[0\], \[0, 1\]\]"):
        StateSnapshots(ints[:0], ints[:0], ints[:0, None])
    with pytest.raises(InvariantError, match="must have shapes"):
        StateSnapshots(ints, ints, ints)
    state = kda_arena(1, HEADS, DIM, TILE_ROWS).state
    short = replace(state, snapshots=StateSnapshots(ints, ints + 1, state.table[:, :-1]))
    with pytest.raises(InvariantError, match=r"kda: snapshots.table must have shape"):
        cpu.kda(*make_inputs(2, HEADS, DIM).all(), short, 2, ragged([2]))
