"""MXFP4 weights: groups of 32 four-bit E2M1 codes that share one power-of-two scale (E8M0).

Byte layout, as in Kimi K3's checkpoint: element ``2j`` of a row sits in the low nibble of byte ``j``; a
code is a sign bit over an index into :data:`LEVELS`; the scale byte ``s`` stands for ``2 ** (s - 127)``.
"""

from itertools import pairwise

import torch
from torch import Tensor

GROUP = 32
LEVELS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_BIAS = 127
# A magnitude lies nearer to level i + 1 than to level i when it exceeds midpoint i.
_MIDPOINTS = tuple((low + high) / 2 for low, high in pairwise(LEVELS))


def pack(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Quantise [..., I] to codes [..., I / 2] uint8 and scales [..., I / 32] uint8."""
    groups, exponent = _scaled_groups(weight)
    index = torch.bucketize(groups.abs(), groups.new_tensor(_MIDPOINTS))
    codes = (index + 8 * (groups < 0)).to(torch.uint8).flatten(-2)
    packed = codes[..., 0::2] | (codes[..., 1::2] << 4)
    return packed, (exponent + _BIAS).to(torch.uint8).squeeze(-1)


def unpack(packed: Tensor, scale: Tensor) -> Tensor:
    """Inverse of :func:`pack`: [..., I / 2] codes and [..., I / 32] scales to float32 [..., I]."""
    codes = torch.stack((packed & 15, packed >> 4), dim=-1).flatten(-2).long()
    table = torch.tensor([*LEVELS, *(-level for level in LEVELS)])
    groups = _grouped(table[codes])
    return torch.ldexp(groups, scale.int().unsqueeze(-1) - _BIAS).flatten(-2)


def fake_quantise(weight: Tensor) -> Tensor:
    """The value that ``unpack(pack(weight))`` has, with the gradient passed straight through."""
    with torch.no_grad():
        groups, exponent = _scaled_groups(weight)
        table = groups.new_tensor(LEVELS)
        magnitude = table[torch.bucketize(groups.abs(), groups.new_tensor(_MIDPOINTS))]
        rounded = torch.ldexp(torch.copysign(magnitude, groups), exponent).flatten(-2)
    return weight + (rounded - weight).detach()


def _scaled_groups(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Split rows into groups and divide each by its scale, the least power of two that clips nothing.

    Returns:
        Groups [..., I / 32, 32] with magnitudes up to 6, and their exponents [..., I / 32, 1].
    """
    if weight.shape[-1] % GROUP:
        raise ValueError(f"the input dimension must be a multiple of {GROUP}. Given: {weight.shape[-1]}")
    groups = _grouped(weight.detach().float())
    largest = groups.abs().amax(dim=-1, keepdim=True).clamp_min(2.0**-100)
    exponent = torch.ceil(torch.log2(largest / LEVELS[-1])).int()
    return torch.ldexp(groups, -exponent), exponent


def _grouped(rows: Tensor) -> Tensor:
    """[..., I] -> [..., I / 32, 32]."""
    return rows.view(*rows.shape[:-1], -1, GROUP)
