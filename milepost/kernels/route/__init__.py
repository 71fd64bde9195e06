"""The sigmoid router: experts by biased score, weights by unbiased score.

    s = sigmoid(hidden gate_weight^T) ;  ids = top_k of s + bias
    w = s[ids] / (sum s[ids] + 1e-20) * scaling

The logits are float32 sums of float32 products. Kimi K3 technical report, equations 11-13.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from milepost.errors import InvariantError
from milepost.kernels.checks import check_shape
from milepost.kernels.matrix import Matrix

__all__ = ["WEIGHT_SUM_EPS", "Route", "check"]

WEIGHT_SUM_EPS = 1e-20


class Route(Protocol):
    """Choose each token's experts."""

    def __call__(
        self, hidden: Tensor, gate_weight: Matrix, bias: Tensor, top_k: int, renormalize: bool, scaling: float
    ) -> tuple[Tensor, Tensor]:
        """Route a step's tokens.

        Args:
            hidden: [tokens, d], the full hidden state even where experts work in latent space.
            gate_weight: [experts, d].
            bias: [experts], added for the choice only.
            top_k: experts per token.
            renormalize: whether the chosen weights are divided by their sum.
            scaling: factor of the weights.

        Returns:
            ids [tokens, top_k] int64, all different, by descending biased score, ties to the lower id, NaN
            before everything; and weights [tokens, top_k] float32 (float64 for float64 inputs).
        """
        ...


def check(hidden: Tensor, gate_weight: Matrix, bias: Tensor, top_k: int) -> None:
    """Check shapes; see `Route`.

    Raises:
        InvariantError: the shapes don't fit each other, or top_k isn't within the experts.
    """
    _, experts, d = gate_weight.shape
    check_shape("route", "hidden", hidden, None, d)
    check_shape("route", "bias", bias, experts)
    if not 1 <= top_k <= experts:
        raise InvariantError(f"route: top_k must be between 1 and {experts} experts. Given: {top_k}.")
