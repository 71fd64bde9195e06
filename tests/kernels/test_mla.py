"""MLA: paged writes, and attention in both forms against the unabsorbed token loop in float64."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from milepost.errors import InvariantError
from milepost.kernels.mla_attention import MlaDims, cpu, reference
from milepost.kernels.mla_write import cpu as write_cpu
from milepost.kernels.mla_write import reference as write_reference
from milepost.kernels.paging import PagedKv, Ragged
from tests.kernels.arenas import LENGTHS, STARTS, assert_near, kv_arena, ragged, ulps

LAYERS, LAYER = 3, 1
SMALL = MlaDims(heads=3, lora=20, rope=6, nope=10, v=14)
# The absorbed form pays up to lora * (nope + v) / (2 lora + rope - nope - rope - v) tokens: 10 here.
EXPANDS_SOON = MlaDims(heads=2, lora=32, rope=4, nope=8, v=8)


@dataclass(frozen=True)
class Case:
    q: Tensor
    kv_b: Tensor
    kv: PagedKv
    rows: Ragged

    @classmethod
    def random(cls, lengths: list[int], starts: list[int], dims: MlaDims, block_size: int) -> Case:
        """Rows whose written tokens are filled and whose other places are NaN."""
        rows = ragged(lengths, starts)
        contexts = [start + length for start, length in zip(starts, lengths, strict=True)]
        row_dim = dims.lora + dims.rope
        kv = kv_arena(contexts, layers=LAYERS, block_size=block_size, row_dim=row_dim, dtype=torch.float64)
        for row, context in enumerate(contexts):
            positions = torch.arange(context)
            pages = kv.block_table[row, positions // block_size]
            kv.cache[pages, LAYER, positions % block_size] = torch.randn(
                context, row_dim, dtype=torch.float64
            )
        return cls(
            q=torch.randn(sum(lengths), dims.heads, dims.nope + dims.rope, dtype=torch.float64) * 3,
            kv_b=torch.randn(dims.heads, dims.nope + dims.v, dims.lora, dtype=torch.float64)
            * dims.lora**-0.5,
            kv=kv,
            rows=rows,
        )

    def to(self, dtype: torch.dtype, cache: torch.dtype | None = None) -> Case:
        kv = replace(self.kv, cache=self.kv.cache.to(cache or dtype))
        return replace(self, q=self.q.to(dtype), kv_b=self.kv_b.to(dtype), kv=kv)


def check_against_reference(
    case: Case, dtype: torch.dtype = torch.float32, cache: torch.dtype | None = None
) -> None:
    fast = case.to(dtype, cache)
    exact = fast.to(torch.float64)
    before = fast.kv.cache.clone()
    got = cpu.mla_attention(fast.q, fast.kv_b, fast.kv, LAYER, fast.rows)
    want = reference.mla_attention(exact.q, exact.kv_b, exact.kv, LAYER, exact.rows)
    assert got.dtype == dtype
    assert_near(got, want, ulps(dtype))
    assert torch.equal(fast.kv.cache.view(torch.uint8), before.view(torch.uint8)), "attention wrote the cache"


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("start", STARTS)
def test_one_row_of_any_length_from_any_start(length: int, start: int) -> None:
    check_against_reference(Case.random([length], [start], EXPANDS_SOON, 16))


@pytest.mark.parametrize("dims", [SMALL, EXPANDS_SOON, MlaDims(heads=1, lora=16, rope=8, nope=8, v=24)])
@pytest.mark.parametrize("block_size", [1, 7, 64])
def test_mixed_rows(dims: MlaDims, block_size: int) -> None:
    lengths, starts = [1, 30, 1, 2, 90, 1, 1], [0, 5, 200, 63, 0, 64, 127]
    check_against_reference(Case.random(lengths, starts, dims, block_size))


@pytest.mark.parametrize("lengths", [[1, 1, 1], [40, 25]], ids=["decodes", "prefills"])
def test_rows_of_one_form_only(lengths: list[int]) -> None:
    check_against_reference(Case.random(lengths, [130, 0, 16][: len(lengths)], EXPANDS_SOON, 16))


@pytest.mark.parametrize("length", [1, 60])
def test_many_segments(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The online softmax over several segments and query tiles, borders inside a block included."""
    monkeypatch.setattr(cpu, "_MAX_SEGMENT", 20)
    monkeypatch.setattr(cpu, "_QUERY_TILE", 13)
    check_against_reference(Case.random([length, 3], [77, 50], EXPANDS_SOON, 8))


@pytest.mark.parametrize("length", [1, 60])
def test_blocks_longer_than_a_segment(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scratch memory grows with neither the context nor the block, and a block's rest is never touched."""
    taken: list[int] = []
    cached_rows = cpu._cached_rows

    def spy(kv: PagedKv, layer: int, row: int, begin: int, end: int) -> Tensor:
        rows = cached_rows(kv, layer, row, begin, end)
        storage = rows.untyped_storage()
        is_view = storage.data_ptr() == kv.cache.untyped_storage().data_ptr()
        taken.append(len(rows) if is_view else storage.nbytes() // (rows.element_size() * kv.row_dim))
        return rows

    monkeypatch.setattr(cpu, "_MAX_SEGMENT", 20)
    monkeypatch.setattr(cpu, "_cached_rows", spy)
    check_against_reference(Case.random([length, 3], [77, 50], EXPANDS_SOON, 64))
    assert 0 < max(taken) <= 20


def test_scores_too_large_for_exp() -> None:
    case = Case.random([1, 40], [300, 3], EXPANDS_SOON, 16)
    check_against_reference(replace(case, q=case.q * 1e3))


def test_no_rope_part() -> None:
    check_against_reference(Case.random([1, 20], [9, 0], MlaDims(heads=2, lora=16, rope=0, nope=8, v=8), 16))


def test_other_dtypes() -> None:
    case = Case.random([1, 30, 2], [40, 0, 63], EXPANDS_SOON, 16)
    check_against_reference(case, torch.bfloat16)
    check_against_reference(case, torch.float64)
    check_against_reference(case, torch.float32, cache=torch.bfloat16)


def test_one_shot_equals_split() -> None:
    case = Case.random([100], [0], EXPANDS_SOON, 16).to(torch.float32)
    want = cpu.mla_attention(case.q, case.kv_b, case.kv, LAYER, case.rows)
    for split in (1, 15, 16, 64, 99):
        parts = [
            cpu.mla_attention(case.q[begin:end], case.kv_b, case.kv, LAYER, ragged([end - begin], [begin]))
            for begin, end in ((0, split), (split, 100))
        ]
        assert_near(torch.cat(parts), want, 1e-5)


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


@pytest.mark.parametrize("write", [write_cpu.mla_write, write_reference.mla_write], ids=["cpu", "reference"])
def test_write_fills_its_places_and_no_others(write: object) -> None:
    lengths, starts = [1, 20, 3], [8, 5, 0]
    contexts = [start + length for start, length in zip(starts, lengths, strict=True)]
    kv = kv_arena(contexts, layers=LAYERS, block_size=8, row_dim=5, dtype=torch.float32)
    rows = torch.randn(24, 5)
    write(rows, kv, LAYER, ragged(lengths, starts))  # type: ignore[operator]
    token = 0
    for row, (start, length) in enumerate(zip(starts, lengths, strict=True)):
        for position in range(start, start + length):
            place = kv.cache[kv.block_table[row, position // 8], LAYER, position % 8]
            assert torch.equal(place, rows[token])
            token += 1
    assert int(torch.isfinite(kv.cache).sum()) == rows.numel(), "something else was written"


def test_write_casts_to_the_cache() -> None:
    kv = kv_arena([2], layers=1, block_size=4, row_dim=3, dtype=torch.bfloat16)
    rows = torch.randn(2, 3)
    write_cpu.mla_write(rows, kv, 0, ragged([2]))
    assert torch.equal(kv.cache[kv.block_table[0, 0], 0, :2], rows.bfloat16())


def test_wrong_shapes_are_named() -> None:
    case = Case.random([3], [0], SMALL, 8)
    with pytest.raises(InvariantError, match=r"q must have shape \[\*, 3, \*\]"):
        reference.mla_attention(case.q[:, :2], case.kv_b, case.kv, LAYER, case.rows)
    with pytest.raises(InvariantError, match=r"layer must be below 3 MLA layers\. Given: 3"):
        cpu.mla_attention(case.q, case.kv_b, case.kv, 3, case.rows)
    with pytest.raises(InvariantError, match="don't fit"):
        cpu.mla_attention(case.q[..., :4], case.kv_b, case.kv, LAYER, case.rows)
    with pytest.raises(InvariantError, match=r"rows must have shape \[\*, 26\]"):
        write_cpu.mla_write(torch.zeros(3, 5), case.kv, LAYER, case.rows)
