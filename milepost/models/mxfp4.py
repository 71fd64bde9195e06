"""Packing of MXFP4 weights, for checkpoints that Milepost writes; `milepost.kernels.mxfp4` unpacks them.

The layout is Kimi K3's checkpoint's (compressed-tensors, "mxfp4-pack-quantized").
"""

from __future__ import annotations

import torch
from torch import Tensor

from milepost.errors import CheckpointError
from milepost.kernels.mxfp4 import GROUP, scale_values

__all__ = ["quantize_mxfp4"]

_SCALE_BIAS = 127
_LARGEST_SCALE = 254  # 255 is NaN
# The largest magnitude is 6 = 1.5 * 2^2: a group whose largest element lies in [2^e, 2^(e+1)) takes the scale
# 2^(e-2).
_LARGEST_EXPONENT = 2

# Halfway points between neighbouring magnitudes. A tie goes to the even code: the one below the halfway
# points after codes 0, 2, 4 and 6, the one above it after 1, 3 and 5.
_TIES_DOWN = (0.25, 1.25, 2.5, 5.0)
_TIES_UP = (0.75, 1.75, 3.5)


def quantize_mxfp4(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Pack a weight; every element goes to the nearest code of its group, ties to the even code.

    The scale follows the OCP rule (the power of two below the group's largest magnitude, divided by 4), so
    that what lies between 6 and 8 scales becomes 6. A group of zeros takes the scale 1.

    Args:
        weight: [..., out, in], floating, finite; ``in`` is a multiple of 32.

    Returns:
        ``packed`` uint8 [..., out, in / 2] and ``scale`` uint8 [..., out, in / 32].

    Raises:
        CheckpointError: the input dimension isn't a multiple of 32, or a weight isn't finite.
    """
    if weight.shape[-1] % GROUP:
        raise CheckpointError(
            f"MXFP4 packs groups of {GROUP} inputs, so a weight's last dimension must be a multiple of that. "
            f"Given: shape {list(weight.shape)}."
        )
    groups = _grouped(weight.to(torch.float64))
    if not bool(torch.isfinite(groups).all()):
        raise CheckpointError(
            "MXFP4 can't hold a NaN or an infinity, and the weight has some. Pack finite weights only."
        )
    scale = _scale_byte(groups.abs().amax(dim=-1))
    factors = scale_values(torch.float64)[scale.long()]  # [..., out, in / 32]
    codes = _nearest_code(groups / factors.unsqueeze(-1)).flatten(-2)
    packed = codes[..., 0::2] | (codes[..., 1::2] << 4)
    return packed, scale


def _grouped(weight: Tensor) -> Tensor:
    """[..., in] -> [..., in / 32, 32]."""
    return weight.reshape(*weight.shape[:-1], -1, GROUP)


def _scale_byte(largest: Tensor) -> Tensor:
    """Scale bytes for groups whose largest magnitudes are ``largest`` (float64)."""
    _, exponent = torch.frexp(largest)  # largest in [2^(exponent-1), 2^exponent)
    byte = exponent - 1 - _LARGEST_EXPONENT + _SCALE_BIAS
    byte = torch.where(largest == 0, torch.full_like(byte, _SCALE_BIAS), byte)
    return byte.clamp(0, _LARGEST_SCALE).to(torch.uint8)


def _nearest_code(scaled: Tensor) -> Tensor:
    """E2M1 code (uint8) of each element, already divided by its scale; beyond 6 is 6."""
    magnitude = scaled.abs().contiguous()
    # A code is the number of halfway points passed; the side on which a tie falls is the side of the
    # comparison.
    down = torch.bucketize(magnitude, magnitude.new_tensor(_TIES_DOWN), right=False)
    up = torch.bucketize(magnitude, magnitude.new_tensor(_TIES_UP), right=True)
    sign = torch.signbit(scaled).to(torch.uint8) << 3
    return (down + up).to(torch.uint8) | sign
