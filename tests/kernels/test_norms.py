"""RMSNorm, and Attention Residuals' read with its norm: every target against the formulas in float64."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch

from milepost.errors import InvariantError
from milepost.kernels.attn_res import cpu as attn_res_cpu
from milepost.kernels.attn_res import reference as attn_res_reference
from milepost.kernels.rms_norm import cpu as rms_norm_cpu
from milepost.kernels.rms_norm import reference as rms_norm_reference
from tests.kernels.arenas import assert_near
from tests.kernels.targets import TARGETS, using

SIZES = [(1, 1), (4, 33), (2, 64), (3, 100), (600, 160)]


@pytest.fixture(autouse=True, params=[(target, threads) for target in TARGETS for threads in (1, 3)], ids=str)
def _setting(request: pytest.FixtureRequest) -> Iterator[None]:
    with using(*request.param):
        yield


@pytest.mark.parametrize(("tokens", "dim"), SIZES)
def test_rms_norm(tokens: int, dim: int) -> None:
    x, weight = torch.randn(tokens, dim + 7)[:, :dim] * 3, torch.randn(dim)
    x[0] = 0
    got = rms_norm_cpu.rms_norm(x, weight, 1e-5)
    assert_near(got, rms_norm_reference.rms_norm(x.double(), weight.double(), 1e-5), 2e-6)


def test_rms_norm_epsilon_counts() -> None:
    x = torch.full((1, 4), 1e-3)
    by_hand = 1e-3 / math.sqrt(1e-6 + 1e-5)
    for rms_norm in (rms_norm_cpu.rms_norm, rms_norm_reference.rms_norm):
        assert torch.allclose(rms_norm(x, torch.ones(4), 1e-5), torch.full((1, 4), by_hand))


@pytest.mark.parametrize(
    ("tokens", "dim", "num_banks"),
    [(1, 1, 0), (4, 33, 1), (2, 64, 8), (3, 100, 20), (4, 257, 63), (600, 160, 8)],
)
def test_attn_res(tokens: int, dim: int, num_banks: int) -> None:
    *banks, running = [torch.randn(tokens, dim) * (1 + 3 * bank) for bank in range(num_banks + 1)]
    site, weight = torch.randn(dim) * 2, torch.randn(dim)
    before = [source.clone() for source in (*banks, running)]
    got = attn_res_cpu.attn_res(running, banks, site, weight, 1e-5)
    exact = [bank.double() for bank in banks]
    want = attn_res_reference.attn_res(running.double(), exact, site.double(), weight.double(), 1e-5)
    assert_near(got, want, 2e-5)
    assert all(map(torch.equal, (*banks, running), before))
    if not num_banks:
        assert_near(got, rms_norm_reference.rms_norm(running.double(), weight.double(), 1e-5), 2e-6)


def test_attn_res_reads_values_unnormed_and_uniformly_at_zero_projections() -> None:
    """Training starts the projection at zero: the mix is then the plain mean of the raw sources."""
    banks, running = [torch.tensor([[10.0, -4.0]]), torch.tensor([[2.0, 0.0]])], torch.tensor([[3.0, 1.0]])
    mean = torch.tensor([[5.0, -1.0]]) / math.sqrt(13)
    for attn_res in (attn_res_cpu.attn_res, attn_res_reference.attn_res):
        got = attn_res(running, banks, torch.zeros(2), torch.ones(2), 0.0)
        assert torch.allclose(got, mean)


def test_attn_res_picks_a_source_by_its_score() -> None:
    banks, running = [torch.tensor([[5.0, 0.0]])], torch.tensor([[0.0, 7.0]])
    for attn_res in (attn_res_cpu.attn_res, attn_res_reference.attn_res):
        got = attn_res(running, banks, torch.tensor([100.0, 0.0]), torch.ones(2), 0.0)
        assert torch.allclose(got, torch.tensor([[math.sqrt(2), 0.0]]))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("source", [0, 2, 3])
def test_what_is_not_finite_stays_so_and_touches_no_other_token(bad: float, source: int) -> None:
    sources = [torch.randn(3, 40) for _ in range(4)]
    sources[source][1, 38] = bad
    *banks, running = sources
    got = attn_res_cpu.attn_res(running, banks, torch.randn(40), torch.ones(40), 1e-5)
    assert got.isfinite().all(dim=1).tolist() == [True, False, True]
    got = rms_norm_cpu.rms_norm(sources[source], torch.ones(40), 1e-5)
    assert got.isfinite().all(dim=1).tolist() == [True, False, True]


def test_a_token_is_the_same_in_any_company() -> None:
    *banks, running = torch.randn(4, 600, 100).unbind()
    site, weight = torch.randn(100), torch.randn(100)
    together = attn_res_cpu.attn_res(running, banks, site, weight, 1e-5)
    normed = rms_norm_cpu.rms_norm(running, weight, 1e-5)
    for token in (0, 299, 599):
        one = slice(token, token + 1)
        alone = attn_res_cpu.attn_res(running[one], [bank[one] for bank in banks], site, weight, 1e-5)
        assert torch.equal(alone, together[one])
        assert torch.equal(rms_norm_cpu.rms_norm(running[one], weight, 1e-5), normed[one])


def test_what_does_not_fit_is_refused() -> None:
    x, w = torch.ones(2, 4), torch.ones(4)
    with pytest.raises(InvariantError, match=r"rms_norm: weight must have shape \[4\]. Given: \[3\]"):
        rms_norm_cpu.rms_norm(x, torch.ones(3), 1e-5)
    with pytest.raises(InvariantError, match=r"bank must have shape \[2, 4\]. Given: \[3, 4\]"):
        attn_res_cpu.attn_res(x, [torch.ones(3, 4)], w, w, 1e-5)
    with pytest.raises(InvariantError, match="source must be float32"):
        attn_res_cpu.attn_res(x.bfloat16(), [], w, w, 1e-5)
    with pytest.raises(InvariantError, match="source must be contiguous"):
        attn_res_cpu.attn_res(torch.ones(2, 8)[:, :4], [], w, w, 1e-5)
    with pytest.raises(InvariantError, match=r"at most 64 sources\. Given: 64 banks"):
        attn_res_cpu.attn_res(x, [x] * 64, w, w, 1e-5)
