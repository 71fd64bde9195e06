"""Norms, gates, activations and Attention Residuals: the fast forms against the formulas in float64."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from milepost.errors import InvariantError
from milepost.kernels.attn_res import cpu as attn_res_cpu
from milepost.kernels.attn_res import reference as attn_res_reference
from milepost.kernels.gated_activation import cpu as activation_cpu
from milepost.kernels.gated_activation import reference as activation_reference
from milepost.kernels.rms_norm import cpu as rms_norm_cpu
from milepost.kernels.rms_norm import reference as rms_norm_reference
from tests.kernels.arenas import assert_near, ulps

DTYPES = [torch.float32, torch.bfloat16, torch.float64]


def rounded(dtype: torch.dtype, *shape: int, scale: float = 1.0) -> tuple[Tensor, Tensor]:
    """Random numbers in a dtype, and the same numbers in float64."""
    x = (torch.randn(*shape) * scale).to(dtype)
    return x, x.double()


@pytest.mark.parametrize("dtype", DTYPES)
def test_rms_norm(dtype: torch.dtype) -> None:
    x, exact = rounded(dtype, 4, 33, scale=3.0)
    x[1], exact[1] = 0, 0
    weight = torch.randn(33)
    got = rms_norm_cpu.rms_norm(x, weight, 1e-5)
    assert got.dtype == dtype
    assert_near(got, rms_norm_reference.rms_norm(exact, weight.double(), 1e-5), ulps(dtype))


def test_rms_norm_epsilon_counts() -> None:
    x = torch.full((1, 4), 1e-3)
    by_hand = 1e-3 / math.sqrt(1e-6 + 1e-5)
    for rms_norm in (rms_norm_cpu.rms_norm, rms_norm_reference.rms_norm):
        assert torch.allclose(rms_norm(x, torch.ones(4), 1e-5), torch.full((1, 4), by_hand))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("name", "gate_cap", "up_cap"), [("silu", 0.0, 0.0), ("situ", 4.0, 25.0)])
def test_gated_activation(dtype: torch.dtype, name: str, gate_cap: float, up_cap: float) -> None:
    gate, exact_gate = rounded(dtype, 7, 12, scale=8.0)
    up, exact_up = rounded(dtype, 7, 12, scale=30.0)
    before = gate.clone(), up.clone()
    got = activation_cpu.gated_activation(gate, up, name, gate_cap, up_cap)
    want = activation_reference.gated_activation(exact_gate, exact_up, name, gate_cap, up_cap)
    assert got.dtype == dtype
    assert_near(got, want, ulps(dtype))
    assert torch.equal(gate, before[0])
    assert torch.equal(up, before[1])


@pytest.mark.parametrize("module", [activation_cpu, activation_reference], ids=["cpu", "reference"])
def test_situ_by_hand(module: object) -> None:
    got = module.gated_activation(  # type: ignore[attr-defined]
        torch.tensor([2.0]), torch.tensor([-50.0]), "situ", 4.0, 25.0
    )
    gate = 4 * math.tanh(0.5) / (1 + math.exp(-2.0))
    assert math.isclose(got.item(), gate * 25 * math.tanh(-2.0), rel_tol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("num_banks", [0, 1, 8])
def test_attn_res(dtype: torch.dtype, num_banks: int) -> None:
    sources = [rounded(dtype, 6, 20, scale=1.0 + 3 * i) for i in range(num_banks + 1)]
    norm, proj = torch.randn(20), torch.randn(20)
    *banks, running = [source for source, _ in sources]
    *exact_banks, exact_running = [exact for _, exact in sources]
    got = attn_res_cpu.attn_res(running, banks, norm, proj, 1e-5)
    want = attn_res_reference.attn_res(exact_running, exact_banks, norm.double(), proj.double(), 1e-5)
    assert got.dtype == dtype
    assert_near(got, want, ulps(dtype))
    assert all(torch.equal(source.double(), exact) for source, exact in sources)
    if not num_banks:
        assert torch.equal(got, running)
        assert got.data_ptr() != running.data_ptr()


def test_attn_res_reads_values_unnormed_and_uniformly_at_zero_proj() -> None:
    """Training starts the projection at zero: the read is then the plain mean of the raw sources."""
    banks, running = [torch.full((1, 4), 10.0), torch.full((1, 4), 2.0)], torch.full((1, 4), 3.0)
    for attn_res in (attn_res_cpu.attn_res, attn_res_reference.attn_res):
        assert torch.allclose(
            attn_res(running, banks, torch.ones(4), torch.zeros(4), 1e-5), torch.full((1, 4), 5.0)
        )


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(InvariantError, match=r"rms_norm: weight must have shape \[4\]. Given: \[3\]"):
        rms_norm_cpu.rms_norm(torch.ones(2, 4), torch.ones(3), 1e-5)
    with pytest.raises(InvariantError, match=r"name must be one of .*Given: 'gelu'"):
        activation_cpu.gated_activation(torch.ones(2), torch.ones(2), "gelu", 0.0, 0.0)
    with pytest.raises(InvariantError, match=r"caps must be > 0\. Given: 0.0 and 25.0"):
        activation_cpu.gated_activation(torch.ones(2), torch.ones(2), "situ", 0.0, 25.0)
    with pytest.raises(InvariantError, match=r"bank must have shape \[2, 4\]. Given: \[3, 4\]"):
        attn_res_cpu.attn_res(torch.ones(2, 4), [torch.ones(3, 4)], torch.ones(4), torch.ones(4), 1e-5)
