"""Scenes that need numbers: what a small real model says on a hit is what it says without a cache."""

from __future__ import annotations

from pathlib import Path

import pytest

from milepost.llm import LLM
from milepost.types import SamplingParams
from tests.field_reports.scenes import Tokens, text
from tests.llm.checkpoints import ENGINE

GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True, logprobs=0)
PROMPT = text("numbers", 150, 300)

Answer = tuple[tuple[int, ...], list[float]]


def ask(llm: LLM, prompt: Tokens) -> tuple[int, Answer]:
    """The hit, and tokens with their log-probabilities."""
    (done,) = llm.generate([prompt], GREEDY)
    return done.usage.cached_tokens, (done.token_ids, [one.logprob for one in done.logprobs])


def assert_same(got: Answer, want: Answer) -> None:
    assert got[0] == want[0]
    assert got[1] == pytest.approx(want[1], abs=2e-4)


def drop_states(llm: LLM) -> int:
    """Evict every state and leave the KV; how many went."""
    cache = llm._loaded.engine._scheduler._cache
    assert cache is not None
    snapshots = [*cache.index.snapshots]
    for snapshot in snapshots:
        cache.evictor.drop(snapshot)
    return len(snapshots)


def test_r27_without_its_state_cached_kv_changes_no_answer(warm: LLM, cold: LLM) -> None:
    """R27: the states go, the KV stays, the prompt comes again."""
    _, expected = ask(cold, PROMPT)
    ask(warm, PROMPT)
    assert drop_states(warm) > 0
    assert warm.explain(PROMPT).matched_tokens >= 144
    hit, answer = ask(warm, PROMPT)
    assert hit == 0
    assert_same(answer, expected)


@pytest.mark.parametrize("shared", [1, 15, 16, 63, 64, 65, 100, 128, 149])
def test_r35_r43_a_hit_of_any_depth_says_what_a_cold_run_says(warm: LLM, cold: LLM, shared: int) -> None:
    """R35, R43: KV, state and window come back together, whatever part of the prompt was there before."""
    beginning = PROMPT[:shared]
    ask(warm, beginning)
    _, expected = ask(cold, PROMPT)
    hits = []
    for _ in range(3):
        hit, answer = ask(warm, PROMPT)
        assert_same(answer, expected)
        hits.append(hit)
    assert hits == [max(shared - 1, shared // 64 * 64), 149, 149]


def test_r45_the_same_hit_says_the_same_each_time(warm: LLM) -> None:
    """R45: five restores of one snapshot give five equal answers, to the last bit."""
    ask(warm, PROMPT)
    answers = [ask(warm, PROMPT) for _ in range(5)]
    assert [hit for hit, _ in answers] == [149] * 5
    assert all(answer == answers[0][1] for _, answer in answers)


def test_r46_r41_prompts_that_start_together_don_t_answer_each_other(warm: LLM, cold: LLM) -> None:
    """R41, R46: eight prompts with one beginning, cold and resumed in the same batches, in two rounds."""
    prompts = [PROMPT[:70] + text(i, 3 + 9 * i, 300) for i in range(8)]
    expected = [ask(cold, prompt)[1] for prompt in prompts]
    for _ in range(2):
        for done, want in zip(warm.generate(prompts, GREEDY), expected, strict=True):
            assert_same((done.token_ids, [one.logprob for one in done.logprobs]), want)
    assert len({tokens for tokens, _ in expected}) > 1, "they would have said the same anyway"


def test_r02_a_prompt_shorter_than_a_grown_block_is_hit(small_model: Path, cold: LLM) -> None:
    """R02: on the layout of the classic design a block is as large as a state; units make hits inside it."""
    with LLM(small_model, **(ENGINE | {"layout": "aligned", "match_unit": 16})) as llm:
        prompt = PROMPT[: llm.layout.block_size - 5]
        assert len(prompt) >= 60
        ask(llm, prompt)
        hit, answer = ask(llm, prompt)
        assert hit == len(prompt) - 1
        assert_same(answer, ask(cold, prompt)[1])
        assert ask(llm, prompt + PROMPT[-20:])[0] >= len(prompt) - 1


def test_r86_a_prefix_from_the_host_says_what_recomputing_says(small_model: Path, cold: LLM) -> None:
    """R86: the arena keeps two prompts of eight; the others come back from host memory."""
    prompts = [text(i, 150, 300) for i in range(8)]
    with LLM(small_model, **(ENGINE | {"memory": "1MiB", "host_cache": "32MiB"})) as llm:
        for prompt in prompts:
            ask(llm, prompt)
        answers = [ask(llm, prompt) for prompt in prompts]
        stats = llm.stats().cache
        assert stats is not None
        assert stats.tiers[0].loads > 0
    for prompt, (hit, answer) in zip(prompts, answers, strict=True):
        assert hit == 149
        assert_same(answer, ask(cold, prompt)[1])
