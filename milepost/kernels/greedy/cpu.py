"""The largest logits for CPUs."""

from __future__ import annotations

import torch
from torch import Tensor

from milepost.kernels.greedy import check
from milepost.kernels.native import empty, floats, native

__all__ = ["greedy"]


def greedy(logits: Tensor) -> tuple[Tensor, Tensor]:
    """See `milepost.kernels.greedy.Greedy`; logits are float32."""
    check(logits)
    rows, vocab = logits.shape
    largest, finite = empty(rows, dtype=torch.int64), empty(rows, dtype=torch.bool)
    native.greedy(
        floats("greedy", "logits", logits),
        logits.stride(0),
        rows,
        vocab,
        largest.data_ptr(),
        finite.data_ptr(),
    )
    return largest, finite
