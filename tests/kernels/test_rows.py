"""Embedding, gathering, adding and the finite check: every target and thread count."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import pytest
import torch

from milepost.errors import InvariantError
from milepost.kernels.add import cpu as add_cpu
from milepost.kernels.embedding import cpu as embedding_cpu
from milepost.kernels.embedding import reference as embedding_reference
from milepost.kernels.finite_rows import cpu as finite_cpu
from milepost.kernels.finite_rows import reference as finite_reference
from milepost.kernels.take_rows import cpu as take_cpu
from milepost.kernels.take_rows import reference as take_reference
from tests.kernels.arenas import ragged
from tests.kernels.targets import TARGETS, using

SIZES = [(1, 1), (3, 31), (5, 64), (2, 257), (700, 96)]
FLOATS = [torch.float32, torch.bfloat16]
BAD = (math.nan, math.inf, -math.inf)


@pytest.fixture(autouse=True, params=[(target, threads) for target in TARGETS for threads in (1, 3)], ids=str)
def _setting(request: pytest.FixtureRequest) -> Iterator[None]:
    with using(*request.param):
        yield


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("tokens", "dim"), SIZES)
def test_embedding(dtype: torch.dtype, tokens: int, dim: int) -> None:
    table = torch.randn(50, dim).to(dtype)
    ids = torch.randint(50, (tokens,))
    got = embedding_cpu.embedding(ids, table)
    assert got.dtype == torch.float32
    assert torch.equal(got, embedding_reference.embedding(ids, table).float())


def test_a_token_that_the_table_lacks_is_nan() -> None:
    for embedding in (embedding_cpu.embedding, embedding_reference.embedding):
        got = embedding(torch.tensor([3, -1, 0, 4, 2**62, 1]), torch.ones(4, 40))
        assert got.isnan().all(dim=1).tolist() == [False, True, False, True, True, False]


@pytest.mark.parametrize(("rows", "dim"), SIZES)
def test_take_rows(rows: int, dim: int) -> None:
    x = torch.randn(90, dim + 3)[:, :dim]
    index = torch.randint(90, (rows,))
    assert torch.equal(take_cpu.take_rows(x, index), take_reference.take_rows(x, index))
    assert take_cpu.take_rows(x, index[:0]).shape == (0, dim)


@pytest.mark.parametrize(("tokens", "dim"), SIZES)
def test_add(tokens: int, dim: int) -> None:
    whole, delta = torch.randn(tokens, dim + 2), torch.randn(tokens, dim + 5)[:, :dim]
    x, want, beside = whole[:, :dim], whole[:, :dim] + delta, whole[:, dim:].clone()
    add_cpu.add(x, delta)
    assert torch.equal(x, want)
    assert torch.equal(whole[:, dim:], beside)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("tokens", "dim"), SIZES)
def test_one_bad_number_is_found_anywhere(dtype: torch.dtype, tokens: int, dim: int) -> None:
    x = torch.full((tokens, dim + 1), math.nan).to(dtype)[:, :dim]  # what lies between rows is not looked at
    x[:] = torch.randn(tokens, dim).to(dtype)
    x[0] = torch.finfo(dtype).max
    assert finite_cpu.finite_rows(x).all()
    for bad, column in itertools.product(BAD, {0, dim // 2, dim - 1}):
        spoilt = x.clone()
        spoilt[tokens // 2, column] = bad
        assert torch.equal(finite_cpu.finite_rows(spoilt), torch.arange(tokens) != tokens // 2)
        assert torch.equal(finite_reference.finite_rows(spoilt), torch.arange(tokens) != tokens // 2)


def test_a_row_is_as_finite_as_its_tokens() -> None:
    rows = ragged([1, 3, 1, 400, 2])
    for bad in ([], [0], [3], [4], [5], [404], [406], [1, 2, 200, 300], list(range(407))):
        x = torch.zeros(407, 70)
        x[bad, 5] = float("nan")
        got, want = finite_cpu.finite_rows(x, rows), finite_reference.finite_rows(x, rows)
        assert torch.equal(got, want)
    assert not got.any()


def test_what_does_not_fit_is_refused() -> None:
    ids, x = torch.zeros(2, dtype=torch.int64), torch.zeros(2, 4)
    with pytest.raises(InvariantError, match="token_ids must be int64"):
        embedding_cpu.embedding(ids.int(), x)
    with pytest.raises(InvariantError, match="table must be float32 or bfloat16"):
        embedding_cpu.embedding(ids, x.double())
    with pytest.raises(InvariantError, match="index must be int64"):
        take_cpu.take_rows(x, ids.int())
    with pytest.raises(InvariantError, match="index must be contiguous"):
        take_cpu.take_rows(x, torch.zeros(4, dtype=torch.int64)[::2])
    with pytest.raises(InvariantError, match=r"delta must have shape \[2, 4\]"):
        add_cpu.add(x, torch.zeros(2, 3))
    with pytest.raises(InvariantError, match="rows cover 3 tokens"):
        finite_cpu.finite_rows(x, ragged([1, 2]))
    with pytest.raises(InvariantError, match="contiguous last dimension"):
        finite_cpu.finite_rows(x.T)
