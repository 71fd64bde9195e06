"""The largest logits in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

from milepost.kernels.greedy import check

__all__ = ["greedy"]


def greedy(logits: Tensor) -> tuple[Tensor, Tensor]:
    """See `milepost.kernels.greedy.Greedy`."""
    check(logits)
    return logits.argmax(dim=1), torch.isfinite(logits).all(dim=1)
