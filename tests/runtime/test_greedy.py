"""The search for each row's largest logit, against torch's own operations."""

from __future__ import annotations

import math

import pytest
import torch

from milepost.runtime.greedy import greedy


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(1, 1), (1, 7), (3, 129), (8, 4097)])
def test_the_first_of_the_largest_and_what_is_finite(shape: tuple[int, int], dtype: torch.dtype) -> None:
    """Rounded, so that equals are common; NaN and infinities anywhere, also several in a row."""
    seed = torch.seed()
    rows, vocab = shape
    for _ in range(30):
        logits = (torch.randn(shape) * 3).round(decimals=1).to(dtype)
        for bad in (math.nan, math.inf, -math.inf):
            if torch.rand(()) < 0.3:
                logits[torch.randint(rows, ()), torch.randint(vocab, ())] = bad
        before = logits.clone()
        ids, finite = greedy(logits)
        assert finite == torch.isfinite(logits).all(dim=1).tolist(), f"seed {seed}"
        for row in range(rows):
            if finite[row]:
                best = (logits[row] == logits[row].max()).nonzero()[0]
                assert ids[row] == best, f"seed {seed}"
        assert torch.equal(torch.nan_to_num(logits), torch.nan_to_num(before))


def test_large_finite_logits_are_finite() -> None:
    """Their sum or their difference may leave the dtype's range."""
    ids, finite = greedy(torch.tensor([[3e38, -3e38, 3e38], [-3e38, -3e38, -3.1e38]]))
    assert (ids, finite) == ([0, 0], [True, True])


def test_logits_that_are_a_part_of_a_tensor() -> None:
    with torch.inference_mode():
        logits = torch.arange(24.0).view(4, 6).t()[::2]
    assert greedy(logits) == ([3, 3, 3], [True, True, True])
