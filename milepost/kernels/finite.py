"""Which rows of a tensor are finite, at the price of a sum.

A state, a hidden row or logits that went bad must never be drawn from or published, so every step
asks; `torch.isfinite` over all of them would take a sizeable part of a decode step.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["finite_rows"]


def finite_rows(values: Tensor) -> Tensor:
    """Whether each row holds finite numbers only.

    Args:
        values: [rows, n], float.

    Returns:
        [rows] bool.
    """
    # One NaN or infinity makes the sum NaN or infinite, whatever else is added. Finite numbers do so
    # only where their sum leaves the dtype's range, so the few rows in doubt are looked at one by one.
    finite = torch.isfinite(values.sum(dim=1))
    if not bool(finite.all()):
        doubtful = (~finite).nonzero()[:, 0]
        finite[doubtful] = torch.isfinite(values[doubtful]).all(dim=1)
    return finite
