"""What each weight format costs on the shipped model, against its float64 reference run."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import pytest
import torch
from torch import Tensor

from milepost.cli.shipped_model import shipped_model
from milepost.kernels.matrix import MatrixFormat
from milepost.kernels.ops import load_ops
from milepost.models import load_model
from milepost.testing.reference_model import ReferenceModel
from tests.e2e.shipped import load_shipped, messages_of
from tests.models.paged_batches import PagedBatches
from training.cases import make_cases


@dataclass(frozen=True)
class Cost:
    """Over all tokens: the median row's relative error, how often the best token is the same, perplexity."""

    error: float
    agreement: float
    perplexity: float


@cache
def conversations() -> list[list[int]]:
    """Conversations with their answers, as token ids."""
    shipped = load_shipped()
    cases = [case for kind in ("copy", "talk") for case in make_cases(kind, 2, 5, shipped.count)]
    return [
        [*shipped.encoding.encode(messages_of(case)).token_ids, *shipped.tokenizer.encode(case.answer)]
        for case in cases
    ]


@cache
def exact_logits() -> list[Tensor]:
    model = ReferenceModel.load(shipped_model(), dtype=torch.float64)
    return [model.logits(tokens) for tokens in conversations()]


def perplexity(logits: list[Tensor]) -> float:
    losses = [
        torch.nn.functional.cross_entropy(rows[:-1].double(), torch.tensor(tokens[1:]), reduction="none")
        for rows, tokens in zip(logits, conversations(), strict=True)
    ]
    return float(torch.cat(losses).mean().exp())


def cost_of(weights: MatrixFormat | None) -> Cost:
    torch.set_num_threads(1)
    model = load_model(shipped_model(), dtype=torch.float32, ops=load_ops("cpu"), weights=weights)
    logits = [PagedBatches(model, [tokens]).run([])[0] for tokens in conversations()]
    given, exact = torch.cat(logits).double(), torch.cat(exact_logits())
    return Cost(
        error=float(((given - exact).norm(dim=1) / exact.norm(dim=1)).median()),
        agreement=float((given.argmax(dim=1) == exact.argmax(dim=1)).double().mean()),
        perplexity=perplexity(logits),
    )


@pytest.mark.parametrize("weights", [None, MatrixFormat.FLOAT32, MatrixFormat.BFLOAT16, MatrixFormat.MXFP4])
def test_formats_that_the_checkpoint_is_published_in_cost_nothing(weights: MatrixFormat | None) -> None:
    """Its experts are packed and its other matrices bfloat16, so all of these hold the same numbers."""
    cost = cost_of(weights)
    assert cost.error < 1e-5
    assert cost.agreement == 1.0
    assert cost.perplexity == pytest.approx(perplexity(exact_logits()), rel=1e-5)


def test_int8_costs_little() -> None:
    cost = cost_of(MatrixFormat.INT8)
    assert 1e-3 < cost.error < 0.03
    assert cost.agreement > 0.95
    assert cost.perplexity == pytest.approx(perplexity(exact_logits()), rel=0.01)
