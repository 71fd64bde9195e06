"""Products with packed matrices: every format, target and thread count against the formula in float64."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from milepost.errors import InvariantError
from milepost.kernels.linear import cpu, reference
from milepost.kernels.matrix import DenseMatrix, Int8Matrix, Matrix, Mxfp4Matrix
from milepost.kernels.native.packed import pack
from milepost.models.mxfp4 import quantize_mxfp4
from tests.kernels.arenas import assert_near
from tests.kernels.targets import TARGETS, using


def dense(*shape: int) -> Matrix:
    return DenseMatrix(torch.randn(*shape))


def bf16(*shape: int) -> Matrix:
    return DenseMatrix(torch.randn(*shape).bfloat16())


def int8(*shape: int) -> Matrix:
    return Int8Matrix(torch.randint(-127, 128, shape, dtype=torch.int8), torch.rand(shape[:-1]))


def mxfp4(*shape: int) -> Matrix:
    return Mxfp4Matrix(*quantize_mxfp4(torch.randn(*shape)))


FORMATS = [dense, bf16, int8, mxfp4]
SHAPES = [
    # tokens, batch (0: none), out, in
    (1, 0, 1, 32),
    (1, 0, 257, 64),
    (2, 0, 31, 96),
    (7, 0, 96, 64),
    (13, 3, 100, 96),
    (33, 0, 33, 160),
    (130, 2, 64, 32),
]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("make", FORMATS)
@pytest.mark.parametrize(("tokens", "batch", "out", "inputs"), SHAPES)
def test_products(
    target: str, threads: int, make: Callable[..., Matrix], tokens: int, batch: int, out: int, inputs: int
) -> None:
    items = (batch,) if batch else ()
    matrix = make(*items, out, inputs)
    # A view into something wider: rows that don't follow one another.
    x = torch.randn(tokens, *items, inputs + 5)[..., :inputs]
    with using(target, threads):
        got = cpu.linear(x, pack(matrix))
    assert_near(got, reference.linear(x.double(), matrix), 3e-6)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("make", FORMATS)
@pytest.mark.parametrize(("tokens", "batch", "out", "inputs"), SHAPES[2:5])
def test_products_added_to_something(
    target: str, make: Callable[..., Matrix], tokens: int, batch: int, out: int, inputs: int
) -> None:
    items = (batch,) if batch else ()
    matrix, x = make(*items, out, inputs), torch.randn(tokens, *items, inputs)
    whole = torch.randn(tokens, *items, out + 3)
    onto = whole[..., 1 : out + 1]  # a view into something wider, which must not change around it
    before = whole.double()
    want = before.clone()
    reference.linear(x.double(), matrix, want[..., 1 : out + 1])
    with using(target, 2):
        assert cpu.linear(x, pack(matrix), onto) is onto
    assert_near(whole, want, 3e-6)
    assert torch.equal(whole[..., 0].double(), before[..., 0])
    assert torch.equal(whole[..., out + 1 :].double(), before[..., out + 1 :])


@pytest.mark.parametrize("make", FORMATS)
def test_packing_loses_nothing(make: Callable[..., Matrix]) -> None:
    matrix = make(3, 70, 64)
    packed = pack(matrix)
    assert packed.shape == matrix.shape == (3, 70, 64)
    for item in range(3):
        assert torch.equal(packed.dense(torch.float64, item), matrix.dense(torch.float64, item))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("make", FORMATS)
@pytest.mark.parametrize(("rows", "out", "inputs"), [(29, 50, 96), (300, 70, 544), (130, 33, 1120)])
def test_a_token_is_the_same_in_any_company(
    target: str, make: Callable[..., Matrix], rows: int, out: int, inputs: int
) -> None:
    """Bit for bit: what batched and lone requests compute must not differ, nor what other threads compute."""
    matrix, x = pack(make(out, inputs)), torch.randn(rows, inputs)
    with using(target, 1):
        alone = torch.cat([cpu.linear(x[token : token + 1], matrix) for token in range(rows)])
    with using(target, 3):
        for company in [*range(2, 15), 23, 61, 121, rows]:
            assert torch.equal(cpu.linear(x[:company], matrix), alone[:company]), company


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("make", FORMATS)
@pytest.mark.parametrize("rows", [3, 40])
def test_what_is_not_finite_stays_in_its_row(target: str, make: Callable[..., Matrix], rows: int) -> None:
    matrix, x = pack(make(37, 288)), torch.randn(rows, 288)
    with using(target, 2):
        clean = cpu.linear(x, matrix)
        x[1, 7], x[1, 280] = float("inf"), float("nan")
        got = cpu.linear(x, matrix)
    others = [row for row in range(rows) if row != 1]
    assert torch.equal(got[others], clean[others])
    assert got[1].isnan().all()


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("rows", [1, 30])
def test_every_scale_of_mxfp4(target: str, rows: int) -> None:
    """All bytes, the smallest (a subnormal multiplier) and the one that is NaN included."""
    scales = torch.arange(256, dtype=torch.uint8).view(256, 1)
    matrix = Mxfp4Matrix(torch.randint(0, 256, (256, 16), dtype=torch.uint8), scales)
    x = torch.zeros(rows, 32)
    x[:, 5] = 1.0  # one product a sum: exact
    with using(target):
        got = cpu.linear(x, pack(matrix))
    expected = matrix.dense(torch.float64)[:255, 5].float()
    assert torch.equal(got[:, :255], expected.expand(rows, 255))
    assert got[:, 255].isnan().all()


@pytest.mark.parametrize("make", FORMATS)
def test_no_tokens(make: Callable[..., Matrix]) -> None:
    assert cpu.linear(torch.zeros(0, 32), pack(make(40, 32))).shape == (0, 40)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(InvariantError, match=r"x must be \[tokens, 32\]"):
        cpu.linear(torch.zeros(2, 31), dense(4, 32))
    with pytest.raises(InvariantError, match=r"onto must have shape \[2, 4\]. Given: \[2, 5\]"):
        cpu.linear(torch.zeros(2, 32), dense(4, 32), torch.zeros(2, 5))
    with pytest.raises(InvariantError, match="must be float32"):
        cpu.linear(torch.zeros(2, 32, dtype=torch.bfloat16), dense(4, 32))
