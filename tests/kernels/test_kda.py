"""KDA: the chunked and stepped CPU form against the recurrence in float64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from milepost.errors import InvariantError
from milepost.kernels.kda import cpu, reference
from milepost.kernels.kda.cpu_plan import CHUNK, plan_rows
from milepost.kernels.paging import Ragged
from tests.kernels.arenas import LENGTHS, STARTS, StateArena, assert_near, kda_arena, ragged, ulps
from tests.kernels.kda_cases import Inputs, fill, make_inputs


def check_against_reference(
    inputs: Inputs, rows: Ragged, arena: StateArena, dtype: torch.dtype = torch.float32
) -> None:
    fill(arena, rows)
    state_dtype = torch.float64 if dtype == torch.float64 else torch.float32
    given, rounded = inputs.to(dtype), inputs.to(dtype).to(torch.float64)
    fast = arena.as_dtype(state_dtype)
    exact = fast.as_dtype(torch.float64)
    outside = fast.state.recurrent[~arena.written()].clone()
    got = cpu.kda(*given.all(), fast.state, arena.first_tile, rows)
    want = reference.kda(*rounded.all(), exact.state, arena.first_tile, rows)
    assert got.dtype == dtype
    assert_near(got, want, ulps(dtype))
    written = arena.written()
    assert_near(fast.state.recurrent[written], exact.state.recurrent[written], ulps(state_dtype))
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


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_dtypes(dtype: torch.dtype) -> None:
    lengths, starts = [1, 80, 1], [3, 60, 0]
    inputs = make_inputs(sum(lengths), 2, 32)
    check_against_reference(inputs, ragged(lengths, starts), kda_arena(3, 2, 32, 16), dtype)


def test_all_rows_one_token() -> None:
    check_against_reference(make_inputs(5, 3, 32), ragged([1] * 5, [0, 9, 64, 0, 1]), kda_arena(5, 3, 32, 8))


def test_zero_vectors_do_not_divide_by_zero() -> None:
    inputs = make_inputs(70, 1, 32)
    inputs.q[5], inputs.k[5], inputs.v[6] = 0, 0, 0
    check_against_reference(inputs, ragged([70]), kda_arena(1, 1, 32, 16))


def test_a_row_is_the_same_alone_and_in_company() -> None:
    inputs = make_inputs(100, 2, 32).to(torch.float32)
    alone = kda_arena(1, 2, 32, 16).as_dtype(torch.float32)
    want = cpu.kda(*inputs.all(), alone.state, alone.first_tile, ragged([100]))
    others = make_inputs(150, 2, 32).to(torch.float32)
    both = Inputs(*(torch.cat([b[:90], a, b[90:]]) for a, b in zip(inputs.all(), others.all(), strict=True)))
    crowd = kda_arena(3, 2, 32, 16).as_dtype(torch.float32)
    got = cpu.kda(*both.all(), crowd.state, crowd.first_tile, ragged([90, 100, 60]))
    assert_near(got[90:190], want, 1e-6)


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


@pytest.mark.parametrize("slab_tokens", [1, 100, 10_000])
def test_the_plan_covers_every_token_once_in_order(slab_tokens: int) -> None:
    lengths, starts = [1, 200, 5, 1, 64, 130], [0, 0, 62, 9, 64, 100]
    rows = ragged(lengths, starts)
    plan = plan_rows(rows, slab_tokens)
    seen: list[int] = plan.step_tokens.tolist()
    upto: dict[int, int] = {}
    for slab in plan.slabs:
        for scan in slab.scans:
            bucket = slab.buckets[scan.bucket]
            of_rows = range(len(lengths)) if scan.rows is None else scan.rows.tolist()
            for (begin, length), row in zip(bucket.spans[scan.begin : scan.end], of_rows, strict=True):
                tokens = list(range(begin, begin + length))
                assert length <= bucket.size
                assert begin > upto.get(row, -1)
                assert all(rows.row_ids()[tokens] == plan.chunk_rows[row])
                chunks = {position // CHUNK for position in rows.positions()[tokens].tolist()}
                assert len(chunks) == 1, "a piece crosses the chunk grid"
                upto[row] = tokens[-1]
                seen.extend(tokens)
    assert sorted(seen) == list(range(rows.num_tokens))


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
