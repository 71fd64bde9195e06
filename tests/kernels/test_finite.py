"""The finite check: exact, whatever the numbers' size."""

from __future__ import annotations

import pytest
import torch

from milepost.kernels.finite import finite_rows

BAD = (float("nan"), float("inf"), float("-inf"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("width", [1, 7, 1000])
@pytest.mark.parametrize("bad", BAD, ids=str)
def test_one_bad_number_is_found_anywhere(dtype: torch.dtype, width: int, bad: float) -> None:
    values = torch.randn(4, width).to(dtype)
    assert finite_rows(values).tolist() == [True] * 4
    for column in {0, width // 2, width - 1}:
        spoilt = values.clone()
        spoilt[2, column] = bad
        assert finite_rows(spoilt).tolist() == [True, True, False, True]


def test_opposite_infinities_do_not_cancel() -> None:
    assert finite_rows(torch.tensor([[float("inf"), float("-inf")], [1.0, -1.0]])).tolist() == [False, True]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_a_sum_out_of_range_is_not_a_bad_number(dtype: torch.dtype) -> None:
    values = torch.full((2, 3), torch.finfo(dtype).max, dtype=dtype)
    values[1, 1] = float("nan")
    assert finite_rows(values).tolist() == [True, False]


def test_no_rows() -> None:
    assert finite_rows(torch.empty(0, 5)).tolist() == []
