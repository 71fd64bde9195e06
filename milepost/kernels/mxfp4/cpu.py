"""MXFP4 unpacking as one compiled pass over the bytes."""

from __future__ import annotations

from functools import cache

import torch
from numba import prange
from torch import Tensor

from milepost.kernels.jit import Array, Kernel, arrays
from milepost.kernels.mxfp4 import CODE_VALUES, GROUP, check, scale_values

__all__ = ["dequantize", "tables"]


def dequantize(packed: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """See `milepost.kernels.mxfp4.dequantize`; packed [out, in / 2], scale [out, in / 32]."""
    check(packed, scale)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    out = torch.empty(packed.shape[0], packed.shape[1] * 2, dtype=wide)
    codes, scales = tables(wide)
    _unpack(out.numel(), *arrays(packed.contiguous(), scale.contiguous(), codes, scales, out))
    return out.to(dtype)


@cache
def tables(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The values of the 16 codes and of the 256 scale bytes."""
    return torch.tensor(CODE_VALUES, dtype=dtype), scale_values(dtype)


def _unpack_rows(packed: Array, scale: Array, codes: Array, scales: Array, out: Array) -> None:
    rows, groups = scale.shape
    half = GROUP // 2
    for row in prange(rows):
        for group in range(groups):
            factor = scales[scale[row, group]]
            for i in range(group * half, (group + 1) * half):
                byte = packed[row, i]
                out[row, 2 * i] = codes[byte & 0xF] * factor
                out[row, 2 * i + 1] = codes[byte >> 4] * factor


_unpack = Kernel(_unpack_rows)
