"""Engine, scheduler, pool and detokeniser together on the tag executor: text does not depend on company."""

from __future__ import annotations

import pytest

from milepost.engine.engine import Engine
from milepost.testing.tag_executor import expected_output
from milepost.types import FinishReason, Request, SamplingParams
from tests.engine.harness import run, text_of
from tests.scheduler.harness import VOCAB, World, prompt_of

STOP = "abbab"
MAX_TOKENS = 24


class Letters:
    """Token 0 is "a", token 1 is "b"."""

    def token_bytes(self, token_id: int) -> bytes:
        return b"ab"[token_id : token_id + 1]


def expected(prompt: tuple[int, ...]) -> tuple[str, FinishReason]:
    text = "".join("ab"[token] for token in expected_output(prompt, MAX_TOKENS, VOCAB))
    before, found, _ = text.partition(STOP)
    return before, FinishReason.STOP if found else FinishReason.LENGTH


def submit(engine: Engine, world: World, request: Request) -> None:
    engine.submit(request)
    world.requests[request.request_id] = request  # the executor asks the world for salts


PROMPTS = [prompt_of(1 + 3 * i % 17, i) for i in range(16)]


def test_the_prompts_end_in_both_ways() -> None:
    assert {expected(prompt)[1] for prompt in PROMPTS} == {FinishReason.STOP, FinishReason.LENGTH}


@pytest.mark.parametrize("budget", [1, 7, 64, 4096])
@pytest.mark.parametrize("block_size", [1, 4, 16])
@pytest.mark.parametrize("room", ["just enough for one", "tight", "plenty"])
def test_the_same_text_alone_batched_chunked_and_preempted(budget: int, block_size: int, room: str) -> None:
    need = 2 + -(-(17 + MAX_TOKENS) // block_size)
    num_pages = 1 + {"just enough for one": need, "tight": 2 * need + 3, "plenty": 16 * need}[room]
    world = World(num_pages=num_pages, block_size=block_size, token_budget=budget, max_num_seqs=16)
    engine = Engine(world.executor, world.scheduler, Letters())
    for i, prompt in enumerate(PROMPTS):
        sampling = SamplingParams(max_tokens=MAX_TOKENS, stop=(STOP,))
        submit(engine, world, Request(request_id=str(i), prompt_token_ids=prompt, sampling=sampling))
    outputs = run(engine)
    for i, prompt in enumerate(PROMPTS):
        assert (text_of(outputs[str(i)]), outputs[str(i)][-1].finish_reason) == expected(prompt)
    world.scheduler.check()
    assert world.pool.counts().leased == 0


def test_the_tight_pools_of_the_sweep_do_preempt() -> None:
    world = World(num_pages=90, block_size=1, token_budget=64, max_num_seqs=16)
    engine = Engine(world.executor, world.scheduler, Letters())
    for i, prompt in enumerate(PROMPTS):
        sampling = SamplingParams(max_tokens=MAX_TOKENS)
        submit(engine, world, Request(request_id=str(i), prompt_token_ids=prompt, sampling=sampling))
    run(engine)
    assert world.scheduler.stats().preemptions > 0
