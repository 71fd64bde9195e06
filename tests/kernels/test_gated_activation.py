"""Gated activations: the compiled form against the formula in float64."""

from __future__ import annotations

import math

import pytest
import torch

from milepost.errors import InvariantError
from milepost.kernels.gated_activation import cpu, reference
from tests.kernels.arenas import assert_near
from tests.kernels.poison import poisoned
from tests.kernels.targets import TARGETS, using

pytestmark = pytest.mark.usefixtures("any_seed")


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(("name", "gate_cap", "up_cap"), [("silu", 0.0, 0.0), ("situ", 4.0, 25.0)])
@pytest.mark.parametrize(("tokens", "dim"), [(0, 8), (1, 1), (1, 3001), (7, 12), (3, 512), (33, 517)])
def test_against_float64(
    target: str,
    threads: int,
    name: str,
    gate_cap: float,
    up_cap: float,
    tokens: int,
    dim: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cpu, "empty", poisoned)
    # Two halves of one projection: rows that don't follow one another.
    both = torch.randn(tokens, 2 * dim) * torch.tensor([8.0] * dim + [30.0] * dim)
    before = both.clone()
    gate, up = both.chunk(2, dim=-1)
    with using(target, threads):
        got = cpu.gated_activation(gate, up, name, gate_cap, up_cap)
    assert_near(got, reference.gated_activation(gate.double(), up.double(), name, gate_cap, up_cap), 1e-6)
    assert torch.equal(both, before)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("name", "gate_cap", "up_cap"), [("silu", 0.0, 0.0), ("situ", 4.0, 25.0)])
def test_small_and_large_numbers(target: str, name: str, gate_cap: float, up_cap: float) -> None:
    """Each element to its own size: what is near zero keeps its digits."""
    sizes = torch.tensor([1e-30, 1e-6, 1e-3, 0.1, 0.29, 0.31, 3.0, 80.0, 100.0, 1e4])
    gate = torch.cat([sizes, -sizes]).repeat_interleave(20)[None]
    up = torch.cat([sizes, -sizes]).repeat(20)[None]
    with using(target):
        got = cpu.gated_activation(gate, up, name, gate_cap, up_cap).double()
    want = reference.gated_activation(gate.double(), up.double(), name, gate_cap, up_cap)
    assert bool(torch.isfinite(got).all())
    assert bool(((got - want).abs() <= 2e-6 * want.abs() + 1e-34).all())


@pytest.mark.parametrize("module", [cpu, reference], ids=["cpu", "reference"])
def test_situ_by_hand(module: object) -> None:
    got = module.gated_activation(  # type: ignore[attr-defined]
        torch.tensor([[2.0]]), torch.tensor([[-50.0]]), "situ", 4.0, 25.0
    )
    gate = 4 * math.tanh(0.5) / (1 + math.exp(-2.0))
    assert math.isclose(got.item(), gate * 25 * math.tanh(-2.0), rel_tol=1e-6)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("name", "gate_cap", "up_cap"), [("silu", 0.0, 0.0), ("situ", 4.0, 25.0)])
def test_nan_stays_where_it_is(target: str, name: str, gate_cap: float, up_cap: float) -> None:
    gate, up = torch.randn(4, 100), torch.randn(4, 100)
    gate[1, 3] = up[2, 99] = float("nan")
    with using(target, 2):
        got = cpu.gated_activation(gate, up, name, gate_cap, up_cap)
    assert got.isnan().nonzero().tolist() == [[1, 3], [2, 99]]


def test_wrong_arguments_are_named() -> None:
    ones = torch.ones(2, 4)
    with pytest.raises(InvariantError, match=r"name must be one of .*Given: 'gelu'"):
        cpu.gated_activation(ones, ones, "gelu", 0.0, 0.0)
    with pytest.raises(InvariantError, match=r"caps must be > 0\. Given: 0.0 and 25.0"):
        cpu.gated_activation(ones, ones, "situ", 0.0, 25.0)
    with pytest.raises(InvariantError, match="up must be float32"):
        cpu.gated_activation(ones, ones.double(), "silu", 0.0, 0.0)
