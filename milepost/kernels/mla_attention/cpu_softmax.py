"""Softmax-weighted sums over keys that come a segment at a time."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["OnlineSoftmax"]


@dataclass(frozen=True)
class OnlineSoftmax:
    """``softmax(scores) @ values`` with running maximum and sum (arXiv:1805.02867).

    Every query must see a key in its first segment.

    Attributes:
        top: [heads, queries, 1], largest score so far.
        total: [heads, queries, 1], sum of exp(score - top) so far.
        mixed: [heads, queries, width], the values so far, weighted with exp(score - top).
    """

    top: Tensor
    total: Tensor
    mixed: Tensor

    @classmethod
    def empty(cls, heads: int, queries: int, width: int, dtype: torch.dtype) -> OnlineSoftmax:
        """Before the first segment."""
        return cls(
            top=torch.full((heads, queries, 1), float("-inf"), dtype=dtype),
            total=torch.zeros(heads, queries, 1, dtype=dtype),
            mixed=torch.zeros(heads, queries, width, dtype=dtype),
        )

    def add(self, part: slice, scores: Tensor, values: Tensor) -> None:
        """Take in one segment for some of the queries.

        Args:
            part: the queries.
            scores: [heads, part, keys], -inf where a key isn't seen; overwritten.
            values: [keys, width] or [heads, keys, width].
        """
        top, total, mixed = self.top[:, part], self.total[:, part], self.mixed[:, part]
        new_top = torch.maximum(top, scores.amax(-1, keepdim=True))
        shrink = (top - new_top).exp_()
        weights = scores.sub_(new_top).exp_()
        total.mul_(shrink).add_(weights.sum(-1, keepdim=True))
        mixed.mul_(shrink).add_(weights @ values)
        top.copy_(new_top)

    def result(self) -> Tensor:
        """The weighted mean of the values, [heads, queries, width]."""
        return self.mixed / self.total
