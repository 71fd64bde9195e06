"""MLA attention in both forms against the unabsorbed token loop in float64, on every target."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from milepost.errors import InvariantError
from milepost.kernels.matrix import Int8Matrix
from milepost.kernels.mla_attention import MlaDims, cpu, reference
from milepost.kernels.native import empty, native, use_workspace
from milepost.kernels.native.packed import pack
from tests.kernels.arenas import LENGTHS, STARTS, assert_near, ragged
from tests.kernels.mla_cases import LAYER, LAYERS, Case
from tests.kernels.targets import TARGETS, using

SMALL = MlaDims(heads=3, lora=20, rope=6, nope=10, v=14)
# The absorbed form pays up to lora * (nope + v) / (2 lora + rope - nope - rope - v) tokens: 10 here.
EXPANDS_SOON = MlaDims(heads=2, lora=32, rope=4, nope=8, v=8)
MANY_HEADS = MlaDims(heads=37, lora=48, rope=16, nope=33, v=40)
# Rows of whole vectors, which are read where they lie, and heads that fill blocks of queries, or not.
WHOLE = [
    MlaDims(heads=heads, lora=32 * width, rope=16, nope=24, v=20)
    for heads, width in ((1, 1), (4, 2), (5, 3), (8, 6), (11, 2), (16, 5), (21, 4), (32, 7))
]


@pytest.fixture(autouse=True)
def _poison(monkeypatch: pytest.MonkeyPatch) -> None:
    def poisoned(*shape: int) -> Tensor:
        return empty(*shape).fill_(float("nan"))

    monkeypatch.setattr(cpu, "empty", poisoned)


def check_against_reference(case: Case, threads: int = 2) -> None:
    want = case.exact()
    before = case.kv.cache.clone()
    for target in TARGETS:
        with using(target, threads):
            assert_near(case.attend(), want, 1e-5)
    assert torch.equal(case.kv.cache.view(torch.uint8), before.view(torch.uint8)), "attention wrote the cache"


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("start", STARTS)
def test_one_row_of_any_length_from_any_start(length: int, start: int) -> None:
    check_against_reference(Case.random([length], [start], EXPANDS_SOON, 16))


@pytest.mark.parametrize("dims", [SMALL, MANY_HEADS, MlaDims(heads=1, lora=16, rope=8, nope=8, v=24)])
@pytest.mark.parametrize("block_size", [1, 7, 64])
@pytest.mark.parametrize("cache", [torch.float32, torch.bfloat16], ids=str)
def test_mixed_rows(dims: MlaDims, block_size: int, cache: torch.dtype) -> None:
    lengths, starts = [1, 30, 1, 2, 90, 1, 1], [0, 5, 200, 63, 0, 64, 127]
    check_against_reference(Case.random(lengths, starts, dims, block_size, cache=cache))


@pytest.mark.parametrize("dims", WHOLE, ids=lambda dims: f"{dims.heads}x{dims.lora}")
@pytest.mark.parametrize("cache", [torch.float32, torch.bfloat16], ids=str)
def test_rows_of_whole_vectors(dims: MlaDims, cache: torch.dtype) -> None:
    """Tiles of keys that are full, cut and of one key; blocks that are not full; rows of few tokens."""
    lengths, starts = [1, 2, 1, 3, 1, 1], [300, 127, 0, 30, 31, 64]
    check_against_reference(Case.random(lengths, starts, dims, 16, cache=cache))


@pytest.mark.parametrize("lengths", [[1, 1, 1], [40, 25]], ids=["decodes", "prefills"])
@pytest.mark.parametrize("threads", [1, 3])
def test_rows_of_one_form_only(lengths: list[int], threads: int) -> None:
    case = Case.random(lengths, [130, 0, 16][: len(lengths)], EXPANDS_SOON, 16)
    check_against_reference(case, threads)
    check_against_reference(replace(case, gate=None), threads)


@pytest.mark.parametrize("weights", [torch.float32, torch.bfloat16], ids=str)
def test_contexts_of_many_parts(weights: torch.dtype) -> None:
    """Parts of a context that are full, cut, empty, and unseen by the first of a row's tokens."""
    lengths, starts = [1, 1, 1, 9, 1], [3000, 4095, 128, 1020, 127]
    check_against_reference(Case.random(lengths, starts, EXPANDS_SOON, 16, weights=weights), threads=3)


@pytest.mark.parametrize("weights", [torch.float32, torch.bfloat16], ids=str)
def test_a_long_row_in_the_middle_of_a_long_context(weights: torch.dtype) -> None:
    check_against_reference(Case.random([70, 300], [1100, 0], SMALL, 32, weights=weights))


def test_scores_too_large_for_exp() -> None:
    case = Case.random([1, 40], [300, 3], EXPANDS_SOON, 16)
    check_against_reference(replace(case, q=case.q * 1e3))


def test_no_rope_part() -> None:
    check_against_reference(Case.random([1, 20], [9, 0], MlaDims(heads=2, lora=16, rope=0, nope=8, v=8), 16))


@settings(max_examples=25, deadline=None)
@given(
    rows=st.lists(st.tuples(st.integers(1, 40), st.integers(0, 60)), min_size=1, max_size=5),
    dims=st.builds(
        MlaDims,
        heads=st.integers(1, 3),
        lora=st.integers(1, 24),
        rope=st.integers(0, 5),
        nope=st.integers(1, 9),
        v=st.integers(1, 9),
    ),
    block_size=st.integers(1, 20),
)
def test_fuzz(rows: list[tuple[int, int]], dims: MlaDims, block_size: int) -> None:
    lengths, starts = [length for length, _ in rows], [start for _, start in rows]
    check_against_reference(Case.random(lengths, starts, dims, block_size))


def test_one_shot_equals_split() -> None:
    case = Case.random([100], [0], EXPANDS_SOON, 16)
    want = case.attend()
    for split in (1, 15, 16, 64, 99):
        halves = [
            replace(case, q=case.q[begin:end], gate=case.gate[begin:end], rows=ragged([end - begin], [begin]))
            for begin, end in ((0, split), (split, 100))
            if case.gate is not None
        ]
        assert_near(torch.cat([half.attend() for half in halves]), want, 1e-5)


@pytest.mark.parametrize("dims", [SMALL, *WHOLE[1:6]], ids=lambda dims: f"{dims.heads}x{dims.lora}")
@pytest.mark.parametrize("cache", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("target", TARGETS)
def test_a_token_is_the_same_in_any_company(
    target: str, cache: torch.dtype, dims: MlaDims, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit for bit: alone, in a batch, on more threads, and however much is taken at a time."""
    long = 1100 if dims is SMALL else 90
    case = Case.random([1, 7, 60, 1, long, 3, 1], [900, 300, 40, 0, 70, 130, 64], dims, 16, cache=cache)
    with using(target, 1):
        want = case.attend()
        alone = [case.part(row).attend() for row in range(case.rows.num_rows)]
    assert torch.equal(torch.cat(alone), want)
    monkeypatch.setattr(cpu, "_PASS", 8)
    monkeypatch.setattr(cpu, "_MAX_PARTS", native.MOST_PARTS)
    for threads in (1, 2, 5):
        with using(target, threads):
            assert torch.equal(case.attend(), want)


def test_a_played_tape_reads_what_the_next_step_put_there() -> None:
    case = Case.random([1, 1, 1], [199, 63, 250], SMALL, 16)
    case = replace(case, k_b=pack(case.k_b), v_b=pack(case.v_b))  # a tape's weights must stay
    case.rows.starts.copy_(torch.tensor([3, 40, 60]))
    workspace, tape = native.Workspace(), native.Tape()
    with using(TARGETS[0], 2), use_workspace(workspace):
        tape.start()
        out = case.attend()
        tape.stop()
        assert_near(out, replace(case, rows=ragged([1, 1, 1], [3, 40, 60])).exact(), 1e-5)
        case.rows.starts.copy_(torch.tensor([199, 63, 250]))
        case.q.copy_(torch.randn(case.q.shape))
        tape.play()
    assert_near(out, replace(case, rows=ragged([1, 1, 1], [199, 63, 250])).exact(), 1e-5)


@pytest.mark.parametrize("length", [1, 3, 40])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("target", TARGETS)
def test_what_is_not_finite_in_the_cache_shows(length: int, bad: float, target: str) -> None:
    case = Case.random([length, 2], [150, 9], EXPANDS_SOON, 16)
    case.kv.cache[case.kv.block_table[0, 7], LAYER, 5, 3] = bad
    with using(target):
        got = case.attend()
        assert not bool(torch.isfinite(got[:length]).all(1).any())
        assert bool(torch.isfinite(got[length:]).all())
        # Nothing of it is left behind in the threads' memory.
        assert bool(torch.isfinite(Case.random([length], [9], EXPANDS_SOON, 16).attend()).all())


def test_wrong_operands_are_named() -> None:
    case = Case.random([3], [0], SMALL, 8)
    with pytest.raises(InvariantError, match=r"q must have shape \[\*, 3, 16\]"):
        replace(case, q=case.q[:, :2]).attend()
    with pytest.raises(InvariantError, match=rf"layer must be below {LAYERS} MLA layers\. Given: 3"):
        cpu.mla_attention(case.q, case.k_b, case.v_b, None, case.kv, 3, case.rows)
    with pytest.raises(InvariantError, match="don't fit"):
        reference.mla_attention(case.q, case.v_b, case.k_b, None, case.kv, LAYER, case.rows)
    with pytest.raises(InvariantError, match=r"gate must have shape \[3, 42\]"):
        replace(case, gate=torch.zeros(3, 41)).attend()
    with pytest.raises(InvariantError, match="heads must be contiguous"):
        replace(case, q=torch.zeros(3, 3, 20)[..., :16]).attend()
    int8 = Int8Matrix(torch.zeros(3, 20, 10, dtype=torch.int8), torch.zeros(3, 20))
    with pytest.raises(InvariantError, match=r"must be f32 or bf16\. Given: int8"):
        cpu.mla_attention(case.q, int8, case.v_b, None, case.kv, LAYER, case.rows)
