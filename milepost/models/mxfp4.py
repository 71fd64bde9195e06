"""MXFP4 weights: four-bit floats (E2M1) in groups of 32 inputs that share a power-of-two scale (E8M0).

Layout, as in Kimi K3's checkpoint (compressed-tensors, "mxfp4-pack-quantized"; element and scale formats
from the OCP Microscaling specification 1.0): two codes a byte along the input dimension, element 2j in the
low nibble of byte j; a code is a sign bit above an index into `E2M1_MAGNITUDES`; one scale byte s per 32
inputs multiplies them by 2^(s - 127), and s = 255 is NaN.
"""

from __future__ import annotations

import torch
from torch import Tensor

from milepost.errors import CheckpointError

__all__ = ["E2M1_MAGNITUDES", "MXFP4_GROUP", "dequantize_mxfp4", "quantize_mxfp4"]

E2M1_MAGNITUDES: tuple[float, ...] = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
MXFP4_GROUP = 32
_SCALE_BIAS = 127
_NAN_SCALE = 255
# The largest magnitude is 6 = 1.5 * 2^2: a group whose largest element lies in [2^e, 2^(e+1)) takes the scale
# 2^(e-2).
_LARGEST_EXPONENT = 2
_CODES = E2M1_MAGNITUDES + tuple(-magnitude for magnitude in E2M1_MAGNITUDES)

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
    if weight.shape[-1] % MXFP4_GROUP:
        raise CheckpointError(
            f"MXFP4 packs groups of {MXFP4_GROUP} inputs; given a weight of shape {list(weight.shape)}, "
            "whose last dimension is no multiple of that"
        )
    groups = _grouped(weight.to(torch.float64))
    if not bool(torch.isfinite(groups).all()):
        raise CheckpointError("MXFP4 can't hold a NaN or an infinity; the weight has some")
    scale = _scale_byte(groups.abs().amax(dim=-1))
    codes = _nearest_code(groups / _decode_scale(scale, torch.float64).unsqueeze(-1)).flatten(-2)
    packed = codes[..., 0::2] | (codes[..., 1::2] << 4)
    return packed, scale


def dequantize_mxfp4(packed: Tensor, scale: Tensor, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """Unpack a weight. Exact in every dtype whose range holds the product (bfloat16 included).

    Args:
        packed: uint8 [..., out, in / 2], element 2j in the low nibble.
        scale: uint8 [..., out, in / 32].
        dtype: of the result.

    Returns:
        [..., out, in] in ``dtype``; groups with scale 255 are NaN.

    Raises:
        CheckpointError: the two shapes don't belong together, or a dtype isn't uint8.
    """
    _check_packed(packed, scale)
    work = torch.float64 if dtype == torch.float64 else torch.float32
    table = torch.tensor(_CODES, dtype=work, device=packed.device)
    nibbles = torch.stack((packed & 0xF, packed >> 4), dim=-1)
    values = _grouped(table[nibbles.int()].flatten(-2))
    scaled: Tensor = values * _decode_scale(scale, work).unsqueeze(-1)
    return scaled.flatten(-2).to(dtype)


def _grouped(weight: Tensor) -> Tensor:
    """[..., in] -> [..., in / 32, 32]."""
    return weight.reshape(*weight.shape[:-1], -1, MXFP4_GROUP)


def _check_packed(packed: Tensor, scale: Tensor) -> None:
    expected = [*scale.shape[:-1], scale.shape[-1] * MXFP4_GROUP // 2]
    if packed.dtype != torch.uint8 or scale.dtype != torch.uint8 or list(packed.shape) != expected:
        raise CheckpointError(
            f"MXFP4 wants uint8 codes, 16 bytes a group; a scale {scale.dtype} {list(scale.shape)} asks for "
            f"codes of shape {expected}; given {packed.dtype} {list(packed.shape)}"
        )


def _scale_byte(largest: Tensor) -> Tensor:
    """Scale bytes for groups whose largest magnitudes are ``largest`` (float64)."""
    _, exponent = torch.frexp(largest)  # largest in [2^(exponent-1), 2^exponent)
    byte = exponent - 1 - _LARGEST_EXPONENT + _SCALE_BIAS
    byte = torch.where(largest == 0, torch.full_like(byte, _SCALE_BIAS), byte)
    return byte.clamp(0, _NAN_SCALE - 1).to(torch.uint8)


def _nearest_code(scaled: Tensor) -> Tensor:
    """E2M1 code (uint8) of each element, already divided by its scale; beyond 6 is 6."""
    magnitude = scaled.abs().contiguous()
    # A code is the number of halfway points passed; the side on which a tie falls is the side of the
    # comparison.
    down = torch.bucketize(magnitude, magnitude.new_tensor(_TIES_DOWN), right=False)
    up = torch.bucketize(magnitude, magnitude.new_tensor(_TIES_UP), right=True)
    sign = torch.signbit(scaled).to(torch.uint8) << 3
    return (down + up).to(torch.uint8) | sign


def _decode_scale(scale: Tensor, dtype: torch.dtype) -> Tensor:
    """2^(byte - 127) built from the exponent bits, since a vectorised pow need not be exact."""
    if dtype == torch.float64:
        bits = (scale.to(torch.int64) + (1023 - _SCALE_BIAS)) << 52
        value = bits.view(torch.float64)
    else:
        # float32's own exponent has the same bias; only 2^-127 is subnormal there, the bit pattern 1 << 22.
        exponent = scale.to(torch.int32)
        bits32 = torch.where(exponent == 0, torch.full_like(exponent, 1 << 22), exponent << 23)
        value = bits32.view(torch.float32)
    return torch.where(scale == _NAN_SCALE, torch.full_like(value, float("nan")), value)
