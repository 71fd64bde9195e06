"""The parts of a Kimi K3 decoder layer, except attention: norms, feed-forward blocks, residual reads."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from training import fused
from training.config import ToyConfig
from training.mxfp4 import fake_quantise


class RMSNorm(nn.Module):
    """Root-mean-square norm over the last dimension."""

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """[..., D] -> [..., D]."""
        return fused.rms_norm(x, self.weight, self.eps)


class Linear(nn.Module):
    """A bias-free projection; ``compute_dtype`` is that of the products, the result is always float32."""

    compute_dtype = torch.float32

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs) * inputs**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        """[..., I] -> [..., O]."""
        return multiply(x, self.weight)


def multiply(x: Tensor, weight: Tensor) -> Tensor:
    """[..., I] by [O, I] to [..., O], in :attr:`Linear.compute_dtype`."""
    dtype = Linear.compute_dtype
    return functional.linear(x.to(dtype), weight.to(dtype)).float()


class GatedMLP(nn.Module):
    """Dense feed-forward block: layer 0's, and the fused shared experts."""

    def __init__(self, config: ToyConfig, width: int) -> None:
        super().__init__()
        self.config = config
        self.gate_proj = Linear(config.hidden_size, width)
        self.up_proj = Linear(config.hidden_size, width)
        self.down_proj = Linear(width, config.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        """[..., D] -> [..., D]."""
        out: Tensor = self.down_proj(
            fused.situ(self.gate_proj(x), self.up_proj(x), self.config.beta, self.config.linear_beta)
        )
        return out


class Expert(nn.Module):
    """One routed expert's weights: ``w1`` gate, ``w3`` up, ``w2`` down; :class:`LatentMoE` uses them."""

    def __init__(self, config: ToyConfig) -> None:
        super().__init__()
        latent, width = config.routed_expert_hidden_size, config.moe_intermediate_size
        self.w1 = Linear(latent, width)
        self.w3 = Linear(latent, width)
        self.w2 = Linear(width, latent)


class Router(nn.Module):
    """Sigmoid scores; a bias steers which experts are chosen but not how they are weighed."""

    e_score_correction_bias: Tensor

    def __init__(self, config: ToyConfig) -> None:
        super().__init__()
        self.config = config
        self.weight = nn.Parameter(
            torch.randn(config.num_experts, config.hidden_size) * config.hidden_size**-0.5
        )
        self.register_buffer("e_score_correction_bias", torch.zeros(config.num_experts))
        self.load = torch.zeros(config.num_experts)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """[N, D] -> expert ids [N, k] and weights [N, k] that sum to the scaling factor."""
        scores = torch.sigmoid(functional.linear(x, self.weight))
        chosen = (
            (scores.detach() + self.e_score_correction_bias).topk(self.config.num_experts_per_token).indices
        )
        weights = scores.gather(1, chosen)
        weights = weights / (weights.sum(1, keepdim=True) + 1e-20) * self.config.routed_scaling_factor
        if self.training:
            self.load += torch.bincount(chosen.flatten(), minlength=len(self.load)).float()
        return chosen, weights

    @torch.no_grad()
    def balance(self, speed: float) -> None:
        """Raise the bias of under-used experts and lower the others' (the rule needs no auxiliary loss)."""
        self.e_score_correction_bias += speed * torch.sign(self.load.mean() - self.load)
        self.load.zero_()


class LatentMoE(nn.Module):
    """Routed experts in a latent space, plus shared experts on the full width.

    The routed norm sits on the weighted *sum* of the experts' outputs, before the up-projection.
    """

    def __init__(self, config: ToyConfig) -> None:
        super().__init__()
        self.config = config
        latent = config.routed_expert_hidden_size
        self.gate = Router(config)
        self.routed_expert_down_proj = Linear(config.hidden_size, latent)
        self.routed_expert_norm = RMSNorm(latent, config.rms_norm_eps)
        self.routed_expert_up_proj = Linear(latent, config.hidden_size)
        self.shared_experts = GatedMLP(config, config.moe_intermediate_size * config.num_shared_experts)
        self.experts = nn.ModuleList(Expert(config) for _ in range(config.num_experts))
        self.quantised = True

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, D] -> [B, T, D]."""
        flat = x.flatten(0, -2)
        chosen, weights = self.gate(flat)
        latent = self._routed(self.routed_expert_down_proj(flat), chosen, weights)
        routed: Tensor = self.routed_expert_up_proj(self.routed_expert_norm(latent))
        shared: Tensor = self.shared_experts(x)
        return routed.view_as(x) + shared

    def _routed(self, latent: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        """Sort token-expert pairs by expert, run each expert on its rows, and sum back: [N, L] -> [N, L]."""
        order = chosen.flatten().argsort()
        tokens = order // chosen.shape[1]
        counts = torch.bincount(chosen.flatten(), minlength=len(self.experts)).tolist()
        gate_up = self._stacked("w1", "w3")
        rows = torch.split(latent[tokens], counts)
        hidden = torch.cat([part @ gate_up[e].mT for e, part in enumerate(rows)])
        gate, up = hidden.chunk(2, dim=-1)
        down = self._stacked("w2")
        parts = torch.split(fused.situ(gate, up, self.config.beta, self.config.linear_beta), counts)
        out = torch.cat([part @ down[e].mT for e, part in enumerate(parts)])
        out = out * weights.flatten()[order].unsqueeze(-1)
        return torch.zeros_like(latent).index_add(0, tokens, out)

    def _stacked(self, *names: str) -> Tensor:
        """The named matrices of all experts as one [E, O, I] tensor, as rounded as the checkpoint's."""
        stacked = torch.stack(
            [torch.cat([getattr(expert, name).weight for name in names]) for expert in self.experts]
        )
        return fake_quantise(stacked) if self.quantised else stacked


class ScoreRow(nn.Module):
    """The [1, D] score projection of a residual read; zero at first, which weighs all sources alike."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1, dim))


def residual_read(sources: list[Tensor], norm: RMSNorm, proj: ScoreRow) -> Tensor:
    """Attention Residuals: a softmax mix of the banked blocks and the running sum.

    Scores look at normalised sources; the mixed values are raw.

    Args:
        sources: m + 1 tensors of [B, T, D].
        norm: the site's norm.
        proj: the site's score row.

    Returns:
        [B, T, D].
    """
    if len(sources) == 1:
        return sources[0]
    return fused.residual_mix(norm.weight * proj.weight[0], norm.eps, sources)
