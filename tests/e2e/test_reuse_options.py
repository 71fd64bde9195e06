"""Recall through the LLM class, whatever the options: what is hit is the same as what is computed.

The answer to each question stands in the part of the prompt that is cached, so a state or a block that
is not the one it should be shows as a wrong answer.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from milepost.cli.shipped_model import shipped_model
from milepost.llm import LLM
from milepost.types import SamplingParams
from tests.e2e.shipped import Messages, assistant, messages_of, user
from training.cases import Case, make_cases

GREEDY = SamplingParams(temperature=0.0, max_tokens=10)
OPTIONS: dict[str, Any] = {"memory": "64MiB", "threads": 1}

Answers = list[tuple[int, ...]]


@pytest.fixture(scope="module")
def cold() -> Iterator[LLM]:
    with LLM(shipped_model(), prefix_cache=False, **OPTIONS) as llm:
        yield llm


def recalls(llm: LLM) -> list[Case]:
    return make_cases("recall", 4, 9, lambda text: len(llm.tokenizer.encode(text)), distance=160)


def waves(llm: LLM) -> list[list[Messages]]:
    """What is asked together: first the questions, then again, then on from them and around them."""
    cases = recalls(llm)
    asked = [messages_of(case) for case in cases]
    going_on = [[*one, assistant(case.answer), one[-1]] for one, case in zip(asked, cases, strict=True)]
    forked = [[*one[:2], user("Hello!"), assistant("Hello!"), *one[2:]] for one in asked]
    return [asked[:2], asked, going_on + forked, asked[::-1]]


def answers(llm: LLM) -> Answers:
    return [chat.completion.token_ids for wave in waves(llm) for chat in llm.chat_all(wave, GREEDY)]


@pytest.fixture(scope="module")
def expected(cold: LLM) -> Answers:
    return answers(cold)


def test_the_answers_are_recalled(cold: LLM, expected: Answers) -> None:
    told = [case.answer for case in recalls(cold)]
    asked_again = [cold.tokenizer.decode(tokens[:-6]) for tokens in expected[2:6]]
    assert sum(one.startswith(answer) for one, answer in zip(asked_again, told, strict=True)) >= 3


@pytest.mark.parametrize(
    "options",
    [
        {"match_unit": "block"},
        {"layout": "aligned"},
        {"layout": "aligned", "match_unit": "block", "wait_for_leaders": False},
        {"max_num_batched_tokens": 33, "max_num_seqs": 3},
        {"max_num_batched_tokens": 64, "block_size": 16, "snapshot_policy": "turns+branch+every(100)"},
        {"memory": "3MiB", "eviction": "lru"},
        {"memory": "1MiB", "host_cache": "16MiB", "eviction": "marconi(alpha=1)"},
    ],
    ids=str,
)
def test_every_answer_is_the_cold_one(expected: Answers, options: dict[str, Any]) -> None:
    with LLM(shipped_model(), **(OPTIONS | options)) as llm:
        assert answers(llm) == expected
        stats = llm.stats().cache
        assert stats is not None
        assert stats.hit_tokens > 1000
        assert (stats.evicted_snapshots > 0) == ("memory" in options)
        assert not stats.tiers or stats.tiers[0].loads > 0


def test_a_restart_resumes_from_disk(tmp_path: Path, expected: Answers) -> None:
    options = OPTIONS | {"host_cache": "16MiB", "disk_cache": f"{tmp_path / 'kept'},64MiB"}
    with LLM(shipped_model(), **options) as llm:
        assert answers(llm) == expected
        deadline = time.monotonic() + 20
        while not _settled(llm):
            assert time.monotonic() < deadline
            llm.generate("a", GREEDY)  # a step notices what has come to an end beside it
    with LLM(shipped_model(), **options) as llm:
        cached = [chat.completion.usage.cached_tokens for chat in llm.chat_all(waves(llm)[1], GREEDY)]
        assert min(cached) > 160, "the first requests of the new process resume already"
        assert answers(llm) == expected


def _settled(llm: LLM) -> bool:
    cache = llm._loaded.engine._scheduler._cache
    assert cache is not None
    assert cache.tiers is not None
    return not cache.tiers.is_busy and not cache.tiers.has_transfers
