"""KDA: the chunked and stepped CPU form against the recurrence in float64, for every target."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from milepost.errors import InvariantError
from milepost.kernels.kda import cpu, reference
from milepost.kernels.native import native
from milepost.kernels.paging import Ragged
from tests.kernels.arenas import LENGTHS, STARTS, StateArena, assert_near, kda_arena, ragged, ulps
from tests.kernels.kda_cases import Inputs, fill, make_inputs
from tests.kernels.targets import TARGETS, using

TOLERANCE = ulps(torch.float32)


CHUNK = native.KDA_CHUNK


def check_against_reference(inputs: Inputs, rows: Ragged, arena: StateArena) -> None:
    fill(arena, rows)
    given = inputs.to(torch.float32)
    start = arena.as_dtype(torch.float32)
    exact = start.as_dtype(torch.float64)
    want = reference.kda(*given.to(torch.float64).all(), exact.state, arena.first_tile, rows)
    written = arena.written()
    outside = start.state.recurrent[~written]
    for target in TARGETS:
        for threads in (1, 3):
            fast = start.as_dtype(torch.float32)
            with using(target, threads):
                got = cpu.kda(*given.all(), fast.state, arena.first_tile, rows)
            assert_near(got, want, TOLERANCE)
            assert_near(fast.state.recurrent[written], exact.state.recurrent[written], TOLERANCE)
            # Bit for bit, NaN payloads included.
            assert torch.equal(fast.state.recurrent[~written].view(torch.uint8), outside.view(torch.uint8))


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("start", STARTS)
def test_one_row_of_any_length_from_any_start(length: int, start: int) -> None:
    check_against_reference(make_inputs(length, 3, 32), ragged([length], [start]), kda_arena(1, 3, 32, 16))


@pytest.mark.parametrize(
    ("heads", "dim", "tile_rows"),
    [(1, 32, 16), (3, 48, 16), (1, 128, 16), (2, 32, 32), (3, 32, 1), (1, 24, 8), (1, 16, 4)],
)
def test_mixed_rows_of_any_shape(heads: int, dim: int, tile_rows: int) -> None:
    lengths, starts = [1, 17, 70, 1, 2, 130, 1], [0, 63, 0, 64, 100, 1, 5]
    inputs = make_inputs(sum(lengths), heads, dim)
    check_against_reference(inputs, ragged(lengths, starts), kda_arena(len(lengths), heads, dim, tile_rows))


@pytest.mark.parametrize("gate", ["open", "shut", "unbounded", "sudden", "off"])
def test_extreme_gates(gate: str) -> None:
    lengths, starts = [1, 200, 64, 1], [7, 0, 100, 0]
    inputs = make_inputs(sum(lengths), 2, 32, gate)
    check_against_reference(inputs, ragged(lengths, starts), kda_arena(4, 2, 32, 16))


def test_all_rows_one_token() -> None:
    check_against_reference(make_inputs(5, 3, 32), ragged([1] * 5, [0, 9, 64, 0, 1]), kda_arena(5, 3, 32, 8))


def test_zero_vectors_do_not_divide_by_zero() -> None:
    inputs = make_inputs(70, 1, 32)
    inputs.q[5], inputs.k[5], inputs.v[6] = 0, 0, 0
    check_against_reference(inputs, ragged([70]), kda_arena(1, 1, 32, 16))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("length", [1, 100])
def test_a_row_is_the_same_alone_and_in_company(target: str, length: int) -> None:
    """Bit for bit, on any number of threads."""
    inputs = make_inputs(length, 2, 32).to(torch.float32)
    alone = kda_arena(1, 2, 32, 16).as_dtype(torch.float32)
    others = make_inputs(150, 2, 32).to(torch.float32)
    both = Inputs(*(torch.cat([b[:90], a, b[90:]]) for a, b in zip(inputs.all(), others.all(), strict=True)))
    crowd = kda_arena(3, 2, 32, 16).as_dtype(torch.float32)
    with using(target, 1):
        want = cpu.kda(*inputs.all(), alone.state, alone.first_tile, ragged([length]))
    with using(target, 3):
        got = cpu.kda(*both.all(), crowd.state, crowd.first_tile, ragged([90, length, 60]))
    assert torch.equal(got[90 : 90 + length], want)
    assert torch.equal(_matrices(crowd)[1], _matrices(alone)[0])


@pytest.mark.parametrize("target", TARGETS)
def test_a_prompt_split_on_the_grid_changes_no_bit(target: str) -> None:
    inputs = make_inputs(130, 2, 32).to(torch.float32)
    whole = kda_arena(1, 2, 32, 16).as_dtype(torch.float32)
    parts = kda_arena(1, 2, 32, 16).as_dtype(torch.float32)
    split = 3 * CHUNK
    first, rest = inputs.part(torch.arange(split)), inputs.part(torch.arange(split, 130))
    with using(target):
        want = cpu.kda(*inputs.all(), whole.state, whole.first_tile, ragged([130]))
        got = [
            cpu.kda(*first.all(), parts.state, parts.first_tile, ragged([split])),
            cpu.kda(*rest.all(), parts.state, parts.first_tile, ragged([130 - split], [split])),
        ]
    assert torch.equal(torch.cat(got), want)
    assert torch.equal(_matrices(parts), _matrices(whole))


def test_operands_may_be_views_into_a_wider_product() -> None:
    inputs = make_inputs(40, 2, 32).to(torch.float32)
    wide = torch.cat([x.flatten(1) for x in inputs.all()], dim=1)
    q, k, v, g, beta = torch.split(wide, [64, 64, 64, 64, 2], dim=1)
    q, k, v, g = (x.view(40, 2, 32) for x in (q, k, v, g))
    views = Inputs(q, k, v, g, beta)
    one, two = (kda_arena(2, 2, 32, 16).as_dtype(torch.float32) for _ in range(2))
    rows = ragged([39, 1])
    got = cpu.kda(*views.all(), one.state, one.first_tile, rows)
    assert torch.equal(got, cpu.kda(*inputs.all(), two.state, two.first_tile, rows))


@pytest.mark.parametrize("split", [1, 2, 36, 63, 64, 65, 127, 128, 129])
def test_one_shot_equals_split(split: int) -> None:
    """R37, R43: a prompt gives the same state however it is cut into steps."""
    inputs = make_inputs(130, 2, 32).to(torch.float32)
    whole = kda_arena(1, 2, 32, 16).as_dtype(torch.float32)
    want = cpu.kda(*inputs.all(), whole.state, whole.first_tile, ragged([130]))
    parts = kda_arena(1, 2, 32, 16).as_dtype(torch.float32)
    tokens = torch.arange(130)
    first = cpu.kda(*inputs.part(tokens[:split]).all(), parts.state, parts.first_tile, ragged([split]))
    rest = inputs.part(tokens[split:])
    second = cpu.kda(*rest.all(), parts.state, parts.first_tile, ragged([130 - split], [split]))
    assert_near(torch.cat([first, second]), want, 1e-5)
    assert_near(_matrices(parts), _matrices(whole), 1e-5)


def test_token_by_token_equals_one_shot() -> None:
    inputs = make_inputs(70, 2, 32).to(torch.float32)
    whole = kda_arena(1, 2, 32, 16).as_dtype(torch.float32)
    want = cpu.kda(*inputs.all(), whole.state, whole.first_tile, ragged([70]))
    steps = kda_arena(1, 2, 32, 16).as_dtype(torch.float32)
    got = [
        cpu.kda(*inputs.part(torch.tensor([t])).all(), steps.state, steps.first_tile, ragged([1], [t]))
        for t in range(70)
    ]
    assert_near(torch.cat(got), want, 1e-5)
    assert_near(_matrices(steps), _matrices(whole), 1e-5)


def test_another_rows_bad_numbers_stay_there() -> None:
    """A non-finite row must not leak into its neighbours of the same call."""
    inputs = make_inputs(101, 2, 32).to(torch.float32)
    inputs.v[40:60] = float("inf")
    inputs.q[40:60] = float("nan")
    arena = kda_arena(3, 2, 32, 16).as_dtype(torch.float32)
    got = cpu.kda(*inputs.all(), arena.state, arena.first_tile, ragged([40, 20, 41]))
    assert bool(torch.isfinite(got[:40]).all())
    assert bool(torch.isfinite(got[60:]).all())
    matrices = _matrices(arena)
    assert bool(torch.isfinite(matrices[[0, 2]]).all())
    assert not bool(torch.isfinite(matrices[1]).all()), "a bad state must stay visibly bad"


@settings(max_examples=25, deadline=None)
@given(
    rows=st.lists(
        st.tuples(st.integers(1, 140), st.sampled_from([0, 1, 50, 63, 64, 65, 127])), min_size=1, max_size=5
    ),
    heads=st.integers(1, 3),
    dim=st.sampled_from([8, 16, 32]),
    tile_rows=st.sampled_from([1, 2, 8]),
    gate=st.sampled_from(["bounded", "unbounded", "sudden"]),
)
def test_fuzz(rows: list[tuple[int, int]], heads: int, dim: int, tile_rows: int, gate: str) -> None:
    lengths, starts = [length for length, _ in rows], [start for _, start in rows]
    inputs = make_inputs(sum(lengths), heads, dim, gate)
    check_against_reference(inputs, ragged(lengths, starts), kda_arena(len(rows), heads, dim, tile_rows))


def test_wrong_shapes_are_named() -> None:
    inputs = make_inputs(4, 2, 32)
    arena = kda_arena(1, 2, 32, 16)
    with pytest.raises(InvariantError, match=r"kda: beta must have shape \[4, 2\]. Given: \[4, 3\]"):
        reference.kda(*inputs.all()[:4], torch.rand(4, 3), arena.state, arena.first_tile, ragged([4]))
    with pytest.raises(InvariantError, match=r"rows cover 5 tokens. Given: 4"):
        cpu.kda(*inputs.all(), arena.state, arena.first_tile, ragged([5]))
    with pytest.raises(InvariantError, match="needs tiles up to"):
        cpu.kda(*inputs.all(), arena.state, arena.first_tile + 10, ragged([4]))


def _matrices(arena: StateArena) -> Tensor:
    """The layer's tiles of each row, [rows, tiles, tile_rows, dim]."""
    return arena.state.recurrent[arena.state.tile_ids(arena.first_tile, arena.tiles)]
