"""The routed experts of a mixture: only experts that some token chose are computed.

    out[t] = sum_i weights[t, i] * w2_e( act(w1_e x[t], w3_e x[t]) ) ,  e = ids[t, i]

Kimi K3 technical report, equations 11-13.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from milepost.errors import InvariantError
from milepost.kernels import mxfp4
from milepost.kernels.checks import check_shape
from milepost.kernels.gated_activation import check as check_activation

__all__ = ["DenseExperts", "ExpertWeights", "GroupedExperts", "Mxfp4Experts", "check"]


@dataclass(frozen=True, eq=False)
class DenseExperts:
    """One matrix per expert as it is: weight [experts, out, in], any float dtype."""

    weight: Tensor

    @property
    def shape(self) -> tuple[int, int, int]:
        """(experts, out, in)."""
        experts, out, inputs = self.weight.shape
        return experts, out, inputs

    def matrix(self, expert: int, dtype: torch.dtype) -> Tensor:
        """One expert's [out, in]."""
        return self.weight[expert].to(dtype)


@dataclass(frozen=True, eq=False)
class Mxfp4Experts:
    """One packed matrix per expert (`milepost.kernels.mxfp4`).

    ``packed`` is [experts, out, in / 2] uint8, ``scale`` [experts, out, in / 32] uint8.
    """

    packed: Tensor
    scale: Tensor

    def __post_init__(self) -> None:
        mxfp4.check(self.packed, self.scale)

    @property
    def shape(self) -> tuple[int, int, int]:
        """(experts, out, in)."""
        experts, out, half = self.packed.shape
        return experts, out, half * 2

    def matrix(self, expert: int, dtype: torch.dtype) -> Tensor:
        """One expert's [out, in], unpacked."""
        return mxfp4.dequantize(self.packed[expert], self.scale[expert], dtype)


ExpertWeights = DenseExperts | Mxfp4Experts


class GroupedExperts(Protocol):
    """Run each token through its experts and add up."""

    def __call__(
        self,
        x: Tensor,
        ids: Tensor,
        weights: Tensor,
        w1: ExpertWeights,
        w3: ExpertWeights,
        w2: ExpertWeights,
        activation: str,
        gate_cap: float,
        up_cap: float,
    ) -> Tensor:
        """Compute the weighted sum of the chosen experts.

        Args:
            x: [tokens, width], the hidden state or its latent.
            ids: [tokens, top_k] int64, each token's experts, all different.
            weights: [tokens, top_k].
            w1: gate matrices [experts, intermediate, width].
            w3: up matrices [experts, intermediate, width].
            w2: down matrices [experts, width, intermediate].
            activation: name of the gated activation.
            gate_cap: as in `milepost.kernels.gated_activation`.
            up_cap: likewise.

        Returns:
            [tokens, width] in x's dtype, computed and added up in at least float32.
        """
        ...


def check(
    x: Tensor,
    ids: Tensor,
    weights: Tensor,
    w1: ExpertWeights,
    w3: ExpertWeights,
    w2: ExpertWeights,
    activation: str,
    gate_cap: float,
    up_cap: float,
) -> None:
    """Check shapes and the activation; see `GroupedExperts`.

    Raises:
        InvariantError: the shapes don't fit each other, or there is no such activation.
    """
    check_activation(x, x, activation, gate_cap, up_cap)
    tokens, width = x.shape
    check_shape("grouped_experts", "ids", ids, tokens, None)
    check_shape("grouped_experts", "weights", weights, tokens, ids.shape[1])
    experts, intermediate, _ = w1.shape
    for name, matrices, expected in (
        ("w1", w1, (experts, intermediate, width)),
        ("w3", w3, (experts, intermediate, width)),
        ("w2", w2, (experts, width, intermediate)),
    ):
        if matrices.shape != expected:
            raise InvariantError(
                f"grouped_experts: {name} must be [experts, out, in] = {list(expected)}. "
                f"Given: {list(matrices.shape)}."
            )
