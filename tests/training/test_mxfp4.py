"""MXFP4 codes, scales and nibble order."""

import pytest
import torch

from training import mxfp4


def test_representable_values_survive() -> None:
    row = torch.tensor([*mxfp4.LEVELS, *(-level for level in mxfp4.LEVELS)] * 2) * 2.0**-5
    packed, scale = mxfp4.pack(row.unsqueeze(0))
    assert scale.tolist() == [[127 - 5]]
    assert torch.equal(mxfp4.unpack(packed, scale)[0], row)


def test_even_elements_sit_in_the_low_nibble() -> None:
    row = torch.zeros(1, 32)
    row[0, 0], row[0, 1] = 6.0, -0.5
    packed, scale = mxfp4.pack(row)
    assert packed[0, 0].item() == (7 | (9 << 4))
    assert scale.item() == 127


def test_training_sees_what_is_exported() -> None:
    torch.manual_seed(0)
    weight = (torch.randn(8, 96) * torch.logspace(-6, 3, 8).unsqueeze(1)).requires_grad_()
    faked = mxfp4.fake_quantise(weight)
    assert torch.equal(faked, mxfp4.unpack(*mxfp4.pack(weight)))
    torch.autograd.backward(faked.sum())
    assert weight.grad is not None
    assert torch.equal(weight.grad, torch.ones_like(weight))


def test_error_is_bounded_by_the_step() -> None:
    torch.manual_seed(1)
    weight = torch.randn(4, 64)
    error = (mxfp4.unpack(*mxfp4.pack(weight)) - weight).view(4, 2, 32).abs().amax(-1)
    largest = weight.view(4, 2, 32).abs().amax(-1)
    assert (error <= largest / 3 + 1e-6).all()


def test_ragged_rows_are_refused() -> None:
    with pytest.raises(ValueError, match=r"multiple of 32\. Given: 33"):
        mxfp4.pack(torch.zeros(1, 33))
