"""The dtype in which kernels compute: at least float32, float64 for float64 inputs."""

from __future__ import annotations

import torch

__all__ = ["compute_dtype"]


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """Dtype of sums, states and softmaxes for inputs of `dtype`; results are cast back to `dtype`."""
    return torch.float64 if dtype == torch.float64 else torch.float32
