"""Sampling through the whole engine: reproducible, and what a slow plain oracle says."""

from __future__ import annotations

import pytest

from milepost.types import FinishReason, Request, SamplingParams
from tests.e2e.engines import NoteTaker, TestEngine, Toy, make_request, run_alone, tokens_of
from tests.runtime.sampling_oracle import distribution, log_probabilities, penalized

STEPS = 24


def params(**fields: float) -> SamplingParams:
    return SamplingParams(max_tokens=STEPS, ignore_eos=True, **fields)  # type: ignore[arg-type]


def varied_requests(toy: Toy) -> list[Request]:
    choices = {
        "plain": params(seed=1),
        "hot": params(seed=2, temperature=1.8, top_k=20),
        "nucleus": params(seed=3, top_p=0.7),
        "floor": params(seed=4, min_p=0.1, temperature=0.8),
        "all": params(seed=5, temperature=1.2, top_k=50, top_p=0.9, min_p=0.02, repetition_penalty=1.3),
        "fresh": params(seed=6, presence_penalty=1.5, frequency_penalty=0.7),
        "greedy": params(temperature=0),
        "plain-again": params(seed=1),
    }
    return [make_request(toy, name, 7 + 13 * n, choice) for n, (name, choice) in enumerate(choices.items())]


def test_a_seed_fixes_the_output_whatever_else_is_in_the_batch(toy: Toy) -> None:
    requests = varied_requests(toy)
    alone = {request.request_id: run_alone(toy, request).tokens for request in requests}
    assert len({tuple(tokens) for tokens in alone.values()}) == len(alone)
    pages = toy.pages_for(requests)
    assert tokens_of(TestEngine(toy, num_pages=pages).run(requests)) == alone
    reordered = TestEngine(toy, num_pages=pages, budget=9).run(requests[::-1], arrivals=1)
    assert tokens_of(reordered) == alone
    preempted = TestEngine(toy, num_pages=pages, budget=64, preempt=0.5, seed=3)
    assert tokens_of(preempted.run(requests)) == alone
    assert preempted.scheduler.stats().preemptions > 8


def test_without_a_seed_the_engines_seed_decides(toy: Toy) -> None:
    request = make_request(toy, "unseeded", 10, params(temperature=1.5))
    first, again, other = (run_alone(toy, request, seed=seed).tokens for seed in (1, 1, 2))
    assert first == again != other


@pytest.mark.parametrize(
    "sampling",
    [
        params(temperature=0, repetition_penalty=1.4, logprobs=4),
        params(temperature=0, presence_penalty=1.2, frequency_penalty=0.9, logprobs=0),
        params(temperature=0.9, seed=8, top_k=12, top_p=0.8, min_p=0.05, frequency_penalty=1.0, logprobs=20),
    ],
)
def test_penalties_and_logprobs_are_the_oracles(toy: Toy, sampling: SamplingParams) -> None:
    """The oracle replays the reply from the model's raw logits, preemptions in between included."""
    request = make_request(toy, "judged", 21, sampling)
    notes = NoteTaker(toy)
    engine = TestEngine(toy, num_pages=toy.pages_for([request]), model=notes, budget=6)
    reply = engine.run([request])["judged"]
    assert len(reply.tokens) == len(reply.logprobs) == len(notes.logits) == STEPS
    for index, (token, entry, logits) in enumerate(
        zip(reply.tokens, reply.logprobs, notes.logits, strict=True)
    ):
        adjusted = penalized(logits, request.prompt_token_ids, reply.tokens[:index], sampling)
        if sampling.greedy:
            assert token == max(range(len(adjusted)), key=lambda t: (adjusted[t], -t))
        else:
            assert token in distribution(adjusted, sampling)
        expected = log_probabilities(logits)
        ranked = sorted(range(len(expected)), key=lambda t: (-expected[t], t))[: sampling.logprobs]
        assert entry.token_id == token
        assert entry.logprob == pytest.approx(expected[token], abs=1e-10)
        assert [t for t, _ in entry.top] == ranked
        assert [value for _, value in entry.top] == pytest.approx([expected[t] for t in ranked], abs=1e-10)


def test_stop_tokens_and_lengths_end_replies(toy: Toy) -> None:
    free = run_alone(toy, make_request(toy, "free", 12, params(temperature=0)))
    assert free.finish_reason is FinishReason.LENGTH
    stop = free.tokens[6]
    stopped = run_alone(
        toy,
        make_request(
            toy,
            "free",
            12,
            SamplingParams(temperature=0, max_tokens=STEPS, ignore_eos=True, stop_token_ids=(stop,)),
        ),
    )
    assert stopped.finish_reason is FinishReason.STOP
    assert stopped.tokens == free.tokens[: free.tokens.index(stop) + 1]
