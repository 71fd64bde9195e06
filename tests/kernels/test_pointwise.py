"""Gates and the gated norm: the fast forms against the formulas in float64."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from milepost.kernels.gated_head_norm import cpu as head_norm_cpu
from milepost.kernels.gated_head_norm import reference as head_norm_reference
from milepost.kernels.kda_gate import cpu as gate_cpu
from milepost.kernels.kda_gate import reference as gate_reference
from tests.kernels.arenas import assert_near, ulps

DTYPES = [torch.float32, torch.bfloat16, torch.float64]


def rounded(dtype: torch.dtype, *shape: int, scale: float = 1.0) -> tuple[Tensor, Tensor]:
    """Random numbers in a dtype, and the same numbers in float64."""
    x = (torch.randn(*shape) * scale).to(dtype)
    return x, x.double()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bound", [-5.0, None])
def test_kda_gate(dtype: torch.dtype, bound: float | None) -> None:
    z, exact_z = rounded(dtype, 5, 3, 8, scale=10.0)
    a_log = torch.randn(3)
    before = z.clone()
    got = gate_cpu.kda_gate(z, a_log, bound)
    want = gate_reference.kda_gate(exact_z, a_log.double(), bound)
    assert got.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    # A gate in bf16 would lose the state's decay, so it must be exact to float32 even from bf16 inputs.
    assert_near(got, want, 1e-5 if dtype == torch.bfloat16 else ulps(dtype))
    assert bool((got <= 0).all())
    assert torch.equal(z, before), "the input was overwritten"


@pytest.mark.parametrize("kda_gate", [gate_cpu.kda_gate, gate_reference.kda_gate], ids=["cpu", "reference"])
def test_kda_gate_by_hand(kda_gate: object) -> None:
    z, a_log = torch.tensor([[[0.0, 1.0, -300.0, 300.0]]]), torch.tensor([math.log(2.0)])
    bounded = kda_gate(z, a_log, -5.0)  # type: ignore[operator]
    assert torch.allclose(bounded[0, 0], torch.tensor([-2.5, -5 / (1 + math.exp(-2)), 0.0, -5.0]))
    softplus = kda_gate(z, a_log, None)  # type: ignore[operator]
    expected = torch.tensor([-2 * math.log(2), -2 * math.log(1 + math.e), 0.0, -600.0])
    assert torch.allclose(softplus[0, 0], expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_gated_head_norm(dtype: torch.dtype) -> None:
    o, exact_o = rounded(dtype, 5, 3, 16)
    gate, exact_gate = rounded(dtype, 5, 3, 16, scale=4.0)
    weight = torch.randn(16)
    before = o.clone(), gate.clone()
    got = head_norm_cpu.gated_head_norm(o, gate, weight, 1e-5)
    want = head_norm_reference.gated_head_norm(exact_o, exact_gate, weight.double(), 1e-5)
    assert got.dtype == dtype
    assert_near(got, want, ulps(dtype))
    assert torch.equal(o, before[0])
    assert torch.equal(gate, before[1])
