"""Hand-derived gradients against finite differences, and values against their plain formulas."""

import torch
from torch import Tensor

from training import fused


def _random(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def test_rms_norm() -> None:
    torch.manual_seed(0)
    x, weight = _random(2, 3, 8), _random(8)
    expected = torch.nn.functional.rms_norm(x, (8,), weight, 1e-5)
    torch.testing.assert_close(fused.rms_norm(x, weight, 1e-5), expected)
    assert torch.autograd.gradcheck(lambda x, w: fused.rms_norm(x, w, 1e-5), (x, weight))


def test_situ() -> None:
    torch.manual_seed(0)
    gate, up = _random(3, 4), _random(3, 4)
    expected = 4 * torch.tanh(gate / 4) * torch.sigmoid(gate) * 25 * torch.tanh(up / 25)
    torch.testing.assert_close(fused.situ(gate, up, 4.0, 25.0), expected)
    assert torch.autograd.gradcheck(lambda g, u: fused.situ(g, u, 4.0, 25.0), (gate, up))


def test_short_conv() -> None:
    torch.manual_seed(0)
    x, weight = _random(2, 6, 3), _random(3, 4)
    conv = torch.nn.functional.conv1d(x.mT, weight.unsqueeze(1), padding=3, groups=3)[..., :6]
    torch.testing.assert_close(fused.short_conv(x, weight), torch.nn.functional.silu(conv).mT)
    assert torch.autograd.gradcheck(fused.short_conv, (x, weight))


def test_residual_mix() -> None:
    torch.manual_seed(0)
    score, sources = _random(8), [_random(2, 3, 8) for _ in range(3)]
    stacked = torch.stack(sources)
    normed = stacked * torch.rsqrt(stacked.square().mean(-1, keepdim=True) + 1e-5)
    expected = ((normed @ score).softmax(0).unsqueeze(-1) * stacked).sum(0)
    torch.testing.assert_close(fused.residual_mix(score, 1e-5, sources), expected)
    assert torch.autograd.gradcheck(lambda s, *v: fused.residual_mix(s, 1e-5, list(v)), (score, *sources))
