"""Attention Residuals' read with the norm behind it.

A site mixes the banked block sums and the running sum by a softmax over scores, per token:

    score_i = <v_i * rsqrt(mean(v_i^2) + eps), site_weight>
    p = softmax(score) ;  m = sum_i p_i v_i ;  out = m * rsqrt(mean(m^2) + eps) * out_weight

All in float32, no 1/sqrt(d), no norm on the values. ``site_weight`` is the product of the site's norm
weight and its projection, which only ever appear together. Every site feeds a norm, which is therefore a
part of it. Kimi K3 technical report, section 2.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from milepost.kernels.checks import check_shape

__all__ = ["AttnRes", "check"]


class AttnRes(Protocol):
    """Mix the banked block sums and the running sum, and norm the mix."""

    def __call__(
        self, running: Tensor, banks: Sequence[Tensor], site_weight: Tensor, out_weight: Tensor, eps: float
    ) -> Tensor:
        """Read one site.

        Args:
            running: [tokens, d], the running sum, the last source.
            banks: the banked block sums, [tokens, d] each; without any the mix is the running sum.
            site_weight: [d].
            out_weight: [d].
            eps: added to mean squares.

        Returns:
            [tokens, d] in running's dtype, computed in at least float32.
        """
        ...


def check(running: Tensor, banks: Sequence[Tensor], site_weight: Tensor, out_weight: Tensor) -> None:
    """Check shapes; see `AttnRes`.

    Raises:
        InvariantError: the shapes don't fit each other.
    """
    check_shape("attn_res", "running", running, None, None)
    tokens, d = running.shape
    for bank in banks:
        check_shape("attn_res", "bank", bank, tokens, d)
    check_shape("attn_res", "site_weight", site_weight, d)
    check_shape("attn_res", "out_weight", out_weight, d)
