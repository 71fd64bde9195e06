"""The router: against the formula in float64, ties, and numbers that are none."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from milepost.errors import InvariantError
from milepost.kernels.matrix import DenseMatrix
from milepost.kernels.route import cpu, reference
from tests.kernels.arenas import assert_near
from tests.kernels.poison import poisoned
from tests.kernels.targets import TARGETS, using

pytestmark = pytest.mark.usefixtures("any_seed")

Route = Callable[..., tuple[Tensor, Tensor]]
ROUTES = [pytest.param(cpu.route, id="cpu"), pytest.param(reference.route, id="reference")]


def identity(experts: int) -> DenseMatrix:
    """A router whose logits are its inputs."""
    return DenseMatrix(torch.eye(experts))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("renormalize", [True, False])
@pytest.mark.parametrize(
    ("tokens", "experts", "d", "top_k"),
    [(1, 1, 8, 1), (1, 896, 100, 16), (50, 40, 24, 6), (101, 5, 33, 5), (300, 33, 16, 2)],
)
def test_against_float64(
    target: str,
    threads: int,
    renormalize: bool,
    tokens: int,
    experts: int,
    d: int,
    top_k: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cpu, "empty", poisoned)
    hidden = torch.randn(tokens, d + 3)[:, :d]  # rows of something wider
    gate, bias = torch.randn(experts, d), torch.randn(experts)
    with using(target, threads):
        ids, weights = cpu.route(hidden, DenseMatrix(gate), bias, top_k, renormalize, 2.446)
    scores = torch.sigmoid(hidden.double() @ gate.double().T)
    assert_near(weights, _weights(scores, ids, renormalize) * 2.446, 3e-6)
    # Chosen by a score that no float32 rounding separates from the best.
    biased = scores + bias.double()
    chosen = biased.gather(-1, ids)
    assert_near(chosen.float(), biased.sort(-1, descending=True).values[:, :top_k], 3e-6)
    assert all(len(set(row)) == top_k for row in ids.tolist())
    assert int(ids.min()) >= 0
    assert int(ids.max()) < experts


def _weights(scores: Tensor, ids: Tensor, renormalize: bool) -> Tensor:
    chosen = scores.gather(-1, ids)
    return chosen / (chosen.sum(-1, keepdim=True) + 1e-20) if renormalize else chosen


@pytest.mark.parametrize("route", ROUTES)
def test_the_bias_chooses_and_does_not_weigh(route: Route) -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0]])
    bias = torch.tensor([-10.0, 0.0, 0.0, 10.0])
    ids, weights = route(logits, identity(4), bias, 2, True, 3.0)
    assert ids.tolist() == [[3, 1]]
    s = [1 / (1 + math.exp(1.0)), 1 / (1 + math.exp(-1.0))]
    assert torch.allclose(weights, torch.tensor([[3 * s[0] / sum(s), 3 * s[1] / sum(s)]]))


@pytest.mark.parametrize("route", ROUTES)
def test_ties_go_to_the_lower_index(route: Route) -> None:
    scores = torch.tensor([[0.0, 1.0, 1.0, 0.0, 1.0, 1.0], [0.0] * 6, [3.0, 0.0, 0.0, 0.0, 0.0, 3.0]])
    ids, _ = route(scores, identity(6), torch.zeros(6), 3, True, 1.0)
    assert ids.tolist() == [[1, 2, 4], [0, 1, 2], [0, 5, 1]]


@pytest.mark.parametrize("route", ROUTES)
def test_scores_that_underflow_do_not_divide_by_zero(route: Route) -> None:
    ids, weights = route(torch.full((1, 3), -1000.0), identity(3), torch.zeros(3), 2, True, 1.0)
    assert ids.tolist() == [[0, 1]]
    assert weights.tolist() == [[0.0, 0.0]]


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_token_of_no_numbers_gets_valid_experts_and_fails_alone(route: Route, bad: float) -> None:
    good = torch.randn(3, 40)
    gate, bias = DenseMatrix(torch.randn(70, 40)), torch.randn(70)
    want_ids, want = route(good, gate, bias, 5, True, 1.0)
    spoilt = good.clone()
    spoilt[1, 7] = bad
    ids, weights = route(spoilt, gate, bias, 5, True, 1.0)
    assert sorted(set(ids[1].tolist())) == sorted(ids[1].tolist())
    assert all(0 <= expert < 70 for expert in ids[1].tolist())
    if math.isnan(bad):
        assert ids[1].tolist() == [0, 1, 2, 3, 4]
        assert bool(weights[1].isnan().all())
    for token in (0, 2):
        assert torch.equal(ids[token], want_ids[token])
        assert torch.equal(weights[token], want[token])


@settings(max_examples=40, deadline=None)
@given(data=st.data(), experts=st.integers(1, 12), tokens=st.integers(0, 5))
def test_many_ties(data: st.DataObject, experts: int, tokens: int) -> None:
    top_k = data.draw(st.integers(1, experts))
    levels = st.lists(st.sampled_from([-1.0, 0.0, 0.5]), min_size=experts, max_size=experts)
    rows = data.draw(st.lists(levels, min_size=tokens, max_size=tokens))
    hidden = torch.tensor(rows).view(tokens, experts)
    ids, _ = cpu.route(hidden, identity(experts), torch.zeros(experts), top_k, True, 1.0)
    by_hand = [sorted(range(experts), key=lambda e, row=row: (-row[e], e))[:top_k] for row in rows]  # type: ignore[misc]
    assert ids.tolist() == by_hand


@pytest.mark.parametrize("target", TARGETS)
def test_a_token_is_the_same_in_any_company(target: str) -> None:
    hidden, gate, bias = torch.randn(60, 48), DenseMatrix(torch.randn(70, 48)), torch.randn(70)
    with using(target, 2):
        ids, weights = cpu.route(hidden, gate, bias, 6, True, 1.0)
        for token in (0, 47, 48, 59):
            lone_ids, lone = cpu.route(hidden[token : token + 1], gate, bias, 6, True, 1.0)
            assert torch.equal(lone_ids[0], ids[token])
            assert torch.equal(lone[0], weights[token])


def test_what_does_not_fit_is_refused() -> None:
    hidden, gate, bias = torch.zeros(2, 4), DenseMatrix(torch.zeros(3, 4)), torch.zeros(3)
    with pytest.raises(InvariantError, match=r"top_k must be between 1 and 3 experts\. Given: 4"):
        cpu.route(hidden, gate, bias, 4, True, 1.0)
    with pytest.raises(InvariantError, match="hidden must be float32"):
        cpu.route(hidden.double(), gate, bias, 2, True, 1.0)
