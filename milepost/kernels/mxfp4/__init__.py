"""MXFP4 weights: two E2M1 codes a byte, one E8M0 scale per 32 inputs.

A code is a sign bit (the 4-bit value's top bit) and an index into {0, .5, 1, 1.5, 2, 3, 4, 6}. Input
2j is the low nibble of byte j. A scale byte b multiplies by 2^(b - 127); b = 255 is NaN.
OCP Microscaling Formats specification 1.0.
"""

from __future__ import annotations

import torch
from torch import Tensor

from milepost.errors import InvariantError

__all__ = ["CODE_VALUES", "GROUP", "check", "dequantize", "scale_values"]

GROUP = 32
_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
CODE_VALUES = _MAGNITUDES + tuple(-value for value in _MAGNITUDES)


def scale_values(dtype: torch.dtype) -> Tensor:
    """The multiplier of every scale byte, [256]."""
    exponents = torch.arange(-127, 129, dtype=torch.float64)
    values = torch.exp2(exponents)
    values[255] = float("nan")
    return values.to(dtype)


def dequantize(packed: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """Unpack weights, in plain torch.

    Args:
        packed: [..., out, in / 2] uint8.
        scale: [..., out, in / 32] uint8.
        dtype: of the result. Every product is exact in float32 unless it leaves float32's range.

    Returns:
        [..., out, in].

    Raises:
        InvariantError: the shapes don't fit each other, or the dtypes aren't uint8.
    """
    check(packed, scale)
    codes = torch.stack([packed & 0xF, packed >> 4], dim=-1).flatten(-2)  # [..., out, in], low nibble first
    values = torch.tensor(CODE_VALUES, dtype=dtype)[codes.long()]
    factors = scale_values(dtype)[scale.long()].repeat_interleave(GROUP, dim=-1)
    return values * factors


def check(packed: Tensor, scale: Tensor) -> None:
    """Check shapes and dtypes; see `dequantize`.

    Raises:
        InvariantError: the shapes don't fit each other, or the dtypes aren't uint8.
    """
    if packed.dtype != torch.uint8 or scale.dtype != torch.uint8:
        raise InvariantError(f"mxfp4: packed and scale must be uint8. Given: {packed.dtype}, {scale.dtype}.")
    fits = packed.shape[:-1] == scale.shape[:-1] and packed.shape[-1] * 2 == scale.shape[-1] * GROUP
    if not fits:
        raise InvariantError(
            f"mxfp4: packed [..., out, in / 2] and scale [..., out, in / {GROUP}] don't fit. "
            f"Given: {list(packed.shape)} and {list(scale.shape)}."
        )
