"""MXFP4 unpacking: codes, scales and shapes."""

from __future__ import annotations

import pytest
import torch

from milepost.errors import InvariantError
from milepost.kernels import mxfp4
from milepost.kernels.matrix import Mxfp4Matrix

CODES = (0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6)


def test_mxfp4_every_code_in_both_nibbles() -> None:
    """Element 2j is the low nibble of byte j; the sign is the nibble's top bit."""
    low = torch.arange(16, dtype=torch.uint8)
    for shift in (0, 4):
        packed = (low << shift).view(1, 16)
        scale = torch.full((1, 1), 127, dtype=torch.uint8)
        values = mxfp4.dequantize(packed, scale, torch.float32)
        place = values[0, 0::2] if shift == 0 else values[0, 1::2]
        other = values[0, 1::2] if shift == 0 else values[0, 0::2]
        assert torch.equal(place, torch.tensor(CODES))
        assert torch.equal(other, torch.zeros(16))


def test_mxfp4_scales() -> None:
    packed = torch.full((3, 32), 0x72, dtype=torch.uint8)  # 1.0 low, 6.0 high
    scale = torch.tensor([[0, 127], [126, 130], [254, 255]], dtype=torch.uint8)
    values = mxfp4.dequantize(packed, scale, torch.float64)
    assert values.shape == (3, 64)
    assert values[0, 0] == 2.0**-127
    assert values[0, 33] == 6.0
    assert values[1, 31] == 3.0
    assert values[1, 32] == 8.0
    assert values[2, 0] == 2.0**127
    assert bool(values[2, 32:].isnan().all())


def test_mxfp4_wrong_shapes_are_named() -> None:
    with pytest.raises(InvariantError, match=r"Given: \[2, 16\] and \[2, 2\]"):
        mxfp4.dequantize(
            torch.zeros(2, 16, dtype=torch.uint8), torch.zeros(2, 2, dtype=torch.uint8), torch.float32
        )
    with pytest.raises(InvariantError, match=r"must be uint8\. Given: torch.int8"):
        Mxfp4Matrix(torch.zeros(1, 2, 16, dtype=torch.int8), torch.zeros(1, 2, 1, dtype=torch.uint8))
