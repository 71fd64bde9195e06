"""The published formulas, for one token. Vectors are [width]; a head axis comes first where there is one.

Sources: Kimi K3's technical report (arXiv:2607.24653) and Kimi-Linear's (arXiv:2510.26692); the Hugging Face
model code where it says more, such as each epsilon. Everything runs in the dtype of its arguments.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = [
    "attention_residual",
    "causal_conv",
    "delta_rule",
    "forget_gate",
    "l2_normalise",
    "rms_norm",
    "router_choice",
    "silu",
    "situ",
]


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMSNorm over the last axis: x / rms(x) * weight."""
    return x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + eps) * weight


def silu(x: Tensor) -> Tensor:
    """Swish: x * sigmoid(x)."""
    return x * torch.sigmoid(x)


def situ(gate: Tensor, up: Tensor, gate_cap: float, up_cap: float) -> Tensor:
    """K3's gated activation: both branches are capped by a tanh, the gate by a sigmoid too."""
    capped_gate = gate_cap * torch.tanh(gate / gate_cap) * torch.sigmoid(gate)
    return capped_gate * (up_cap * torch.tanh(up / up_cap))


def l2_normalise(x: Tensor, eps: float) -> Tensor:
    """Unit length over the last axis; eps is added to the sum of squares (fla's and Hugging Face's form)."""
    return x * torch.rsqrt(x.square().sum(dim=-1, keepdim=True) + eps)


def causal_conv(window: Tensor, weight: Tensor) -> Tensor:
    """Depthwise convolution at the newest of the inputs in the window.

    Args:
        window: [taps, channels], oldest input first, the current one last.
        weight: [channels, taps]; the last tap meets the current input.

    Returns:
        [channels].
    """
    return (window * weight.T).sum(dim=0)


def forget_gate(z: Tensor, a_log: Tensor, lower_bound: float | None) -> Tensor:
    """Logarithm of KDA's decay, <= 0.

    Args:
        z: [heads, head_dim], with dt_bias added.
        a_log: [heads].
        lower_bound: K3's bound of the logarithm; None is Kimi-Linear's unbounded gate.
    """
    rate = torch.exp(a_log)[:, None]
    if lower_bound is None:
        return -rate * torch.nn.functional.softplus(z)
    return lower_bound * torch.sigmoid(rate * z)


def delta_rule(
    state: Tensor, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor
) -> tuple[Tensor, Tensor]:
    """One step of KDA's recurrence: decay, correct what the state says at k towards v, read at q.

    Args:
        state: [heads, key, value].
        q: [heads, key], normalised and scaled.
        k: [heads, key], normalised.
        v: [heads, value].
        g: [heads, key], logarithm of the decay.
        beta: [heads], strength of the correction, in (0, 1).

    Returns:
        Output [heads, value] and the new state.
    """
    decayed = torch.exp(g)[:, :, None] * state
    recalled = (decayed * k[:, :, None]).sum(dim=1)
    correction = beta[:, None] * (v - recalled)
    updated = decayed + k[:, :, None] * correction[:, None, :]
    return (updated * q[:, :, None]).sum(dim=1), updated


def router_choice(scores: Tensor, bias: Tensor, top_k: int) -> Tensor:
    """Experts of a token: the largest of score + bias. The bias chooses only; it has no part in the weights.

    Args:
        scores: [experts], sigmoids of the router's logits.
        bias: [experts], e_score_correction_bias.
        top_k: experts a token.

    Returns:
        Indices [top_k].
    """
    return torch.topk(scores + bias, top_k).indices


def attention_residual(
    banks: list[Tensor], running: Tensor, score_vector: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """Read of Attention Residuals: a softmax over depth, scored on normalised sources, mixing raw ones.

    Args:
        banks: [width] each, oldest first; may be empty.
        running: [width], the sum since the last bank.
        score_vector: [width], norm weight times projection.
        eps: of the norm inside the scores.

    Returns:
        The mix [width] and the weights [banks + 1].
    """
    sources = torch.stack([*banks, running])
    scores = (sources * torch.rsqrt(sources.square().mean(dim=-1, keepdim=True) + eps)) @ score_vector
    weights = torch.softmax(scores, dim=0)
    return weights @ sources, weights
