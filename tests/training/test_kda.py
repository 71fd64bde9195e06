"""The chunked KDA must equal the recurrence, in value and in gradient."""

import pytest
import torch
from torch import Tensor

from training.kda import chunk_kda, recurrent_kda


def _inputs(length: int, decay: float) -> tuple[Tensor, ...]:
    torch.manual_seed(length)
    shape = (2, length, 3, 8)
    q, k, v = (torch.randn(shape, dtype=torch.float64) for _ in range(3))
    q, k = (torch.nn.functional.normalize(x, dim=-1) for x in (q, k))
    g = -decay * torch.rand(shape, dtype=torch.float64)
    beta = torch.rand(shape[:3], dtype=torch.float64)
    return tuple(x.requires_grad_() for x in (q, k, v, g, beta))


@pytest.mark.parametrize("length", [1, 15, 16, 17, 63, 80])
@pytest.mark.parametrize("decay", [0.1, 5.0])
def test_chunks_equal_the_recurrence(length: int, decay: float) -> None:
    inputs = q, k, v, g, beta = _inputs(length, decay)
    expected, given = recurrent_kda(q, k, v, g, beta), chunk_kda(q, k, v, g, beta)
    torch.testing.assert_close(given, expected, rtol=1e-9, atol=1e-11)

    probe = torch.randn_like(expected)
    expected_grads = torch.autograd.grad((expected * probe).sum(), inputs)
    given_grads = torch.autograd.grad((given * probe).sum(), inputs)
    for given_grad, expected_grad in zip(given_grads, expected_grads, strict=True):
        torch.testing.assert_close(given_grad, expected_grad, rtol=1e-8, atol=1e-10)


def test_float32_survives_the_strongest_decay() -> None:
    q, k, v, _, beta = (x.detach() for x in _inputs(96, 5.0))
    g = torch.full_like(q, -5.0)
    given = chunk_kda(q.float(), k.float(), v.float(), g.float(), beta.float())
    torch.testing.assert_close(given.double(), recurrent_kda(q, k, v, g, beta), rtol=1e-4, atol=1e-5)
