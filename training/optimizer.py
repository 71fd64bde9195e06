"""Muon for the hidden matrices, AdamW for everything else.

Muon replaces a matrix's momentum by about the nearest semi-orthogonal matrix (five Newton-Schulz steps), so
that every singular direction moves alike.
"""

from collections import defaultdict
from typing import Any

import torch
from torch import Tensor, nn

from training.layers import Linear

_TABLES = ("embed_tokens.weight", "lm_head.weight")
_CONTROLS = ("gate.weight", "_res_proj.weight", ".b_proj.weight", "f_a_proj.weight", "f_b_proj.weight")
"""Matrices that steer decays, write strengths, routing and mixing; Muon's equal steps make those erratic."""


def split_parameters(model: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter], list[nn.Parameter]]:
    """Sort parameters into hidden matrices (for Muon), token tables, and all others (both for AdamW)."""
    hidden: list[nn.Parameter] = []
    tables: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        if name.endswith(_TABLES):
            tables.append(parameter)
        elif parameter.ndim == 2 and not name.endswith(_CONTROLS):
            hidden.append(parameter)
        else:
            others.append(parameter)
    return hidden, tables, others


def orthogonalise(matrices: Tensor, steps: int = 5) -> Tensor:
    """Newton-Schulz iteration towards U V^T of each matrix: [M, O, I] -> [M, O, I]."""
    a, b, c = 3.4445, -4.7750, 2.0315
    tall = matrices.shape[-2] > matrices.shape[-1]
    x = matrices.mT if tall else matrices
    x = (x / (x.flatten(1).norm(dim=1).view(-1, 1, 1) + 1e-7)).to(Linear.compute_dtype)
    for _ in range(steps):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    orthogonal: Tensor = x.mT if tall else x
    return orthogonal.float()


class Muon(torch.optim.Optimizer):
    """Momentum, orthogonalised; matrices of one shape are stacked and handled together."""

    def __init__(
        self, params: list[nn.Parameter], lr: float, momentum: float = 0.95, decay: float = 0.01
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "decay": decay})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]  # closures are not supported
        """One update; parameters without a gradient are left alone."""
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[nn.Parameter]] = defaultdict(list)
            for parameter in group["params"]:
                if parameter.grad is not None:
                    by_shape[parameter.shape].append(parameter)
            for parameters in by_shape.values():
                self._update(parameters, group)

    def _update(self, parameters: list[nn.Parameter], group: dict[str, Any]) -> None:
        """Nesterov momentum, orthogonalise, decay, move."""
        grads = torch.stack([parameter.grad for parameter in parameters if parameter.grad is not None])
        momenta = torch.stack([self._momentum(parameter) for parameter in parameters])
        momenta.lerp_(grads, 1 - group["momentum"])
        for parameter, momentum in zip(parameters, momenta, strict=True):
            self._momentum(parameter).copy_(momentum)
        updates = orthogonalise(grads.lerp(momenta, group["momentum"]))
        rows, columns = parameters[0].shape
        scale = group["lr"] * max(1.0, rows / columns) ** 0.5
        for parameter, update in zip(parameters, updates, strict=True):
            parameter.mul_(1 - group["lr"] * group["decay"]).add_(update, alpha=-scale)

    def _momentum(self, parameter: nn.Parameter) -> Tensor:
        state = self.state[parameter]
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(parameter)
        momentum: Tensor = state["momentum"]
        return momentum
