"""What breaks one request, in its memory or while it computes, ends that request, and nobody else notices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from milepost.kernels.ops import load_ops
from milepost.models import StepInputs, StepOutput, load_model
from milepost.prefix.config import CacheConfig
from milepost.runtime.arena import Arena
from milepost.runtime.taped_model import TapedModel
from milepost.types import Batch, FinishReason
from tests.e2e.engines import BeforeStep, Reply, TestEngine, Toy, final_length, sixteen_requests

VICTIM = "r33"


def broken_page(what: str) -> BeforeStep:
    """Turn a page of the victim's KV or state into NaN once it has drawn five tokens."""

    def before_step(batch: Batch, arena: Arena) -> None:
        for row in batch.rows:
            if row.request_id == VICTIM and row.num_output_tokens == 5:
                arena.poison([row.block_table[1] if what == "kv" else row.state_table[0]])

    return before_step


@pytest.mark.parametrize("what", ["kv", "state"])
def test_non_finite_numbers_fail_one_request(toy: Toy, alone: dict[str, list[int]], what: str) -> None:
    """R50: the page that broke must not carry NaN to its next owner either."""
    requests = sixteen_requests(toy)
    engine = TestEngine(toy, num_pages=toy.pages_for(requests), before_step=broken_page(what))
    replies = engine.run(requests)
    victim = replies.pop(VICTIM)
    assert victim.finish_reason is FinishReason.ERROR
    assert victim.error is not None
    assert "hidden states are not finite" in victim.error
    assert victim.tokens == alone[VICTIM][:5]
    assert {name: reply.tokens for name, reply in replies.items()} == {
        name: tokens for name, tokens in alone.items() if name != VICTIM
    }
    assert engine.engine.failure is None
    later = engine.run([request for request in requests if request.request_id != VICTIM][:6])
    assert all(reply.tokens == alone[name] for name, reply in later.items())


class Trap:
    """Raises once in each step in which the victim has drawn five tokens."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.is_set = False
        self.sprung = 0

    def before_step(self, batch: Batch, _: Arena) -> None:
        self.is_set = any(row.request_id == VICTIM and row.num_output_tokens == 5 for row in batch.rows)

    def spring(self) -> None:
        if self.is_set:
            self.is_set = False  # once a step: the runner tries itself out afterwards
            self.sprung += 1
            raise self.error

    def kernel(self, inner: Callable[..., Any]) -> Callable[..., Any]:
        def trapped(*args: Any, **named: Any) -> Any:
            self.spring()
            return inner(*args, **named)

        return trapped


class TrappedModel:
    """Raises when all has been computed and written."""

    def __init__(self, toy: Toy, trap: Trap) -> None:
        self._model = TapedModel(toy.model)
        self._trap = trap

    def forward(self, inputs: StepInputs) -> StepOutput:
        output = self._model.forward(inputs)
        self._trap.spring()
        return output


def require_one_victim(replies: dict[str, Reply], alone: dict[str, list[int]], words: str) -> None:
    victim = replies.pop(VICTIM)
    assert victim.finish_reason is FinishReason.ERROR
    assert victim.error is not None
    assert words in victim.error
    assert victim.tokens == alone[VICTIM][:5]
    assert {name: reply.tokens for name, reply in replies.items()} == {
        name: tokens for name, tokens in alone.items() if name != VICTIM
    }
    assert {reply.finish_reason for reply in replies.values()} == {FinishReason.LENGTH}


@pytest.mark.parametrize("op", ["kda", "mla_attention", "grouped_experts"])
@pytest.mark.parametrize("arrivals", [None, 2], ids=["at once", "in turn"])
def test_a_kernel_that_raises_for_one_request_fails_that_one(
    toy: Toy, alone: dict[str, list[int]], op: str, arrivals: int | None
) -> None:
    """In the middle of a forward pass: some layers have written their states and KV, others not."""
    trap = Trap(RuntimeError("a kernel broke"))
    ops = load_ops("cpu")
    trapped: Any = {op: trap.kernel(getattr(ops, op))}
    ops = replace(ops, **trapped)
    model = load_model(toy.folder, dtype=torch.float32, ops=ops)
    requests = sixteen_requests(toy)
    engine = TestEngine(
        toy, num_pages=toy.pages_for(requests), before_step=trap.before_step, model=model, cache=CacheConfig()
    )
    replies = engine.run(requests, arrivals=arrivals)
    require_one_victim(replies, alone, "could not be computed (RuntimeError)")
    assert trap.sprung == 2  # among others, and by itself
    later = engine.run([request for request in requests if request.request_id != VICTIM][:6])
    assert all(reply.tokens == alone[name] for name, reply in later.items())


def test_want_of_memory_behind_a_tape_fails_one_request(toy: Toy, alone: dict[str, list[int]]) -> None:
    trap = Trap(MemoryError())
    requests = sixteen_requests(toy)
    engine = TestEngine(
        toy,
        num_pages=toy.pages_for(requests),
        before_step=trap.before_step,
        model=TrappedModel(toy, trap),
        cache=CacheConfig(),
        host_pages=100,
    )
    replies = engine.run(requests, arrivals=1)
    require_one_victim(replies, alone, "too little memory")
    assert engine.engine.failure is None
    engine.check_reset()


class WrongLogits:
    """The toy's model; while the trap is set, the victim's logits are not finite. What it writes is right."""

    def __init__(self, toy: Toy, trap: Trap) -> None:
        self._model = toy.model
        self._trap = trap
        self.rows: list[int] = []

    def before_step(self, batch: Batch, arena: Arena) -> None:
        self._trap.before_step(batch, arena)
        sampling = [row.request_id for row in batch.rows if row.samples]
        self.rows = [sampling.index(VICTIM)] if self._trap.is_set else []

    def forward(self, inputs: StepInputs) -> StepOutput:
        output = self._model.forward(inputs)
        logits = output.logits.clone()
        logits[self.rows, 7] = torch.nan
        return StepOutput(logits, output.finite)


def test_logits_that_are_not_finite_fail_one_request_and_publish_nothing(
    toy: Toy, alone: dict[str, list[int]]
) -> None:
    model = WrongLogits(toy, Trap(RuntimeError()))
    requests = sixteen_requests(toy)[4:8]
    engine = TestEngine(
        toy,
        num_pages=sum(map(final_length, requests)) * (toy.layout.pages_per_state + 1),  # for every token's
        before_step=model.before_step,
        model=model,
        cache=CacheConfig(snapshot_policy="every(1)", match_unit=1),
    )
    replies = engine.run(requests)
    served = {request.request_id: alone[request.request_id] for request in requests}
    require_one_victim(replies, served, "The model's logits are not finite (1 of ")
    assert engine.scheduler.stats().failed_steps == 0, "the others did not notice"
    prompt = next(request.prompt_token_ids for request in requests if request.request_id == VICTIM)
    assert isinstance(prompt, tuple)
    # The failed step computed the fifth token that was drawn. All before it is cached, nothing of it.
    told = engine.scheduler.explain((*prompt, *alone[VICTIM][:5], 0, 0))
    assert told.matched_tokens == told.hit_tokens == len(prompt) + 4
