"""KDA's gate and output norm: every target against the formulas in float64."""

from __future__ import annotations

import math
from types import ModuleType

import pytest
import torch
from torch import Tensor

from milepost.errors import InvariantError
from milepost.kernels.gated_head_norm import cpu as norm_cpu
from milepost.kernels.gated_head_norm import reference as norm_reference
from milepost.kernels.kda_gate import cpu as gate_cpu
from milepost.kernels.kda_gate import reference as gate_reference
from tests.kernels.arenas import assert_near, ulps
from tests.kernels.targets import TARGETS, using

TOLERANCE = ulps(torch.float32)
SHAPES = [(5, 3, 8), (1, 2, 128), (7, 1, 33), (300, 19, 20)]  # tokens, heads, dim
GATES = {"cpu": gate_cpu, "reference": gate_reference}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("bound", [-5.0, None])
def test_kda_gate(target: str, threads: int, shape: tuple[int, int, int], bound: float | None) -> None:
    tokens, heads, dim = shape
    # Views into something wider, as the layer's products are.
    wide = 10 * torch.randn(tokens, heads * dim + heads + 5)
    z, b, _ = torch.split(wide, [heads * dim, heads, 5], dim=1)
    z, bias, a_log = z.view(shape), torch.randn(heads * dim), torch.randn(heads)
    before = wide.clone()
    with using(target, threads):
        g, beta = gate_cpu.kda_gate(z, b, bias, a_log, bound)
    exact = [x.double() for x in (z, b, bias, a_log)]
    want_g, want_beta = gate_reference.kda_gate(exact[0], exact[1], exact[2], exact[3], bound)
    assert_near(g, want_g, TOLERANCE)
    assert_near(beta, want_beta, TOLERANCE)
    assert bool((g <= 0).all())
    assert torch.equal(wide, before), "an operand was overwritten"


@pytest.mark.parametrize("kernel", GATES)
def test_kda_gate_by_hand(kernel: str) -> None:
    kda_gate = GATES[kernel].kda_gate
    z, a_log = torch.tensor([[[0.0, 0.5, -300.0, 300.0]]]), torch.tensor([math.log(2.0)])
    b, bias = torch.tensor([[math.log(3.0)]]), torch.tensor([0.0, 0.5, 0.0, 0.0])
    bounded, beta = kda_gate(z, b, bias, a_log, -5.0)
    assert torch.allclose(bounded[0, 0], torch.tensor([-2.5, -5 / (1 + math.exp(-2)), 0.0, -5.0]))
    assert torch.allclose(beta, torch.tensor(0.75))
    softplus, _ = kda_gate(z, b, bias, a_log, None)
    expected = torch.tensor([-2 * math.log(2), -2 * math.log(1 + math.e), 0.0, -600.0])
    assert torch.allclose(softplus[0, 0], expected)


@pytest.mark.parametrize("target", TARGETS)
def test_a_weak_gate_keeps_its_digits(target: str) -> None:
    """softplus of a far negative number is e^z, which must not lose its digits beside the 1 of 1 + e^z."""
    z = torch.linspace(-80, 5, 1000).view(1, 1, -1)
    nothing = torch.zeros(1, 1), torch.zeros(1000), torch.zeros(1)
    with using(target):
        g, _ = gate_cpu.kda_gate(z, *nothing, None)
    want = -torch.nn.functional.softplus(z.double(), threshold=1000)
    want = torch.where(z < -30, -z.double().exp(), want)
    assert float(((g - want) / want).abs().max()) < 1e-6


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("shape", SHAPES)
def test_gated_head_norm(target: str, threads: int, shape: tuple[int, int, int]) -> None:
    tokens, heads, dim = shape
    o = torch.randn(shape)
    o[0, 0] = 0
    gate = (4 * torch.randn(tokens, heads * dim + 3))[:, : heads * dim].view(shape)
    weight = torch.randn(dim)
    before = o.clone(), gate.clone()
    with using(target, threads):
        got = norm_cpu.gated_head_norm(o, gate, weight, 1e-5)
    want = norm_reference.gated_head_norm(o.double(), gate.double(), weight.double(), 1e-5)
    assert_near(got, want, TOLERANCE)
    assert torch.equal(o, before[0])
    assert torch.equal(gate, before[1])


@pytest.mark.parametrize("norm", [norm_cpu, norm_reference], ids=["cpu", "reference"])
def test_gated_head_norm_by_hand(norm: ModuleType) -> None:
    o, gate = torch.full((1, 1, 4), 1e-3), torch.full((1, 1, 4), -math.log(3.0))
    got: Tensor = norm.gated_head_norm(o, gate, torch.full((4,), 2.0), 1e-5)
    assert torch.allclose(got, torch.full((1, 1, 4), 1e-3 / math.sqrt(1e-6 + 1e-5) * 2 / 4))


@pytest.mark.parametrize("target", TARGETS)
def test_a_token_is_the_same_in_any_company(target: str) -> None:
    z, b, bias, a_log = torch.randn(40, 3, 16), torch.randn(40, 3), torch.randn(48), torch.randn(3)
    with using(target, 3):
        g, beta = gate_cpu.kda_gate(z, b, bias, a_log, None)
        y = norm_cpu.gated_head_norm(z, g, bias[:16], 1e-5)
        for token in (0, 7, 39):
            one = slice(token, token + 1)
            g_one, beta_one = gate_cpu.kda_gate(z[one], b[one], bias, a_log, None)
            assert torch.equal(g_one, g[one])
            assert torch.equal(beta_one, beta[one])
            assert torch.equal(norm_cpu.gated_head_norm(z[one], g[one], bias[:16], 1e-5), y[one])


def test_what_does_not_fit_is_refused() -> None:
    z, b, bias, a_log = torch.zeros(2, 3, 4), torch.zeros(2, 3), torch.zeros(12), torch.zeros(3)
    with pytest.raises(InvariantError, match=r"dt_bias must have shape \[12\]. Given: \[11\]"):
        gate_cpu.kda_gate(z, b, bias[:11], a_log, None)
    with pytest.raises(InvariantError, match=r"b must have shape \[2, 3\]"):
        gate_cpu.kda_gate(z, b[:1], bias, a_log, None)
    with pytest.raises(InvariantError, match="z's heads must follow one another"):
        gate_cpu.kda_gate(z.transpose(0, 1).contiguous().transpose(0, 1), b, bias, a_log, None)
    with pytest.raises(InvariantError, match="gate must be float32"):
        norm_cpu.gated_head_norm(z, z.double(), torch.zeros(4), 1e-5)
