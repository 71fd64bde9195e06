"""The routed experts of a mixture: only experts that some token chose are computed.

    out[t] = sum_i weights[t, i] * w2_e( act(w1_e x[t], w3_e x[t]) ) ,  e = ids[t, i]

Kimi K3 technical report, equations 11-13.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from milepost.errors import InvariantError
from milepost.kernels.checks import check_shape
from milepost.kernels.gated_activation import check as check_activation
from milepost.kernels.matrix import Matrix

__all__ = ["GroupedExperts", "check"]


class GroupedExperts(Protocol):
    """Run each token through its experts and add up."""

    def __call__(
        self,
        x: Tensor,
        ids: Tensor,
        weights: Tensor,
        w1: Matrix,
        w3: Matrix,
        w2: Matrix,
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
    w1: Matrix,
    w3: Matrix,
    w2: Matrix,
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
