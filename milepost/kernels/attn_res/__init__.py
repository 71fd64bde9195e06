"""Attention Residuals' read: a softmax over the banked block sums and the running sum, per token.

    score_i = <v_i * rsqrt(mean(v_i^2) + eps), norm_weight * proj_weight>
    p = softmax(score) ;  out = sum_i p_i v_i

All in float32, no 1/sqrt(d), no norm on the values. Kimi K3 technical report, section 2.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from milepost.kernels.checks import check_shape

__all__ = ["AttnRes", "check"]


class AttnRes(Protocol):
    """Mix the banked block sums and the running sum."""

    def __call__(
        self, running: Tensor, banks: Sequence[Tensor], norm_weight: Tensor, proj_weight: Tensor, eps: float
    ) -> Tensor:
        """Read one site.

        Args:
            running: [tokens, d], the running sum, the last source.
            banks: the banked block sums, [tokens, d] each; none makes this the identity.
            norm_weight: [d].
            proj_weight: [d].
            eps: added to the mean square.

        Returns:
            [tokens, d] in running's dtype, computed in at least float32.
        """
        ...


def check(running: Tensor, banks: Sequence[Tensor], norm_weight: Tensor, proj_weight: Tensor) -> None:
    """Check shapes; see `AttnRes`.

    Raises:
        InvariantError: the shapes don't fit each other.
    """
    tokens, d = running.shape
    for bank in banks:
        check_shape("attn_res", "bank", bank, tokens, d)
    check_shape("attn_res", "norm_weight", norm_weight, d)
    check_shape("attn_res", "proj_weight", proj_weight, d)
