"""Rounding of weights to 8-bit integers with one scale an output, as `milepost.kernels.matrix` holds them."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["quantize_int8"]

_LARGEST = 127


def quantize_int8(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Round to the nearest multiple of the output's scale, halves to even; symmetric, so -128 is not used.

    The scale makes the output's largest magnitude 127. Where that is too small for float32 to divide, the
    output becomes zeros.

    Args:
        weight: [..., out, in], floating, finite.

    Returns:
        ``values`` int8 [..., out, in] and ``scale`` float32 [..., out], with weight about values * scale.
    """
    wide = weight.float()
    scale = wide.abs().amax(dim=-1) / _LARGEST
    divisor = torch.where(scale > 0, scale, torch.ones_like(scale))
    values = (wide / divisor.unsqueeze(-1)).round().clamp(-_LARGEST, _LARGEST)
    return values.to(torch.int8), scale
