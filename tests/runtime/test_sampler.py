"""The sampler: exact, per request, and blind to whatever else is in the batch."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
import torch

from milepost.errors import InvariantError
from milepost.runtime.request_sampling import RequestSampling
from milepost.runtime.sampler import Sampler
from milepost.types import NewRequest, Row, RowResult, SamplingParams
from tests.runtime.sampling_oracle import distribution, log_probabilities, penalized

VOCAB = 37
GREEDY = SamplingParams(temperature=0.0)


def new(request_id: str, sampling: SamplingParams, prompt: tuple[int, ...] = (1, 2, 3)) -> NewRequest:
    return NewRequest(request_id=request_id, prompt_token_ids=prompt, sampling=sampling)


def row(request_id: str, num_output_tokens: int = 0) -> Row:
    return Row(
        request_id=request_id,
        start=5,
        token_ids=(4,),
        block_table=(),
        state_table=(),
        samples=True,
        num_output_tokens=num_output_tokens,
    )


def logits_of(step: int, name: str) -> torch.Tensor:
    """Logits that belong to one request at one step, wherever its row is."""
    generator = torch.Generator().manual_seed(step * 1000 + sum(name.encode()))
    return torch.randn(VOCAB, generator=generator) * 3


def token(result: RowResult) -> int:
    assert result.error is None
    (token_id,) = result.token_ids
    return token_id


def run_alone(sampling: SamplingParams, name: str, steps: int = 12) -> list[int]:
    sampler = Sampler()
    sampler.learn([new(name, sampling)])
    return [token(sampler.draw([row(name, i)], logits_of(i, name)[None])[0]) for i in range(steps)]


VARIED = {
    "greedy": GREEDY,
    "plain": SamplingParams(seed=1),
    "hot": SamplingParams(seed=2, temperature=2.0, top_k=9),
    "nucleus": SamplingParams(seed=3, top_p=0.8),
    "floor": SamplingParams(seed=4, min_p=0.05, temperature=0.7),
    "all": SamplingParams(seed=5, temperature=1.3, top_k=20, top_p=0.95, min_p=0.01, repetition_penalty=1.2),
    "fresh": SamplingParams(seed=6, presence_penalty=1.5, frequency_penalty=0.5),
    "greedy-fresh": SamplingParams(temperature=0.0, presence_penalty=2.0, repetition_penalty=1.5),
}


def test_a_request_draws_the_same_alone_and_in_any_batch() -> None:
    """Rows move, come and go; each request sees only its own seed, history and logits."""
    alone = {name: run_alone(sampling, name) for name, sampling in VARIED.items()}
    assert len({tuple(tokens) for tokens in alone.values()}) == len(VARIED)
    sampler = Sampler(seed=9)
    sampler.learn([new(name, sampling) for name, sampling in VARIED.items()])
    together: dict[str, list[int]] = {name: [] for name in VARIED}
    order = np.random.default_rng(0)
    while any(len(tokens) < 12 for tokens in together.values()):
        waiting = [name for name, tokens in together.items() if len(tokens) < 12]
        chosen = [str(name) for name in order.permutation(waiting)[: order.integers(1, 9)]]
        rows = [row(name, len(together[name])) for name in chosen]
        logits = torch.stack([logits_of(len(together[name]), name) for name in chosen])
        for result in sampler.draw(rows, logits):
            together[result.request_id].append(token(result))
    assert together == alone


def test_the_all_greedy_batch_takes_the_first_of_equals() -> None:
    sampler = Sampler()
    sampler.learn([new("a", GREEDY), new("b", GREEDY)])
    logits = torch.tensor([[0.0, 2.0, 2.0], [5.0, 5.0, 5.0]])
    assert [token(result) for result in sampler.draw([row("a"), row("b")], logits)] == [1, 0]


@pytest.mark.parametrize("name", ["hot", "nucleus", "floor", "all", "plain"])
def test_frequencies_follow_the_oracles_distribution(name: str) -> None:
    """Chi-square of 4,000 draws of distinct seeds; seeds are fixed, so the outcome is too."""
    params, draws = VARIED[name], 4000
    logits = logits_of(0, name)[:8]
    expected = distribution(penalized(logits.tolist(), (1, 2, 3), (), params), params)
    counts = Counter(
        RequestSampling(new("r", params), seed).draw(logits.numpy().astype(np.float64))
        for seed in range(draws)
    )
    assert counts.keys() <= expected.keys()
    chi_square = math.fsum((counts[t] - draws * p) ** 2 / (draws * p) for t, p in expected.items())
    freedom = max(1, len(expected) - 1)
    assert chi_square < freedom + 4 * math.sqrt(2 * freedom)


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=0.0, repetition_penalty=1.7),
        SamplingParams(temperature=0.0, repetition_penalty=0.6),
        SamplingParams(temperature=0.0, presence_penalty=1.9),
        SamplingParams(temperature=0.0, frequency_penalty=0.8),
        SamplingParams(temperature=0.0, repetition_penalty=1.1, presence_penalty=-1.0, frequency_penalty=0.9),
    ],
)
def test_penalties_follow_the_oracle_token_for_token(params: SamplingParams) -> None:
    """Small logits around zero, so that a penalty decides often."""
    prompt: tuple[int, ...] = (3, 3, 7, 11)
    output: list[int] = []
    sampler = Sampler()
    sampler.learn([new("r", params, prompt)])
    undecided = 0
    for step in range(40):
        logits = logits_of(step % 3, "r") / 3 - 5 * (step % 2)  # all negative every other step
        expected = penalized(logits.double().tolist(), prompt, output, params)
        best = max(range(VOCAB), key=lambda t: (expected[t], -t))
        undecided += best == int(logits.argmax())
        assert token(sampler.draw([row("r", step)], logits[None])[0]) == best
        output.append(best)
    assert undecided < 40  # the penalties did change something


def test_logprobs_are_of_the_unmodified_distribution() -> None:
    params = SamplingParams(seed=1, temperature=0.2, top_k=2, presence_penalty=2.0, logprobs=5)
    sampler = Sampler()
    sampler.learn([new("other", GREEDY), new("r", params)])
    for step in range(6):
        logits = logits_of(step, "r")
        rows = [row("other", step), row("r", step)]
        result = sampler.draw(rows, torch.stack([logits_of(step, "other"), logits]))[1]
        (entry,) = result.logprobs
        expected = log_probabilities(logits.double().tolist())
        ranked = sorted(range(VOCAB), key=lambda t: (-expected[t], t))[:5]
        assert entry.token_id == token(result)
        assert entry.logprob == pytest.approx(expected[entry.token_id], abs=1e-12)
        assert [token_id for token_id, _ in entry.top] == ranked
        assert [value for _, value in entry.top] == pytest.approx([expected[t] for t in ranked], abs=1e-12)


def test_logprobs_break_ties_by_id_and_may_be_the_drawn_token_alone() -> None:
    sampler = Sampler()
    sampler.learn([new("r", SamplingParams(temperature=0.0, logprobs=3)), new("s", VARIED["plain"])])
    flat = torch.zeros(2, 8)
    first, second = sampler.draw([row("r"), row("s")], flat)
    assert [token_id for token_id, _ in first.logprobs[0].top] == [0, 1, 2]
    assert first.logprobs[0].logprob == pytest.approx(-math.log(8), abs=1e-12)
    assert second.logprobs == ()
    sampler.learn([new("t", SamplingParams(temperature=0.0, logprobs=0))])
    (third,) = sampler.draw([row("t")], flat[:1])
    assert third.logprobs[0].top == ()


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_row_that_is_not_finite_fails_alone(bad: float) -> None:
    names = ("greedy", "hot", "all")
    clean = [run_alone(VARIED[name], name, 1)[0] for name in names]
    for victim in range(3):
        sampler = Sampler()
        sampler.learn([new(name, VARIED[name]) for name in names])
        logits = torch.stack([logits_of(0, name) for name in names])
        logits[victim, 5] = bad
        results = sampler.draw([row(name) for name in names], logits)
        for index, result in enumerate(results):
            if index == victim:
                assert result.token_ids == ()
                assert result.error is not None
                assert "not finite (1 of 37 values) after 6 tokens" in result.error
            else:
                assert token(result) == clean[index]


def test_seeds_repeat_only_when_asked() -> None:
    def tokens(engine_seed: int | None, sampling: SamplingParams) -> list[int]:
        sampler = Sampler(engine_seed)
        sampler.learn([new("r", sampling)])
        flat = torch.zeros(1, 1 << 16)
        return [token(sampler.draw([row("r", i)], flat)[0]) for i in range(3)]

    unseeded, seeded = SamplingParams(), SamplingParams(seed=8)
    assert tokens(None, seeded) == tokens(None, seeded) == tokens(1, seeded)
    assert tokens(1, unseeded) == tokens(1, unseeded) != tokens(2, unseeded)
    assert tokens(None, unseeded) != tokens(None, unseeded)


def test_each_output_token_has_a_draw_of_its_own() -> None:
    sampler = Sampler()
    sampler.learn([new("r", SamplingParams(seed=1))])
    flat = torch.zeros(1, 1 << 16)
    assert len({token(sampler.draw([row("r", i)], flat)[0]) for i in range(10)}) == 10


def test_logits_are_not_changed_and_half_precision_is_exact_enough_to_draw_from() -> None:
    sampler = Sampler()
    sampler.learn([new("a", VARIED["all"])])
    logits = logits_of(0, "a")[None].bfloat16()
    before = logits.clone()
    sampler.draw([row("a")], logits)
    assert torch.equal(logits, before)


def test_state_lives_from_announcement_to_release() -> None:
    sampler = Sampler()
    sampler.learn([new("a", GREEDY)])
    with pytest.raises(InvariantError, match="announced twice"):
        sampler.learn([new("a", GREEDY)])
    with pytest.raises(InvariantError, match="'b', which was never announced"):
        sampler.draw([row("b")], torch.zeros(1, 4))
    with pytest.raises(InvariantError, match="counts 2 output tokens, the sampler drew 0"):
        sampler.draw([row("a", 2)], torch.zeros(1, 4))
    sampler.forget(["a", "never-ran"])
    assert sampler.num_requests == 0
    with pytest.raises(InvariantError, match="never announced"):
        sampler.draw([row("a")], torch.zeros(1, 4))


def test_no_rows_no_results() -> None:
    assert Sampler().draw([], torch.zeros(0, 4)) == []
