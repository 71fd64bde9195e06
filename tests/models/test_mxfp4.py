"""MXFP4 packing: exact codes and scales, ties to even, and the layout of K3's checkpoint."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from milepost.errors import CheckpointError
from milepost.kernels.mxfp4 import dequantize
from milepost.models.mxfp4 import quantize_mxfp4

MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
CODES = [*MAGNITUDES, *(-m for m in MAGNITUDES)]


def _pack_codes(codes: list[int]) -> torch.Tensor:
    low, high = torch.tensor(codes[0::2]), torch.tensor(codes[1::2])
    return (low | high << 4).to(torch.uint8)[None]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_all_sixteen_codes_decode_low_nibble_first(dtype: torch.dtype) -> None:
    packed = _pack_codes([*range(16), *reversed(range(16))])
    decoded = dequantize(packed, torch.tensor([[127]], dtype=torch.uint8), dtype)
    expected = torch.tensor(CODES + CODES[::-1], dtype=dtype)[None]
    assert decoded.dtype == dtype
    assert torch.equal(decoded, expected)
    assert torch.equal(torch.signbit(decoded), torch.signbit(expected))  # code 8 is minus zero


@pytest.mark.parametrize("byte", [0, 1, 2, 126, 127, 128, 130, 253, 254])
def test_scales_are_exact_powers_of_two(byte: int) -> None:
    packed = _pack_codes(list(range(16)) * 2)
    scale = torch.tensor([[byte]], dtype=torch.uint8)
    decoded = dequantize(packed, scale, torch.float64)
    expected = [code * math.ldexp(1.0, byte - 127) for code in CODES] * 2
    assert decoded.squeeze(0).tolist() == expected
    in_float32 = dequantize(packed, scale, torch.float32)
    assert torch.equal(in_float32, decoded.to(torch.float32))


def test_scale_255_is_nan_in_its_group_alone() -> None:
    packed = torch.zeros(1, 32, dtype=torch.uint8)
    decoded = dequantize(packed, torch.tensor([[255, 127]], dtype=torch.uint8), torch.bfloat16)
    assert decoded[0, :32].isnan().all()
    assert (decoded[0, 32:] == 0).all()


@pytest.mark.parametrize("exponent", [-100, -3, 0, 5, 100])
def test_what_is_representable_survives(exponent: int) -> None:
    weight = torch.tensor([CODES * 2, CODES[::-1] * 2], dtype=torch.float64) * 2.0**exponent
    packed, scale = quantize_mxfp4(weight)
    assert packed.shape == (2, 16)
    assert scale.tolist() == [[127 + exponent]] * 2
    assert torch.equal(dequantize(packed, scale, torch.float64), weight)


def test_ties_go_to_the_even_code_and_the_rest_to_the_nearest() -> None:
    halfway = {0.25: 0.0, 0.75: 1.0, 1.25: 1.0, 1.75: 2.0, 2.5: 2.0, 3.5: 4.0, 5.0: 4.0}
    nudged = {
        tie + side * 1e-6: lower if side < 0 else upper
        for tie, lower, upper in _neighbours()
        for side in (-1, 1)
    }
    cases = halfway | nudged | {6.0: 6.0, 7.99: 6.0}
    values = [*cases, *(-value for value in cases)]
    weight = torch.zeros(1, 64, dtype=torch.float64)
    weight[0, : len(values)] = torch.tensor(values, dtype=torch.float64)
    weight[0, 31] = weight[0, 63] = 4.0  # keeps both groups' scale at 1
    expected = torch.zeros_like(weight)
    expected[0, : len(values)] = torch.tensor([*cases.values(), *(-value for value in cases.values())])
    expected[0, 31] = expected[0, 63] = 4.0
    packed, scale = quantize_mxfp4(weight)
    assert scale.tolist() == [[127, 127]]
    assert torch.equal(dequantize(packed, scale, torch.float64), expected)


def _neighbours() -> list[tuple[float, float, float]]:
    pairs = itertools.pairwise(MAGNITUDES)
    return [((low + high) / 2, low, high) for low, high in pairs]


def test_a_group_of_zeros_stays_zero_beside_a_full_one() -> None:
    weight = torch.zeros(3, 5, 64)
    weight[..., 32:] = torch.randn(3, 5, 32, generator=torch.Generator().manual_seed(1))
    packed, scale = quantize_mxfp4(weight)
    assert packed.shape == (3, 5, 32)
    assert scale.shape == (3, 5, 2)
    assert (scale[..., 0] == 127).all()
    assert (dequantize(packed, scale, torch.float32)[..., :32] == 0).all()


def test_error_is_at_most_half_a_step_below_the_cap() -> None:
    weight = torch.randn(64, 256, generator=torch.Generator().manual_seed(2))
    packed, scale = quantize_mxfp4(weight)
    step = torch.exp2(scale.double() - 127).repeat_interleave(32, dim=-1)
    error = (dequantize(packed, scale, torch.float64) - weight).abs() / step
    assert error.max() <= 2.0  # between 6 and 8 scales the cap costs up to 2
    assert error[weight.abs() / step <= 6].max() <= 1.0
    assert error[weight.abs() / step <= 2].max() <= 0.25


@pytest.mark.parametrize("exponent", [-200, 160])
def test_what_leaves_the_range_of_scales_clips(exponent: int) -> None:
    weight = torch.full((1, 32), 2.0, dtype=torch.float64) * 2.0**exponent
    packed, scale = quantize_mxfp4(weight)
    assert scale.item() == (0 if exponent < 0 else 254)
    values = set(dequantize(packed, scale, torch.float64).flatten().tolist())
    assert values == ({0.0} if exponent < 0 else {6 * 2.0**127})


def test_refusals_say_what_was_given() -> None:
    with pytest.raises(CheckpointError, match=r"\[4, 40\]"):
        quantize_mxfp4(torch.zeros(4, 40))
    with pytest.raises(CheckpointError, match="NaN"):
        quantize_mxfp4(torch.full((1, 32), float("nan")))
