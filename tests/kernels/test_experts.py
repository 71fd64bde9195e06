"""Router, MXFP4 and grouped experts."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from milepost.errors import InvariantError
from milepost.kernels import mxfp4
from milepost.kernels.grouped_experts import cpu, reference
from milepost.kernels.matrix import DenseMatrix, Matrix, Mxfp4Matrix
from milepost.kernels.mxfp4 import cpu as mxfp4_cpu
from milepost.kernels.route import cpu as route_cpu
from milepost.kernels.route import reference as route_reference
from tests.kernels.arenas import assert_near, ulps

ROUTES = [
    pytest.param(route_cpu.route, id="cpu"),
    pytest.param(route_reference.route, id="reference"),
]
CODES = (0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("renormalize", [True, False])
def test_route_against_float64(dtype: torch.dtype, renormalize: bool) -> None:
    hidden = torch.randn(50, 24).to(dtype)
    gate_weight, bias = torch.randn(40, 24).to(dtype), torch.randn(40)
    ids, weights = route_cpu.route(hidden, gate_weight, bias, 6, renormalize, 2.446)
    want_ids, want = route_reference.route(
        hidden.double(), gate_weight.double(), bias.double(), 6, renormalize, 2.446
    )
    assert torch.equal(ids, want_ids)
    assert weights.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert_near(weights, want, 1e-6)


@pytest.mark.parametrize("route", ROUTES)
def test_the_bias_chooses_and_does_not_weigh(route: object) -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0]])
    bias = torch.tensor([-10.0, 0.0, 0.0, 10.0])
    ids, weights = route(logits, torch.eye(4), bias, 2, True, 3.0)  # type: ignore[operator]
    assert ids.tolist() == [[3, 1]]
    s = [1 / (1 + math.exp(1.0)), 1 / (1 + math.exp(-1.0))]
    assert torch.allclose(weights, torch.tensor([[3 * s[0] / sum(s), 3 * s[1] / sum(s)]]))


@pytest.mark.parametrize("route", ROUTES)
def test_ties_go_to_the_lower_index(route: object) -> None:
    scores = torch.tensor([[0.0, 1.0, 1.0, 0.0, 1.0, 1.0], [0.0] * 6, [3.0, 0.0, 0.0, 0.0, 0.0, 3.0]])
    ids, _ = route(scores, torch.eye(6), torch.zeros(6), 3, True, 1.0)  # type: ignore[operator]
    assert ids.tolist() == [[1, 2, 4], [0, 1, 2], [0, 5, 1]]


@pytest.mark.parametrize("route", ROUTES)
def test_scores_that_underflow_do_not_divide_by_zero(route: object) -> None:
    ids, weights = route(  # type: ignore[operator]
        torch.full((1, 3), -1000.0), torch.eye(3), torch.zeros(3), 2, True, 1.0
    )
    assert ids.tolist() == [[0, 1]]
    assert weights.tolist() == [[0.0, 0.0]]


@settings(max_examples=40, deadline=None)
@given(data=st.data(), experts=st.integers(1, 12), tokens=st.integers(0, 5))
def test_route_with_many_ties(data: st.DataObject, experts: int, tokens: int) -> None:
    top_k = data.draw(st.integers(1, experts))
    levels = st.lists(st.sampled_from([-1.0, 0.0, 0.5]), min_size=experts, max_size=experts)
    rows = data.draw(st.lists(levels, min_size=tokens, max_size=tokens))
    hidden = torch.tensor(rows).view(tokens, experts)
    ids, _ = route_cpu.route(hidden, torch.eye(experts), torch.zeros(experts), top_k, True, 1.0)
    by_hand = [sorted(range(experts), key=lambda e, row=row: (-row[e], e))[:top_k] for row in rows]  # type: ignore[misc]
    assert ids.tolist() == by_hand


def test_mxfp4_every_code_in_both_nibbles() -> None:
    """Element 2j is the low nibble of byte j; the sign is the nibble's top bit."""
    low = torch.arange(16, dtype=torch.uint8)
    for shift in (0, 4):
        packed = (low << shift).view(1, 16)
        scale = torch.full((1, 1), 127, dtype=torch.uint8)
        for dequantize in (mxfp4.dequantize, mxfp4_cpu.dequantize):
            values = dequantize(packed, scale, torch.float32)
            place = values[0, 0::2] if shift == 0 else values[0, 1::2]
            other = values[0, 1::2] if shift == 0 else values[0, 0::2]
            assert torch.equal(place, torch.tensor(CODES))
            assert torch.equal(other, torch.zeros(16))


def test_mxfp4_scales() -> None:
    packed = torch.full((3, 32), 0x72, dtype=torch.uint8)  # 1.0 low, 6.0 high
    scale = torch.tensor([[0, 127], [126, 130], [254, 255]], dtype=torch.uint8)
    for dequantize in (mxfp4.dequantize, mxfp4_cpu.dequantize):
        values = dequantize(packed, scale, torch.float64)
        assert values.shape == (3, 64)
        assert values[0, 0] == 2.0**-127
        assert values[0, 33] == 6.0
        assert values[1, 31] == 3.0
        assert values[1, 32] == 8.0
        assert values[2, 0] == 2.0**127
        assert bool(values[2, 32:].isnan().all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_mxfp4_random_bytes(dtype: torch.dtype) -> None:
    packed = torch.randint(256, (5, 48), dtype=torch.uint8)
    scale = torch.randint(100, 150, (5, 3), dtype=torch.uint8)
    assert torch.equal(mxfp4_cpu.dequantize(packed, scale, dtype), mxfp4.dequantize(packed, scale, dtype))


def test_mxfp4_wrong_shapes_are_named() -> None:
    with pytest.raises(InvariantError, match=r"Given: \[2, 16\] and \[2, 2\]"):
        mxfp4.dequantize(
            torch.zeros(2, 16, dtype=torch.uint8), torch.zeros(2, 2, dtype=torch.uint8), torch.float32
        )
    with pytest.raises(InvariantError, match=r"must be uint8\. Given: torch.int8"):
        Mxfp4Matrix(torch.zeros(1, 2, 16, dtype=torch.int8), torch.zeros(1, 2, 1, dtype=torch.uint8))


def dense(experts: int, out: int, inputs: int, dtype: torch.dtype) -> DenseMatrix:
    return DenseMatrix((torch.randn(experts, out, inputs) * inputs**-0.5).to(dtype))


def packed(experts: int, out: int, inputs: int) -> Mxfp4Matrix:
    return Mxfp4Matrix(
        packed=torch.randint(256, (experts, out, inputs // 2), dtype=torch.uint8),
        scale=torch.randint(120, 127, (experts, out, inputs // 32), dtype=torch.uint8),
    )


def wide(weights: Matrix) -> Matrix:
    return DenseMatrix(weights.weight.double()) if isinstance(weights, DenseMatrix) else weights


def check_experts(x: Tensor, ids: Tensor, w1: Matrix, w3: Matrix, w2: Matrix, name: str = "situ") -> None:
    weights = torch.rand(ids.shape)
    got = cpu.grouped_experts(x, ids, weights, w1, w3, w2, name, 4.0, 25.0)
    want = reference.grouped_experts(
        x.double(), ids, weights.double(), wide(w1), wide(w3), wide(w2), name, 4.0, 25.0
    )
    assert got.dtype == x.dtype
    assert_near(got, want, ulps(x.dtype))


def choices(tokens: int, experts: int, top_k: int) -> Tensor:
    return torch.stack([torch.randperm(experts)[:top_k] for _ in range(tokens)]).view(tokens, top_k)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("tokens", [1, 2, 33])
def test_dense_experts(dtype: torch.dtype, tokens: int) -> None:
    w1, w3, w2 = dense(6, 20, 12, dtype), dense(6, 20, 12, dtype), dense(6, 12, 20, dtype)
    check_experts(torch.randn(tokens, 12).to(dtype), choices(tokens, 6, 3), w1, w3, w2, "silu")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("tokens", [1, 2, 33])
def test_packed_experts(dtype: torch.dtype, tokens: int) -> None:
    w1, w3, w2 = packed(6, 64, 32), packed(6, 64, 32), packed(6, 32, 64)
    check_experts(torch.randn(tokens, 32).to(dtype), choices(tokens, 6, 3), w1, w3, w2)


@pytest.mark.parametrize("tokens", [3, 33])
def test_packed_and_dense_matrices_together(tokens: int) -> None:
    w1, w3, w2 = packed(6, 64, 32), dense(6, 64, 32, torch.float32), packed(6, 32, 64)
    check_experts(torch.randn(tokens, 32), choices(tokens, 6, 3), w1, w3, w2)


@pytest.mark.parametrize("tokens", [9, 40])
def test_untouched_experts_are_never_read(tokens: int) -> None:
    w1, w3, w2 = (dense(5, 8, 8, torch.float32) for _ in range(3))
    for matrices in (w1, w3, w2):
        matrices.weight[[0, 2, 4]] = float("nan")
    check_experts(torch.randn(tokens, 8), choices(tokens, 2, 1) * 2 + 1, w1, w3, w2)


def test_no_tokens() -> None:
    w1, w3, w2 = dense(3, 8, 4, torch.float32), dense(3, 8, 4, torch.float32), dense(3, 4, 8, torch.float32)
    ids = torch.zeros(0, 2, dtype=torch.int64)
    out = cpu.grouped_experts(torch.zeros(0, 4), ids, torch.zeros(0, 2), w1, w3, w2, "silu", 0.0, 0.0)
    assert out.shape == (0, 4)


def test_wrong_expert_shapes_are_named() -> None:
    w1, w3, w2 = dense(3, 8, 4, torch.float32), dense(3, 8, 4, torch.float32), dense(3, 8, 4, torch.float32)
    ids = torch.zeros(1, 2, dtype=torch.int64)
    with pytest.raises(
        InvariantError, match=r"w2 must be \[experts, out, in\] = \[3, 4, 8\]. Given: \[3, 8, 4\]"
    ):
        cpu.grouped_experts(torch.zeros(1, 4), ids, torch.zeros(1, 2), w1, w3, w2, "silu", 0.0, 0.0)
    with pytest.raises(InvariantError, match=r"name must be one of .*Given: 'relu'"):
        cpu.grouped_experts(torch.zeros(1, 4), ids, torch.zeros(1, 2), w1, w3, w2, "relu", 0.0, 0.0)
