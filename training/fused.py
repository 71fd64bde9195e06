"""Elementwise parts of the model with hand-derived gradients.

On a CPU such operations cost memory passes, and autograd's own derivatives of their pieces make several
times as many as needed. ``tests/training/test_fused.py`` checks each against finite differences.
"""

import torch
from torch import Tensor
from torch.nn import functional

from training.autograd import Context, apply


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """``x * rsqrt(mean(x^2) + eps) * weight`` over the last dimension."""
    return apply(_RMSNorm, x, weight, eps)


def situ(gate: Tensor, up: Tensor, beta: float, linear_beta: float) -> Tensor:
    """K3's gated activation, a SwiGLU with both factors capped.

    ``[b tanh(g / b) sigmoid(g)] * [l tanh(u / l)]`` with caps ``b`` on the gate and ``l`` on the up branch.
    """
    return apply(_SiTU, gate, up, beta, linear_beta)


def short_conv(x: Tensor, weight: Tensor) -> Tensor:
    """Causal depthwise convolution, then SiLU; the last tap weighs the present token.

    Args:
        x: [B, T, C].
        weight: [C, taps].

    Returns:
        [B, T, C].
    """
    return apply(_ShortConv, x, weight)


def residual_mix(score: Tensor, eps: float, sources: list[Tensor]) -> Tensor:
    """Mix ``sources`` [..., D] by the softmax of their normalised products with ``score`` [D]."""
    return apply(_ResidualMix, score, eps, *sources)


def _inverse_rms(x: Tensor, eps: float) -> Tensor:
    """[..., D] -> [..., 1], without a temporary of the size of ``x``."""
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return torch.rsqrt(length.square() / x.shape[-1] + eps)


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Context, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        inverse = _inverse_rms(x, eps)
        ctx.save_for_backward(x, weight, inverse)
        return (x * inverse).mul_(weight)

    @staticmethod
    def backward(ctx: Context, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight, inverse = ctx.saved_tensors
        product = grads[0] * x
        grad_weight = inverse.reshape(1, -1) @ product.reshape(-1, x.shape[-1])
        along = (product @ weight).unsqueeze(-1)
        grad_x = (grads[0] * weight).mul_(inverse)
        grad_x.addcmul_(x, along.mul_(inverse.pow(3)).div_(x.shape[-1]), value=-1)
        return grad_x, grad_weight[0], None


class _SiTU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Context, gate: Tensor, up: Tensor, beta: float, linear_beta: float) -> Tensor:
        tanh_gate, sigmoid = (gate / beta).tanh_(), torch.sigmoid(gate)
        tanh_up = (up / linear_beta).tanh_()
        ctx.save_for_backward(tanh_gate, sigmoid, tanh_up)
        ctx.constants = (beta, linear_beta)
        return (tanh_gate * sigmoid).mul_(tanh_up).mul_(beta * linear_beta)

    @staticmethod
    def backward(ctx: Context, *grads: Tensor) -> tuple[Tensor, Tensor, None, None]:
        tanh_gate, sigmoid, tanh_up = ctx.saved_tensors
        beta, linear_beta = ctx.constants
        through = grads[0] * sigmoid
        # d/dg of b tanh(g / b) sigmoid(g) is sigmoid * [1 - tanh^2 + b tanh (1 - sigmoid)]
        slope = torch.addcmul(tanh_gate, tanh_gate, sigmoid, value=-1).mul_(beta)
        slope.addcmul_(tanh_gate, tanh_gate, value=-1).add_(1)
        grad_gate = slope.mul_(through).mul_(tanh_up).mul_(linear_beta)
        through.mul_(tanh_gate).mul_(beta)
        grad_up = through.addcmul_(through * tanh_up, tanh_up, value=-1)
        return grad_gate, grad_up, None, None


class _ShortConv(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Context, x: Tensor, weight: Tensor) -> Tensor:
        taps = weight.shape[1]
        total = x * weight[:, -1]
        for back in range(1, taps):
            total[:, back:].addcmul_(x[:, :-back], weight[:, taps - 1 - back])
        ctx.save_for_backward(x, weight, total)
        return functional.silu(total)

    @staticmethod
    def backward(ctx: Context, *grads: Tensor) -> tuple[Tensor, Tensor]:
        x, weight, total = ctx.saved_tensors
        taps = weight.shape[1]
        grad = torch.ops.aten.silu_backward(grads[0], total)
        grad_x = grad * weight[:, -1]
        grad_weight = torch.empty_like(weight)
        grad_weight[:, -1] = (grad * x).sum((0, 1))
        for back in range(1, taps):
            later, earlier = grad[:, back:], x[:, :-back]
            grad_x[:, :-back].addcmul_(later, weight[:, taps - 1 - back])
            grad_weight[:, taps - 1 - back] = (later * earlier).sum((0, 1))
        return grad_x, grad_weight


class _ResidualMix(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Context, score: Tensor, eps: float, *sources: Tensor) -> Tensor:
        inverses = torch.stack([_inverse_rms(source, eps) for source in sources])
        dots = torch.stack([(source @ score).unsqueeze(-1) for source in sources])
        shares = (dots * inverses).softmax(0)  # [m, ..., 1]
        out = sources[0] * shares[0]
        for source, share in zip(sources[1:], shares[1:], strict=True):
            out.addcmul_(source, share)
        ctx.save_for_backward(score, inverses, dots, shares, *sources)
        return out

    @staticmethod
    def backward(ctx: Context, *grads: Tensor) -> tuple[Tensor | None, ...]:
        score, inverses, dots, shares, *sources = ctx.saved_tensors
        grad, dim = grads[0], score.shape[0]
        grad_shares = torch.stack([(grad * source).sum(-1, keepdim=True) for source in sources])
        grad_scores = shares * (grad_shares - (shares * grad_shares).sum(0))
        along_score = grad_scores * inverses
        along_source = grad_scores * dots * inverses.pow(3) / -dim
        grad_score, grad_sources = torch.zeros_like(score), []
        for i, source in enumerate(sources):
            grad_score += (along_score[i].reshape(1, -1) @ source.reshape(-1, dim))[0]
            grad_source = grad * shares[i]
            grad_source.addcmul_(source, along_source[i]).addcmul_(along_score[i], score)
            grad_sources.append(grad_source)
        return grad_score, None, *grad_sources
