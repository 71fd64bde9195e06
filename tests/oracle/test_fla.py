"""The reference's formulas against flash-linear-attention's naive ones (float32)."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from milepost.testing.reference import maths
from tests.oracle.subjects import relative_error

HEADS, KEY = 3, 24
TOLERANCE = 1e-5


def _fla(module: str) -> Any:
    return pytest.importorskip(f"fla.ops.{module}", reason="fla is not installed; see docs/oracles.md")


def _inputs(tokens: int) -> tuple[torch.Tensor, ...]:
    """Normalised q and k, v, log decays of many magnitudes, beta: [tokens, heads, ...], float64."""
    generator = torch.Generator().manual_seed(tokens)
    q, k, v = torch.randn(3, tokens, HEADS, KEY, generator=generator, dtype=torch.float64)
    g = -torch.exp(torch.randn(tokens, HEADS, KEY, generator=generator, dtype=torch.float64) * 2 - 2)
    beta = torch.rand(tokens, HEADS, generator=generator, dtype=torch.float64)
    return maths.l2_normalise(q, 1e-6), maths.l2_normalise(k, 1e-6), v, g, beta


@pytest.mark.parametrize("has_state", [False, True])
@pytest.mark.parametrize(
    ("form", "tokens"), [("recurrent", 1), ("recurrent", 37), ("chunk", 64), ("chunk", 192)]
)
def test_delta_rule(form: str, tokens: int, has_state: bool) -> None:
    q, k, v, g, beta = _inputs(tokens)
    start = torch.zeros(HEADS, KEY, KEY, dtype=torch.float64)
    if has_state:
        start = torch.randn(start.shape, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    kda = _fla("kda.naive")
    run = kda.naive_recurrent_kda if form == "recurrent" else kda.naive_chunk_kda
    batch = [x[None].float() for x in (q, k, v, g, beta)]
    theirs, their_state = run(*batch, initial_state=start[None].float(), output_final_state=True)
    state, ours = start, []
    for t in range(tokens):
        out, state = maths.delta_rule(state, q[t] * KEY**-0.5, k[t], v[t], g[t], beta[t])
        ours.append(out)
    assert relative_error(torch.stack(ours), theirs[0]) < TOLERANCE
    assert relative_error(state, their_state[0]) < TOLERANCE


def test_forget_gates() -> None:
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(HEADS, KEY, generator=generator, dtype=torch.float64) * 4
    bias = torch.randn(HEADS * KEY, generator=generator, dtype=torch.float64)
    a_log = torch.rand(HEADS, generator=generator, dtype=torch.float64) * 3 - 1
    with_bias = z + bias.view(HEADS, KEY)
    gate = _fla("kda.gate")
    unbounded = gate.naive_kda_gate(z, a_log, bias)
    assert relative_error(maths.forget_gate(with_bias, a_log, None), unbounded) < TOLERANCE
    bounded = gate.naive_kda_lowerbound_gate(z, a_log, bias, lower_bound=-5.0)
    assert relative_error(maths.forget_gate(with_bias, a_log, -5.0), bounded) < TOLERANCE


@pytest.mark.parametrize("num_banks", [0, 1, 8])
def test_attention_residuals(num_banks: int) -> None:
    generator = torch.Generator().manual_seed(num_banks)
    sources = list(torch.randn(num_banks + 1, 40, generator=generator, dtype=torch.float64) * 3)
    norm, proj = torch.randn(2, 40, generator=generator, dtype=torch.float64)
    ours, our_weights = maths.attention_residual(sources[:-1], sources[-1], norm * proj, 1e-5)
    theirs, weights = _fla("attnres.naive").naive_attnres(
        proj, sources, norm, rms_eps=1e-5, return_weights=True
    )
    assert relative_error(ours, theirs) < TOLERANCE
    assert relative_error(our_weights, weights) < TOLERANCE
