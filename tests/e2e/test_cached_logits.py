"""Logits behind a hit: the cold run's in float32, and as exact as the cold run's in bfloat16.

Tokens alone forgive much: a state that is 5 % too large draws the same ones, because what is read from
it is normalised. In bfloat16 the numbers themselves differ, since where a prompt is cut into pieces
decides how products are summed; so both are compared with float32's.
"""

from __future__ import annotations

import pytest
import torch

from milepost.prefix.config import CacheConfig
from milepost.runtime.model_runner import ModelRunner
from milepost.types import Request, SamplingParams
from tests.e2e.engines import NoteTaker, TestEngine
from tests.e2e.shipped import Shipped, load_shipped, messages_of
from training.cases import make_cases

ONE_TOKEN = SamplingParams(temperature=0.0, max_tokens=1)


def prompts(shipped: Shipped) -> list[Request]:
    """Conversations whose next token is an answer's first."""
    cases = make_cases("recall", 8, 3, shipped.count, distance=96)
    return [shipped.chat(f"ask {n}", messages_of(case), ONE_TOKEN) for n, case in enumerate(cases)]


def logits_of(shipped: Shipped, requests: list[Request], *, cached: bool) -> tuple[torch.Tensor, list[int]]:
    """First logits of each request, [requests, vocabulary], and the tokens that each hit.

    With the cache, prompts that leave them come first, so that each resumes from a place of its own.
    """
    notes, dtype = NoteTaker(shipped.toy), torch_dtype_of(shipped)
    pages = 12 * shipped.toy.pages_for(requests)  # so that nothing is evicted
    runner = ModelRunner(notes, shipped.toy.layout, pages, kv_dtype=dtype, conv_dtype=dtype)
    cache = CacheConfig() if cached else None
    engine = TestEngine(shipped.toy, num_pages=pages, runner=runner, cache=cache)
    if cached:
        engine.run([leaving(request, 41 + 17 * n) for n, request in enumerate(requests)])
    notes.logits.clear()
    hits = []
    for request in requests:
        usage = engine.run([request])[request.request_id].usage
        assert usage is not None
        hits.append(usage.cached_tokens)
    return torch.tensor(notes.logits, dtype=torch.float64), hits


def leaving(request: Request, position: int) -> Request:
    """A prompt that shares a message with `request` which ends at `position`, and goes on otherwise."""
    prompt = (*request.prompt_token_ids[:position], *range(7, 20))
    name = f"leaving {request.request_id}"
    return Request(request_id=name, prompt_token_ids=prompt, sampling=ONE_TOKEN, message_ends=(position,))


def torch_dtype_of(shipped: Shipped) -> torch.dtype:
    return torch.bfloat16 if shipped.toy.layout.kv_itemsize == 2 else torch.float32


@pytest.fixture(scope="module")
def shipped() -> Shipped:
    return load_shipped()


@pytest.fixture(scope="module")
def narrow() -> Shipped:
    return load_shipped(torch.bfloat16)


def relative_errors(logits: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    """Of each row: [rows]."""
    return (logits - exact).norm(dim=1) / exact.norm(dim=1)


def test_hits_have_the_cold_logits(shipped: Shipped) -> None:
    requests = prompts(shipped)
    cold, _ = logits_of(shipped, requests, cached=False)
    hit, hits = logits_of(shipped, requests, cached=True)
    assert hits == [41 + 17 * number for number in range(len(requests))]
    assert float(relative_errors(hit, cold).max()) < 1e-4


def test_in_bfloat16_a_hit_errs_no_more_than_a_cold_run(shipped: Shipped, narrow: Shipped) -> None:
    requests = prompts(narrow)
    exact, _ = logits_of(shipped, requests, cached=False)
    cold, _ = logits_of(narrow, requests, cached=False)
    hit, hits = logits_of(narrow, requests, cached=True)
    assert hits == [41 + 17 * number for number in range(len(requests))]

    plain, resumed = (float(relative_errors(logits, exact).median()) for logits in (cold, hit))
    assert 0 < plain < 0.1
    assert resumed < 1.5 * plain
    assert (hit.argmax(1) == exact.argmax(1)).sum() >= (cold.argmax(1) == exact.argmax(1)).sum() - 1


def test_in_bfloat16_a_resend_is_the_first_run_again(narrow: Shipped) -> None:
    """The prompt's end is computed from the very state that the first run left before it."""
    requests = prompts(narrow)[:3]
    pages = 12 * narrow.toy.pages_for(requests)
    runner = ModelRunner(
        narrow.toy.model, narrow.toy.layout, pages, kv_dtype=torch.bfloat16, conv_dtype=torch.bfloat16
    )
    engine = TestEngine(narrow.toy, num_pages=pages, runner=runner, cache=CacheConfig())
    first, again = (engine.run(requests) for _ in range(2))
    assert [again[name].tokens for name in again] == [first[name].tokens for name in first]
    for request in requests:
        usage = again[request.request_id].usage
        assert usage is not None
        assert usage.cached_tokens == len(request.prompt_token_ids) - 1
