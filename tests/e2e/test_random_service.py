"""Random service: subsets, orders, budgets, pools, rows, preemptions and aborts, all drawn from a seed."""

from __future__ import annotations

import random

import pytest

from milepost.memory.capacity import sequence_pages
from milepost.types import FinishReason
from tests.e2e.engines import TestEngine, Toy, final_length, sixteen_requests


def serve_at_random(toy: Toy, alone: dict[str, list[int]], seed: int) -> None:
    draw = random.Random(seed)
    requests = draw.sample(sixteen_requests(toy), draw.randint(2, 10))
    smallest = 1 + sequence_pages(toy.layout, max(final_length(request) for request in requests) - 1)
    engine = TestEngine(
        toy,
        num_pages=draw.randint(smallest, max(smallest, toy.pages_for(requests))),
        budget=draw.choice([5, 16, 63, 64, 65, 200]),
        max_num_seqs=draw.randint(1, 10),
        headroom=draw.choice([0, 20, 256]),
        preempt=draw.choice([0.0, 0.1, 0.4]),
        seed=seed,
    )
    aborts = {draw.randint(1, 60): request.request_id for request in requests if draw.random() < 0.2}
    replies = engine.run(requests, arrivals=draw.randint(1, 4), aborts=aborts)
    for name, reply in replies.items():
        assert reply.error is None
        assert reply.finish_reason is (
            FinishReason.LENGTH if len(reply.tokens) == len(alone[name]) else FinishReason.ABORT
        )
        assert reply.tokens == alone[name][: len(reply.tokens)]


@pytest.mark.parametrize("seed", range(3))
def test_random_service(toy: Toy, alone: dict[str, list[int]], seed: int) -> None:
    serve_at_random(toy, alone, seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 140))
def test_random_service_at_length(toy: Toy, alone: dict[str, list[int]], seed: int) -> None:
    serve_at_random(toy, alone, seed)
