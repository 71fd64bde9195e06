"""Greedy output is the same token for token, however a request is cut, mixed, delayed or preempted.

Free pages are poisoned throughout (`milepost.testing.poisoning_executor`), so each of these tests
also shows that nothing reads what it did not write.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from milepost.memory.capacity import sequence_pages
from milepost.testing.reference_model import ReferenceModel
from milepost.types import FinishReason, SamplingParams
from tests.e2e.engines import (
    OUTPUT_TOKENS,
    TestEngine,
    Toy,
    final_length,
    load_toy,
    make_request,
    sixteen_requests,
    tokens_of,
)

Tokens = dict[str, list[int]]


def test_outputs_are_worth_comparing(alone: Tokens) -> None:
    assert {len(tokens) for tokens in alone.values()} == {OUTPUT_TOKENS}
    assert len({tuple(tokens) for tokens in alone.values()}) == len(alone)
    assert all(len(set(tokens)) > 10 for tokens in alone.values())


def test_alone_is_what_the_reference_model_draws(folder: Path, alone: Tokens, toy: Toy) -> None:
    """Against float64, one token at a time, sharing no code with the engine's model."""
    reference = ReferenceModel.load(folder, dtype=torch.float64)
    for request in sixteen_requests(toy)[2:10:7]:
        state = reference.fresh_state()
        for token_id in request.prompt_token_ids:
            logits = reference.step(token_id, state)
        expected: list[int] = []
        while len(expected) < OUTPUT_TOKENS:
            expected.append(int(logits.argmax()))
            logits = reference.step(expected[-1], state)
        assert alone[request.request_id] == expected


def test_batched_with_fifteen_others(toy: Toy, alone: Tokens) -> None:
    requests = sixteen_requests(toy)
    engine = TestEngine(toy, num_pages=toy.pages_for(requests))
    assert tokens_of(engine.run(requests)) == alone
    assert engine.scheduler.stats().preemptions == 0


@pytest.mark.parametrize("budget", [7, 64])
def test_any_token_budget(toy: Toy, alone: Tokens, budget: int) -> None:
    requests = sixteen_requests(toy)
    engine = TestEngine(toy, num_pages=toy.pages_for(requests), budget=budget)
    assert tokens_of(engine.run(requests)) == alone


def test_a_token_budget_of_one(toy: Toy, alone: Tokens) -> None:
    requests = [request for request in sixteen_requests(toy) if request.request_id in ("r1", "r16", "r65")]
    engine = TestEngine(toy, num_pages=toy.pages_for(requests), budget=1)
    replies = tokens_of(engine.run(requests))
    assert replies == {name: alone[name] for name in replies}


@pytest.mark.parametrize(("budget", "chance"), [(64, 0.2), (4096, 0.5)])
def test_preempted_at_random(toy: Toy, alone: Tokens, budget: int, chance: float) -> None:
    requests = sixteen_requests(toy)
    engine = TestEngine(toy, num_pages=toy.pages_for(requests), budget=budget, preempt=chance, seed=1)
    replies = engine.run(requests)
    assert tokens_of(replies) == alone
    assert sum(reply.usage.num_preemptions > 0 for reply in replies.values() if reply.usage) >= 8


def test_the_smallest_pool_that_holds_the_longest_request(toy: Toy, alone: Tokens) -> None:
    requests = sixteen_requests(toy)[1::2]
    longest = max(final_length(request) for request in requests)
    engine = TestEngine(toy, num_pages=1 + sequence_pages(toy.layout, longest - 1), budget=64)
    replies = tokens_of(engine.run(requests))
    assert replies == {name: alone[name] for name in replies}


def test_a_pool_for_a_few_preempts_for_want_of_pages(toy: Toy, alone: Tokens) -> None:
    """Replies outgrow the pool together, so the last in line must give way, again and again."""
    requests = [r for r in sixteen_requests(toy) if len(r.prompt_token_ids) < 20]
    room = sum(sequence_pages(toy.layout, len(r.prompt_token_ids)) for r in requests)
    engine = TestEngine(toy, num_pages=1 + room, budget=64)
    replies = tokens_of(engine.run(requests))
    assert replies == {name: alone[name] for name in replies}
    assert engine.scheduler.stats().preemptions > 0


def test_requests_that_come_while_others_run(toy: Toy, alone: Tokens) -> None:
    """Fewer rows than requests: new ones take over pages that others have just left."""
    requests = sixteen_requests(toy)[::-1]
    room = 1 + 5 * sequence_pages(toy.layout, max(final_length(request) for request in requests))
    engine = TestEngine(toy, num_pages=room, budget=48, max_num_seqs=5)
    assert tokens_of(engine.run(requests, arrivals=1)) == alone


def test_sampled_and_aborted_neighbours(toy: Toy, alone: Tokens) -> None:
    greedy = sixteen_requests(toy)[::2]
    hot = SamplingParams(max_tokens=60, ignore_eos=True, temperature=1.5, seed=4)
    others = [make_request(toy, f"other{n}", 9 * n + 1, hot) for n in range(8)]
    requests = [request for pair in zip(greedy, others, strict=True) for request in pair]
    engine = TestEngine(toy, num_pages=toy.pages_for(requests), budget=64)
    aborts = {3 + 5 * n: f"other{n}" for n in range(6)}
    replies = engine.run(requests, aborts=aborts)
    assert {replies[name].finish_reason for name in aborts.values()} == {FinishReason.ABORT}
    assert tokens_of(replies)["other7"]
    assert {r.request_id: replies[r.request_id].tokens for r in greedy} == {
        r.request_id: alone[r.request_id] for r in greedy
    }


def test_the_reference_kernels_draw_the_same(folder: Path, alone: Tokens) -> None:
    toy = load_toy(folder, "reference")
    requests = sixteen_requests(toy)[1::4]
    replies = tokens_of(TestEngine(toy, num_pages=toy.pages_for(requests), budget=64).run(requests))
    assert replies == {name: alone[name] for name in replies}
