"""Grouped experts: every format, target and thread count against the formula in float64."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from milepost.errors import InvariantError
from milepost.kernels.grouped_experts import cpu, reference
from milepost.kernels.matrix import DenseMatrix, Int8Matrix, Matrix, Mxfp4Matrix
from milepost.kernels.native import native, use_workspace
from milepost.kernels.native.packed import pack
from milepost.kernels.route.cpu import route
from milepost.models.mxfp4 import quantize_mxfp4
from tests.kernels.arenas import assert_near
from tests.kernels.poison import poisoned
from tests.kernels.targets import TARGETS, using

pytestmark = pytest.mark.usefixtures("any_seed")

Experts = tuple[Matrix, Matrix, Matrix]  # w1, w3, w2


def dense(*shape: int) -> Matrix:
    return DenseMatrix(torch.randn(*shape) * shape[-1] ** -0.5)


def bf16(*shape: int) -> Matrix:
    return DenseMatrix((torch.randn(*shape) * shape[-1] ** -0.5).bfloat16())


def int8(*shape: int) -> Matrix:
    return Int8Matrix(torch.randint(-127, 128, shape, dtype=torch.int8), torch.rand(shape[:-1]) * 0.01)


def mxfp4(*shape: int) -> Matrix:
    return Mxfp4Matrix(*quantize_mxfp4(torch.randn(*shape) * shape[-1] ** -0.5))


FORMATS = [dense, bf16, int8, mxfp4]


def experts_of(make: Callable[..., Matrix], count: int, intermediate: int, width: int) -> Experts:
    return (
        make(count, intermediate, width),
        make(count, intermediate, width),
        make(count, width, intermediate),
    )


def choices(tokens: int, experts: int, top_k: int) -> Tensor:
    return torch.stack([torch.randperm(experts)[:top_k] for _ in range(tokens)]).view(tokens, top_k)


def check_experts(x: Tensor, ids: Tensor, experts: Experts, name: str = "situ") -> None:
    weights = torch.rand(ids.shape)
    w1, w3, w2 = (pack(matrix) for matrix in experts)
    got = cpu.grouped_experts(x, ids, weights, w1, w3, w2, name, 4.0, 25.0)
    want = reference.grouped_experts(x.double(), ids, weights.double(), *experts, name, 4.0, 25.0)
    assert_near(got, want, 1e-5)


@pytest.fixture
def _poisoned_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "empty", poisoned)


@pytest.mark.usefixtures("_poisoned_memory")
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("make", FORMATS)
@pytest.mark.parametrize(
    ("tokens", "experts", "top_k", "intermediate", "width"),
    [(1, 6, 3, 64, 32), (2, 5, 5, 96, 64), (33, 7, 2, 32, 96), (1, 64, 16, 32, 64)],
)
def test_formats(
    target: str,
    threads: int,
    make: Callable[..., Matrix],
    tokens: int,
    experts: int,
    top_k: int,
    intermediate: int,
    width: int,
) -> None:
    with using(target, threads):
        x = torch.randn(tokens, width + 7)[:, :width]  # rows of something wider
        check_experts(x, choices(tokens, experts, top_k), experts_of(make, experts, intermediate, width))


@pytest.mark.usefixtures("_poisoned_memory")
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", ["silu", "situ"])
@pytest.mark.parametrize(("intermediate", "width"), [(1, 1), (20, 12), (33, 31), (70, 100)])
def test_odd_widths(target: str, name: str, intermediate: int, width: int) -> None:
    with using(target, 2):
        check_experts(
            torch.randn(9, width), choices(9, 4, 2), experts_of(dense, 4, intermediate, width), name
        )


@pytest.mark.usefixtures("_poisoned_memory")
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("tokens", [119, 120, 121, 300])
def test_many_tokens(threads: int, tokens: int) -> None:
    """More than one product takes at once, and enough that outputs are split by tokens."""
    with using(TARGETS[0], threads):
        check_experts(torch.randn(tokens, 40), choices(tokens, 3, 2), experts_of(dense, 3, 24, 40))


@pytest.mark.usefixtures("_poisoned_memory")
@pytest.mark.parametrize("expert", [0, 2, 4])
def test_all_tokens_to_one_expert(expert: int) -> None:
    """Those of no token are never read."""
    experts = experts_of(dense, 5, 24, 16)
    others = [other for other in range(5) if other != expert]
    for matrix in experts:
        assert isinstance(matrix, DenseMatrix)
        matrix.weight[others] = float("nan")
    for tokens in (1, 150):
        check_experts(torch.randn(tokens, 16), torch.full((tokens, 1), expert), experts)


def test_packed_and_dense_matrices_together() -> None:
    experts = mxfp4(6, 64, 32), bf16(6, 64, 32), int8(6, 32, 64)
    check_experts(torch.randn(33, 32), choices(33, 6, 3), experts)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("make", FORMATS)
def test_a_token_is_the_same_in_any_company(target: str, make: Callable[..., Matrix]) -> None:
    """Bit for bit, whichever experts the others chose, and on any number of threads."""
    w1, w3, w2 = (pack(matrix) for matrix in experts_of(make, 5, 96, 64))
    x, ids, weights = torch.randn(200, 64), choices(200, 5, 3), torch.rand(200, 3)
    with using(target, 3):
        together = cpu.grouped_experts(x, ids, weights, w1, w3, w2, "situ", 4.0, 25.0)
    with using(target, 1):
        for token in (0, 1, 67, 199):
            part = slice(token, token + 1)
            alone = cpu.grouped_experts(x[part], ids[part], weights[part], w1, w3, w2, "situ", 4.0, 25.0)
            assert torch.equal(alone[0], together[token])


@pytest.mark.parametrize("make", FORMATS)
def test_a_token_of_no_numbers_fails_alone(make: Callable[..., Matrix]) -> None:
    w1, w3, w2 = (pack(matrix) for matrix in experts_of(make, 4, 64, 32))
    x, ids, weights = torch.randn(30, 32), choices(30, 4, 2), torch.rand(30, 2)
    want = cpu.grouped_experts(x, ids, weights, w1, w3, w2, "silu", 0.0, 0.0)
    x[3, 1], weights[20, 0] = float("nan"), float("inf")
    got = cpu.grouped_experts(x, ids, weights, w1, w3, w2, "silu", 0.0, 0.0)
    good = [token for token in range(30) if token not in {3, 20}]
    assert bool(got[3].isnan().all())
    assert not bool(got[20].isfinite().any())
    assert torch.equal(got[good], want[good])


@pytest.mark.parametrize("bad", [-1, 4, 2**40, -(2**62)])
def test_a_token_that_names_no_expert_fails_alone(bad: int) -> None:
    experts = experts_of(dense, 4, 24, 16)
    x, ids, weights = torch.randn(9, 16), choices(9, 4, 2), torch.rand(9, 2)
    want = cpu.grouped_experts(x, ids, weights, *experts, "silu", 0.0, 0.0)
    ids[5, 1] = bad
    got = cpu.grouped_experts(x, ids, weights, *experts, "silu", 0.0, 0.0)
    good = [token for token in range(9) if token != 5]
    assert bool(got[5].isnan().all())
    assert torch.equal(got[good], want[good])


def test_a_tape_routes_anew_at_each_playing() -> None:
    """Nothing about who goes where is kept from the recording."""
    router, bias = pack(dense(6, 32)), torch.randn(6)
    w1, w3, w2 = (pack(matrix) for matrix in experts_of(mxfp4, 6, 64, 32))
    x = torch.randn(5, 32)

    def forward() -> Tensor:
        ids, weights = route(x, router, bias, 2, True, 1.0)
        return cpu.grouped_experts(x, ids, weights, w1, w3, w2, "situ", 4.0, 25.0)

    tape = native.Tape()
    with use_workspace(native.Workspace()):
        tape.start()
        out = forward()
        tape.stop()
        for _ in range(3):
            x.copy_(torch.randn(5, 32))
            tape.play()
            played = out.clone()
            assert torch.equal(forward(), played)


def test_no_tokens() -> None:
    ids = torch.zeros(0, 2, dtype=torch.int64)
    experts = experts_of(dense, 3, 8, 4)
    out = cpu.grouped_experts(torch.zeros(0, 4), ids, torch.zeros(0, 2), *experts, "silu", 0.0, 0.0)
    assert out.shape == (0, 4)


def test_what_does_not_fit_is_refused() -> None:
    w1, w3, w2 = experts_of(dense, 3, 8, 4)
    x, ids, weights = torch.zeros(1, 4), torch.zeros(1, 2, dtype=torch.int64), torch.zeros(1, 2)
    with pytest.raises(
        InvariantError, match=r"w2 must be \[experts, out, in\] = \[3, 4, 8\]. Given: \[3, 8, 4\]"
    ):
        cpu.grouped_experts(x, ids, weights, w1, w3, w1, "silu", 0.0, 0.0)
    with pytest.raises(InvariantError, match=r"name must be one of .*Given: 'relu'"):
        cpu.grouped_experts(x, ids, weights, w1, w3, w2, "relu", 0.0, 0.0)
    with pytest.raises(InvariantError, match=r"ids must be int64.*Given: torch.int32"):
        cpu.grouped_experts(x, ids.int(), weights, w1, w3, w2, "silu", 0.0, 0.0)
    with pytest.raises(InvariantError, match="weights must be float32"):
        cpu.grouped_experts(x, ids, weights.double(), w1, w3, w2, "silu", 0.0, 0.0)
